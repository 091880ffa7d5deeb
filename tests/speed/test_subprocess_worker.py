"""An object in a subprocess behaves as it does in this process."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from benchmarks.subprocess_worker import SubprocessWorker
from regard.errors import MissingPackageError


class Counter:
    """Has methods that count, raise, and end the process."""

    def __init__(self, first: int) -> None:
        if first < 0:
            raise MissingPackageError("it is not installed", expected="it", do="install it")
        self.number = first

    def add(self) -> int:
        self.number += 1
        return self.number

    def process(self) -> int:
        return os.getpid()

    def fail(self) -> float:
        return self.number / 0

    def end(self) -> None:
        os._exit(3)


def test_object_keeps_its_state_and_its_process_ends_with_it() -> None:
    before = set(multiprocessing.active_children())
    counter = SubprocessWorker(Counter, 5)
    (process,) = set(multiprocessing.active_children()) - before
    assert counter.call("process") == process.pid != os.getpid()
    assert [counter.call("add") for _ in range(3)] == [6, 7, 8]
    del counter
    process.join(20)
    assert not process.is_alive()


def test_refusals_are_passed_on() -> None:
    with pytest.raises(NotImplementedError, match="it is not installed"):
        SubprocessWorker(Counter, -1)


@pytest.mark.slow  # the default run tests refusals, which are passed on in the same way
@pytest.mark.parametrize(
    ("method", "message"), [("fail", "ZeroDivisionError: division by zero"), ("end", "its process ended")]
)
def test_failures_are_passed_on(method: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        SubprocessWorker(Counter, 5).call(method)
