"""A caller never waits for a worker that has not begun, and gets the workers back when they are late.

The program stops a worker wherever it is, by a signal whose handler waits: as another process does that takes its core.
"""

import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "src" / "regard" / "kernels" / "csrc"

PROGRAM = """
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#include <atomic>
#include <thread>
#include "runtime/machine_load.h"
#include "runtime/workers.h"
using regard::Team;

std::atomic<bool> stopped{false}, hold{true};
void stop(int) { stopped = true; while (hold) usleep(100); stopped = false; }

struct Job {
    std::atomic<int> members{0}, threads{0}, wanted{0};
    std::atomic<pthread_t> worker{};
    static void run(void* context, int thread) {
        Job& job = *static_cast<Job*>(context);
        ++job.members;
        job.threads |= 1 << thread;
        if (thread > 0) job.worker = pthread_self();
        while (job.members < job.wanted) usleep(100);  // so that all of them begin
    }
    int with(int team_size, int expected) {
        wanted = expected;
        Team team(&run, this);
        team.gather(team_size);
        run(this, 0);
        return 0;
    }
};

int main() {
    signal(SIGUSR1, stop);
    Job first;
    first.with(3, 3);
    printf("all begin: %d %x\\n", first.members.load(), first.threads.load());

    Job one;
    one.with(2, 2);
    pthread_t worker = one.worker;
    pthread_kill(worker, SIGUSR1);
    while (!stopped) usleep(100);
    Job late;
    late.with(2, 1);  // the same worker is asked first, and does not answer
    printf("not waited for: %d\\n", late.members.load());
    hold = false;
    while (stopped) usleep(100);
    Job again;
    again.with(2, 2);
    printf("back again: %d\\n", again.members.load());

    Job outer;  // all workers are in a job: another caller computes alone
    outer.wanted = 4;
    std::thread other([&] {
        while (outer.members < 3) usleep(100);
        Job alone;
        alone.with(3, 1);
        printf("alone: %d\\n", alone.members.load());
        ++outer.members;
    });
    outer.with(3, 4);
    other.join();

    long calls = 0;  // offers, withdrawals, sleep and waking race with one another
    for (; calls < 20000; ++calls) {
        Job job;
        job.with(3, 1);
        if (calls % 1000 == 0) usleep(2000);
    }
    printf("calls: %ld\\n", calls);

    regard::MachineLoad load;
    const bool before = load.is_busy();
    load.report_delay();
    const bool after = load.is_busy();
    usleep(30000);
    printf("load: %d %d %d\\n", before, after, load.is_busy());
}
"""


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers")
    (folder / "program.cpp").write_text(PROGRAM)
    sources = [str(CSRC / "runtime" / name) for name in ("workers.cpp", "machine_load.cpp")]
    command = ["c++", "-std=c++17", "-O1", f"-I{CSRC}", "program.cpp", *sources, "-o", "program", "-pthread"]
    subprocess.run(command, cwd=folder, check=True)
    result = subprocess.run([str(folder / "program")], capture_output=True, text=True, check=True, timeout=60)
    return dict(line.split(": ") for line in result.stdout.splitlines())


def test_each_member_has_a_thread_of_its_own(lines):
    assert lines["all begin"] == "3 7"


def test_caller_does_not_wait_for_a_worker_that_has_not_begun(lines):
    assert lines["not waited for"] == "1"
    assert lines["back again"] == "2"


def test_caller_without_idle_workers_computes_alone(lines):
    assert lines["alone"] == "1"


def test_many_short_jobs_end(lines):
    assert lines["calls"] == "20000"


def test_delays_are_forgotten(lines):
    assert lines["load"] == "0 1 0"
