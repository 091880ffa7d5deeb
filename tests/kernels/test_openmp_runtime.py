"""The OpenMP runtime is the one that torch has loaded, under any name and with either function to start a team.

LLVM's function, the only one on Windows, is tested with a runtime built for the test. Its functions are those of LLVM's
openmp/runtime/src/kmp.h.
"""

import os
import subprocess
from pathlib import Path

import pytest

from regard.kernels import extension

CSRC = Path(__file__).parents[2] / "src" / "regard" / "kernels" / "csrc"

RUNTIME = """
#include <stdint.h>
#include <thread>
#include <vector>
namespace { thread_local int number = 0; thread_local bool inside = false; int wanted = 1; }
extern "C" {
int omp_in_parallel() { return inside; }
int omp_get_thread_num() { return number; }
int32_t __kmpc_global_thread_num(const void*) { return 17; }
void __kmpc_push_num_threads(const void*, int32_t caller, int32_t threads) { wanted = caller == 17 ? threads : -1; }
void __kmpc_fork_call(const void*, int32_t count, void (*task)(int32_t*, int32_t*, ...), void* argument) {
    std::vector<std::thread> team;
    for (int32_t i = 0; i < wanted * count; ++i)
        team.emplace_back([=] {
            int32_t global = 17 + i, own = i;
            number = i, inside = true;
            task(&global, &own, argument);
        });
    for (auto& thread : team) thread.join();
}
}
"""

PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
#include <atomic>
#include "runtime/openmp_runtime.h"
std::atomic<int> seen{0}, inside{0};
int main(int, char** path) {
    if (path[1] != nullptr && dlopen(path[1], RTLD_NOW | RTLD_LOCAL) == nullptr) return 1;
    int context = 23;
    regard::openmp::run_team(3, [](void* given, int thread) {
        seen += 1 << (4 * thread);
        inside += regard::openmp::in_parallel() && *(int*)given == 23;
    }, &context);
    const std::string& file = regard::openmp::file();
    const char* name = file.c_str() + file.rfind('/') + 1;
    printf("%x %d %d %s\\n", seen.load(), inside.load(), regard::openmp::in_parallel(), name);
    printf("%d\\n", regard::openmp::threads_poll());
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Build a program that runs a team of three, a library named as torch's, and the runtime library that it needs."""
    folder = tmp_path_factory.mktemp("openmp")
    (folder / "runtime.cpp").write_text(RUNTIME)
    (folder / "torch.cpp").write_text('extern "C" int omp_in_parallel(); int torch() { return omp_in_parallel(); }')
    (folder / "foreign.cpp").write_text('extern "C" void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned) {}')
    (folder / "program.cpp").write_text(PROGRAM)
    shared = ["-shared", "-fPIC", "-Wl,-rpath,$ORIGIN"]
    for command in (
        [*shared, "runtime.cpp", "-o", "libomp-4f2a.so.5", "-Wl,-soname,libomp-4f2a.so.5", "-pthread"],
        [*shared, "torch.cpp", "-o", "libtorch_cpu.so", "./libomp-4f2a.so.5"],
        [*shared, "foreign.cpp", "-o", "libforeign.so", "-Wl,-soname,libforeign.so"],
        [
            *shared,
            "torch.cpp",
            "-o",
            "libtorch_cpu.two.so",
            "-Wl,--no-as-needed",
            "./libforeign.so",
            "./libomp-4f2a.so.5",
        ],
        [f"-I{CSRC}", "program.cpp", str(CSRC / "runtime" / "openmp_runtime.cpp"), "-o", "program", "-ldl"],
    ):
        subprocess.run(["c++", "-std=c++17", "-O0", *command], cwd=folder, check=True)
    return folder


def program_output(folder: Path, *libraries: str) -> str:
    command = [str(folder / "program"), *(str(folder / one) for one in libraries)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()


def test_torchs_runtime_is_found_under_any_name(program):
    """Threads 0, 1 and 2 each run once (a hexadecimal digit), all in the region; then the caller is outside of it."""
    assert program_output(program, "libtorch_cpu.so") == "111 3 0 libomp-4f2a.so.5"


def test_all_functions_are_of_one_library(program):
    """A library that comes first has one function of a runtime alone: its threads are not those of the others."""
    assert program_output(program, "libtorch_cpu.two.so") == "111 3 0 libomp-4f2a.so.5"


def test_runtime_of_another_library_is_ignored(program):
    """A runtime of another library is not torch's thread pool: the caller computes alone, and no file is named."""
    assert program_output(program, "libomp-4f2a.so.5") == "1 0 0"
    assert program_output(program) == "1 0 0"


def test_module_is_linked_to_no_runtime():
    command = ["readelf", "--dynamic", extension.native.__file__]
    needed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "libstdc++" in needed
    assert "omp" not in needed


@pytest.mark.parametrize(
    ("variables", "polls"),
    [
        ({}, True),
        ({"OMP_WAIT_POLICY": "active"}, True),
        ({"OMP_WAIT_POLICY": "passive"}, False),
        ({"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "infinity"}, True),  # GCC's runtime prefers its own variable
        ({"GOMP_SPINCOUNT": "100"}, False),
        ({"KMP_BLOCKTIME": "0"}, False),
        ({"KMP_BLOCKTIME": "200"}, True),
    ],
)
def test_threads_of_the_runtime_poll_unless_told_to_sleep(program, variables, polls):
    known = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    command = [str(program / "program"), str(program / "libtorch_cpu.so")]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=known | variables)
    assert result.stdout.split()[-1] == str(int(polls))


def test_without_a_runtime_nothing_polls(program):
    result = subprocess.run([str(program / "program")], capture_output=True, text=True, check=True)
    assert result.stdout.split()[-1] == "0"
