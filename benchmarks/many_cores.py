"""What more cores than this machine has would gain: a model of time from the times of tasks.

    python -m benchmarks.many_cores                           all cases, 1 to 128 threads
    python -m benchmarks.many_cores --cases backward --rounds 9

A call divides its work into tasks for the number of threads that torch is set to. The kernels compute these tasks one
after the other on one core and record the time of each. The model shares them among n threads as a call does: a free
thread takes the next one. Between two stages all meet.

    T(n) = serial + sum over stages of (the end of the last thread + meeting)
    serial    time of the call outside of its tasks: Python, allocation, what is computed between stages
    meeting   --meeting microseconds, by default 3; 0 for a call with one thread

So the model sees too few tasks, tasks of unequal cost, and serial parts (Amdahl 1967). It does not see that cores share
memory and caches: an operation that reads memory at its full rate gains nothing from more cores of one processor. The
last column is the measured time with all cores of this machine, divided by that of the model: 1 says that it is right.
"""

from __future__ import annotations

import argparse
import heapq
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import final
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

import regard
from regard import masks
from regard.kernels.extension import native
from regard.models.gpt2 import Gpt2, Gpt2Config

THREADS = (1, 2, 4, 16, 64, 128)
HEADS, HEAD_DIM = 8, 64

Call = Callable[[], object]


@final
@dataclass(frozen=True)
class TimedCall:
    """One call whose tasks were computed one after the other: nanoseconds."""

    stages: list[list[int]]
    serial: float

    def predict(self, threads: int, meeting: float) -> float:
        """Return T(n) in nanoseconds; ``meeting`` is that of one stage."""
        together = [end_of_last_thread(tasks, threads) for tasks in self.stages]
        return self.serial + sum(together) + (meeting * len(self.stages) if threads > 1 else 0)


def end_of_last_thread(tasks: list[int], threads: int) -> int:
    """Return when the last of the threads ends, if each takes the next task when it is free."""
    ends = [0] * min(threads, max(len(tasks), 1))
    for task in tasks:
        heapq.heapreplace(ends, ends[0] + task)
    return max(ends)


def time_tasks(call: Call, threads: int, rounds: int) -> TimedCall:
    """Time the tasks of the call with its work divided for ``threads``; of several calls the shortest.

    The kernels ask torch for the number of threads. torch's own operations have one, and are part of the serial time.
    """
    with _threads(1), patch.object(torch, "get_num_threads", lambda: threads), _recording():
        call()
        native.take_task_times()
        timed = []
        for _ in range(rounds):
            start = time.perf_counter_ns()
            call()
            whole = time.perf_counter_ns() - start
            stages = native.take_task_times()
            timed.append((whole, TimedCall(stages, max(0, whole - sum(map(sum, stages))))))
    return min(timed, key=lambda one: one[0])[1]


def measure(call: Call, threads: int, rounds: int) -> float:
    """Return the median nanoseconds of a call."""
    with _threads(threads):
        call()
        times = []
        for _ in range(rounds):
            start = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - start)
    return median(times)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _recording() -> Iterator[None]:
    native.record_task_times(True)
    try:
        yield
    finally:
        native.record_task_times(False)
        native.take_task_times()


def _attention(length: int, heads: int, *, causal: bool, backward: bool, queries: int | None = None) -> Call:
    mask = masks.causal() if causal else None
    query = torch.randn(1, heads, queries or length, HEAD_DIM, requires_grad=backward)
    key, value = (torch.randn(1, heads, length, HEAD_DIM, requires_grad=backward) for _ in range(2))
    cotangent = torch.randn_like(query)

    def call() -> object:
        output = regard.attention(query, key, value, mask=mask, impl="native")
        return torch.autograd.grad(output, (query, key, value), cotangent) if backward else output

    return call


def _decoding_step(dtype: torch.dtype) -> Call:
    """Make a call that computes the next token of a text of 900 tokens and more, by GPT-2 small with random weights."""
    model = Gpt2(Gpt2Config()).eval().to(dtype)
    tokens = torch.randint(50257, (1, 900))
    with torch.no_grad():
        _, reached = model.prefill(tokens)

    @torch.no_grad()
    def call() -> object:
        nonlocal reached
        logits, reached = model.step(tokens[:, -1], reached)
        return logits

    return call


CASES: dict[str, Callable[[], Call]] = {
    "forward, 8 heads x 2,048": lambda: _attention(2048, HEADS, causal=False, backward=False),
    "forward, causal": lambda: _attention(2048, HEADS, causal=True, backward=False),
    "forward and backward, 8 heads x 2,048": lambda: _attention(2048, HEADS, causal=False, backward=True),
    "forward and backward, causal": lambda: _attention(2048, HEADS, causal=True, backward=True),
    "forward and backward, 1 head x 8,192": lambda: _attention(8192, 1, causal=False, backward=True),
    "decoding, 16,384 keys": lambda: _attention(16384, HEADS, causal=False, backward=False, queries=1),
    "step of GPT-2 small, bf16": lambda: _decoding_step(torch.bfloat16),
}


def main() -> None:
    """Time the tasks of each case, and print what the model says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_cores", description=__doc__.split("\n")[0])
    parser.add_argument("--cases", default="", metavar="WORD", help=f"whose names have it: {'; '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="calls of each case; the shortest counts")
    parser.add_argument(
        "--meeting", type=float, default=3.0, metavar="US", help="microseconds of a meeting of all threads"
    )
    options = parser.parse_args()
    console, cores = Console(), torch.get_num_threads()
    table = Table("case", "stages", "tasks", "serial", *(f"{n} threads" for n in THREADS[1:]), f"measured, {cores}")
    torch.manual_seed(0)
    for name, make in CASES.items():
        if options.cases not in name:
            continue
        call = make()
        timed = {threads: time_tasks(call, threads, options.rounds) for threads in {*THREADS, cores}}
        predicted = {n: one.predict(n, options.meeting * 1e3) for n, one in timed.items()}
        shown = timed[max(THREADS)]
        table.add_row(
            name,
            str(len(shown.stages)),
            str(sum(map(len, shown.stages))),
            f"{shown.serial / predicted[1]:.2%}",
            *(f"{predicted[1] / predicted[n]:.1f}x" for n in THREADS[1:]),
            f"{measure(call, cores, options.rounds) / predicted[cores]:.2f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
