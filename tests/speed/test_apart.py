"""A contestant in a process of its own answers as it would here."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from benchmarks.answers import Deviation
from benchmarks.apart import Apart
from benchmarks.case import Contestant
from regard.errors import MissingPackageError


def of_process(parent: int) -> Contestant:
    """Its deviation is 0 in another process than the parent, and how often it ran."""
    ran: list[int] = []
    return Contestant(
        lambda: ran.append(1), lambda: iter([Deviation("process", float(os.getpid() == parent), 0.0 + len(ran))])
    )


def refusing() -> Contestant:
    raise MissingPackageError("it is not installed", expected="it", do="install it")


def failing() -> Contestant:
    def run() -> None:
        raise ZeroDivisionError("by zero")

    return Contestant(run, list)


def dying() -> Contestant:
    return Contestant(lambda: os._exit(3), list)


def test_it_runs_elsewhere_and_remembers() -> None:
    contestant = Apart(of_process, os.getpid()).contestant()
    assert list(contestant.deviations()) == [Deviation("process", 0.0, 0.0)]
    contestant.run()
    contestant.run()
    assert list(contestant.deviations()) == [Deviation("process", 0.0, 2.0)]


def test_what_it_says_is_passed_on() -> None:
    with pytest.raises(NotImplementedError, match="it is not installed"):
        Apart(refusing)
    with pytest.raises(RuntimeError, match="ZeroDivisionError: by zero"):
        Apart(failing).run()
    with pytest.raises(RuntimeError, match="its process ended"):
        Apart(dying).run()


def test_its_process_ends_with_it() -> None:
    apart = Apart(of_process, 0)
    (process,) = multiprocessing.active_children()
    del apart
    process.join(20)
    assert not process.is_alive()
