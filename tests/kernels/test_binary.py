"""The compiled module: no instruction runs on a processor that does not support it.

A processor with a newer instruction set runs code for an older one, but not the reverse. All code outside the kernels'
namespaces, which includes all code that runs at import, uses only the architecture's baseline. On x86-64 all
later vector instructions begin with a v (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2,
section 2.3: the VEX prefix); on arm64 SVE instructions use the registers z0 to z31.
"""

import platform
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from regard.kernels import extension
from script_process import run_script

CSRC = Path(__file__).parents[2] / "src" / "regard" / "kernels" / "csrc"
X86 = platform.machine() in ("x86_64", "AMD64")

MATRIX = r"^(tile|tdp|ldtilecfg|sttilecfg)"
OF_ARM = r"^[su]dot$" if sys.platform == "linux" else r"$^"
NEWER = re.compile(rf"^v(?!err|erw|mcall)\w+$|{MATRIX}" if X86 else OF_ARM)
NOT_IN = {
    "portable": NEWER,
    "avx2": re.compile(rf"%zmm|%k[0-7]|%[xy]mm(1[6-9]|2\d|3[01])|{MATRIX}"),
    "avx512": re.compile(rf"^v\w*bf16|^vpdp|{MATRIX}"),
    "avx512_vnni": re.compile(rf"^v\w*bf16|{MATRIX}"),
    "avx512_amx_int8": re.compile(r"^v\w*bf16|^tdpbf16"),
    "avx512_bf16": re.compile(MATRIX),
    "avx512_amx": re.compile(r"$^"),
    "neon_dot": re.compile(r"$^"),
}
"""Forbidden instructions of each namespace; code outside of namespaces is checked as "portable"."""

FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
SVE = re.compile(r"\bz\d+\.")


def instructions():
    """Yield (function, mnemonic, operands) of each instruction of the module."""
    options = ["--disassemble", "--no-show-raw-insn", "--demangle"]
    command = ["objdump", *options, extension.native.__file__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        function = ""
        for line in process.stdout:
            if line.startswith(" ") and "\t" in line:
                mnemonic, _, operands = line.split("\t", 1)[1].strip().partition(" ")
                yield function, mnemonic, operands
            elif found := FUNCTION.match(line):
                function = found[1]
    assert process.returncode == 0


@cache
def instruction_set_of(function: str) -> str:
    """Return the instruction set whose namespace contains the function."""
    hypotheses = re.search(rf"regard::({'|'.join(NOT_IN)})::", function)
    return hypotheses[1] if hypotheses else "portable"


def test_no_function_has_instructions_of_a_newer_instruction_set():
    counts, wrong = dict.fromkeys(NOT_IN, 0), set()
    for function, mnemonic, operands in instructions():
        own = instruction_set_of(function)
        counts[own] += 1
        text = mnemonic if own == "portable" or not X86 else f"{mnemonic} {operands}"
        if NOT_IN[own].search(text) or (not X86 and SVE.search(operands)):
            wrong.add(f"{function}: {mnemonic} {operands.strip()}")
    assert not wrong, "\n".join(sorted(wrong)[:10])
    # Where another set was not built, or lost its names, its functions count as portable ones, and are wrong.
    expected = extension.native.isas() if X86 else ["portable"]
    assert all(counts[own] > 10_000 for own in expected), f"the names of functions are gone: {counts}"


LEAKS = """
namespace regard {
inline int shared(int x) { return x * x; }
struct Shared { int x; int member() const { return x + 1; } };
namespace REGARD_ISA_NAMESPACE { int kernel(int x) { return shared(x) + Shared{x}.member(); } }
}
"""
KEEPS = """
#include "tiles/problem.h"
namespace regard { namespace REGARD_ISA_NAMESPACE {
inline int own(int x) { return x * x; }
static int alone(int x) { return x + 1; }
int64_t kernel(int x, const Problem& p) { return own(x) + alone(x) + p.key_tiles() + p.query.at(0, 1, 2, 3); }
} }
"""


@pytest.mark.parametrize(
    ("source", "symbols"), [(LEAKS, ["shared", "member"]), (KEEPS, [])], ids=["shared symbols", "separate symbols"]
)
def test_build_refuses_symbols_shared_by_instruction_sets(source, symbols, tmp_path):
    (tmp_path / "kernel.cpp").write_text(source)
    compile_ = ["c++", "-std=c++17", "-O0", f"-I{CSRC}", "-DREGARD_ISA_NAMESPACE=avx2", "-c", "kernel.cpp"]
    subprocess.run(compile_, cwd=tmp_path, check=True)
    check = [
        sys.executable,
        "-m",
        "cmake",
        "-DNM=nm",
        "-DNAMESPACE=avx2",
        "-DOBJECTS=kernel.o",
        "-P",
        str(CSRC / "runtime" / "symbols.cmake"),
    ]
    result = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode != 0) == bool(symbols), result.stderr
    for name in symbols:
        assert name in result.stderr


def test_only_torchs_openmp_runtime_is_loaded():
    """Two runtimes have two thread pools, which compete for the cores. In a new process, as packages bring others."""
    script = (
        "import torch, regard; q = torch.ones(1, 1, 1, 1); regard.attention(q, q, q, impl='native'); "
        "print(open('/proc/self/maps').read())"
    )
    result = run_script(script)
    assert result.returncode == 0, result.stderr
    mapped = {Path(line.split()[-1]) for line in result.stdout.splitlines() if "omp" in line}
    runtimes = {path for path in mapped if re.match(r"lib(g|i)?omp\d*\W", path.name)}
    assert len(runtimes) == 1, runtimes
    assert next(iter(runtimes)).parent.parts[-2:] == ("torch", "lib")


FOR_ONE_INSTRUCTION_SET = {"tiles/matrix_unit.h", "attention/matrix_forward.h"}
"""Headers for processors with a matrix unit."""


@pytest.mark.slow
def test_each_header_includes_what_it_uses():
    """So that the order of includes means nothing. Headers of bindings need those of Python, and are left out."""
    headers = {str(path.relative_to(CSRC)) for path in CSRC.rglob("*.h") if path.parent.name != "bindings"}
    compile_ = ["c++", "-std=c++17", "-fsyntax-only", "-w", "-x", "c++", f"-I{CSRC}", "-DREGARD_ISA_NAMESPACE=portable"]
    failed = {
        header
        for header in headers - FOR_ONE_INSTRUCTION_SET
        if subprocess.run([*compile_, header], cwd=CSRC, capture_output=True, check=False).returncode
    }
    assert len(headers) > 50
    assert failed == set()
