"""Stages of one region: each sees what the one before wrote, exceptions pass, helpers that sleep are woken.

The program computes with the module's own threads, several callers at once.
"""

import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "src" / "regard" / "kernels" / "csrc"
SOURCES = (
    "parallel.cpp",
    "task_times.cpp",
    "workers.cpp",
    "machine_load.cpp",
    "openmp_runtime.cpp",
    "huge_pages.cpp",
    "debug_assert.cpp",
)

PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>
#include "runtime/machine_load.h"
#include "runtime/parallel.h"
using namespace regard;

std::atomic<long> wrong{0};
std::atomic<long> of_helpers{0};

// Each stage reads what the stage before wrote, and the caller's number between them.
void check(int threads, int stages, int tasks) {
    std::vector<long> from(tasks, 1), to(tasks);
    long between = 0;
    in_one_region(threads, [&] {
        for (int stage = 0; stage < stages; ++stage) {
            parallel_for(tasks, threads, [&](int64_t task, int thread) {
                if (thread < 0 || thread >= threads) ++wrong;
                if (thread > 0) ++of_helpers;
                for (volatile int step = 0; step < 500; ++step) {}
                to[task] = from[(task + 1) % tasks] + between;
            });
            std::swap(from, to);
            ++between;
        }
    });
    const long expected = 1 + (long)stages * (stages - 1) / 2;
    for (long number : from) wrong += number != expected;
}

int main(int, char** arguments) {
    const int rounds = atoi(arguments[1]);
    for (int round = 0; round < rounds; ++round) check(2 + round % 5, 1 + round % 13, 2 + round % 37);
    for (int tasks = 1; tasks < 40; ++tasks)
        for (int threads = 1; threads < 20; ++threads) {
            std::vector<std::atomic<int>> runs(tasks);
            parallel_for_owned(tasks, threads, [&](int64_t task, int) { ++runs[task]; });
            for (auto& count : runs) wrong += count != 1;
        }
    printf("wrong: %ld\\n", wrong.load());
    printf("helped: %d\\n", of_helpers > 0);

    bool thrown = false;
    try {
        in_one_region(3, [&] {
            parallel_for(7, 3, [](int64_t, int) {});
            throw std::runtime_error("of the body");
        });
    } catch (const std::runtime_error&) { thrown = true; }
    check(3, 5, 11);
    printf("exception passed on: %d\\n", thrown);

    in_one_region(3, [&] {  // helpers sleep meanwhile, and are woken
        std::atomic<int> count{0};
        parallel_for(7, 3, [&](int64_t, int) { ++count; });
        usleep(5000);
        parallel_for(7, 3, [&](int64_t, int) { ++count; });
        wrong += count != 14;
    });
    in_one_region(3, [&] {  // regions inside regions, and inside tasks
        in_one_region(3, [&] { parallel_for(7, 3, [&](int64_t, int) { in_one_region(3, [] {}); }); });
    });

    std::vector<std::thread> callers;  // each with a team of its own
    for (int caller = 0; caller < 4; ++caller)
        callers.emplace_back([&] { for (int round = 0; round < rounds / 8; ++round) check(3, 7, 19); });
    for (std::thread& caller : callers) caller.join();
    printf("wrong with other callers: %ld\\n", wrong.load());

    for (int attempt = 0; attempt < 10000; ++attempt) {  // a helper begins with its own tasks, and then takes others
        std::atomic<int> first{-1}, of_caller{0}, count{0};
        parallel_for_owned(90, 3, [&](int64_t task, int thread) {
            ++count;
            int none = -1;
            if (thread > 0) return (void)first.compare_exchange_strong(none, 1000 * thread + (int)task);
            ++of_caller;
            for (int wait = 0; first < 0 && wait < 1000; ++wait) usleep(1);
        });
        wrong += count != 90;
        if (first < 0) continue;  // there was no helper
        printf("first task of a helper: %d\\n", first.load() % 1000 / 30 == first.load() / 1000);
        break;
    }

    for (int attempt = 0; attempt < 10000; ++attempt) {  // until no other process competes for the cores
        const ParallelCounts before = parallel_counts();
        check(2, 50, 8);
        const ParallelCounts after = parallel_counts();
        if (after.teams - before.teams == 1 && after.stages - before.stages == 50) {
            printf("teams of 50 stages: 1\\n");
            return 0;
        }
        usleep(5000);
    }
}
"""


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stages")
    (folder / "program.cpp").write_text(PROGRAM)
    sources = [str(CSRC / "runtime" / name) for name in SOURCES]
    command = ["c++", "-std=c++17", "-O1", f"-I{CSRC}", "program.cpp", *sources, "-o", "program", "-pthread", "-ldl"]
    subprocess.run(command, cwd=folder, check=True)
    result = subprocess.run([str(folder / "program"), "3000"], capture_output=True, text=True, check=True, timeout=120)
    return dict(line.split(": ") for line in result.stdout.splitlines())


def test_each_stage_sees_what_the_one_before_wrote(lines):
    assert lines["wrong"] == "0"
    assert lines["helped"] == "1"


def test_a_thread_begins_with_tasks_of_its_own(lines):
    assert lines["first task of a helper"] == "1"


def test_callers_share_the_threads(lines):
    assert lines["wrong with other callers"] == "0"


def test_an_exception_of_the_caller_passes(lines):
    assert lines["exception passed on"] == "1"


def test_one_team_computes_all_stages(lines):
    """As a decoding step has: a team that is gathered once, unless other processes take its cores."""
    assert lines["teams of 50 stages"] == "1"
