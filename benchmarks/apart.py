"""A contestant in a process of its own, as its users run it: with its own memory, allocator and threads."""

from __future__ import annotations

import multiprocessing
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, final

from benchmarks.answers import Deviation
from benchmarks.case import Contestant
from regard.errors import RegardError


@final
class Apart:
    """What ``make(*arguments)`` gives, made and called in a new process, which ends with this object.

    ``make`` is a function that can be imported. Raises NotImplementedError where it
    refuses, RuntimeError where it fails.
    """

    def __init__(self, make: Callable[..., Contestant], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        process.start()
        theirs.close()
        weakref.finalize(self, process.kill)
        self._answer()

    def run(self) -> None:
        """Call it once."""
        self._asked("run")

    def deviations(self) -> list[Deviation]:
        """How far its answers are from what they should be."""
        return self._asked("deviations")

    def contestant(self) -> Contestant:
        """As a contestant here."""
        return Contestant(self.run, self.deviations)

    def _asked(self, what: str) -> Any:
        self._ours.send(what)
        return self._answer()

    def _answer(self) -> Any:
        try:
            kind, answer = self._ours.recv()
        except EOFError:
            raise RuntimeError("its process ended") from None
        if kind == "refused":
            raise NotImplementedError(answer)
        if kind == "failed":
            raise RuntimeError(answer)
        return answer


def _serve(channel: Connection, make: Callable[..., Contestant], arguments: tuple[object, ...]) -> None:
    """The life of the other process: an answer for each question, the first one unasked."""
    try:
        contestant = make(*arguments)
        channel.send(("made", None))
        while True:
            if channel.recv() == "run":
                contestant.run()
                channel.send(("ran", None))
            else:
                channel.send(("deviations", list(contestant.deviations())))
    except EOFError:
        return  # nobody asks any more
    except (RegardError, NotImplementedError) as error:
        channel.send(("refused", str(error)))
    except Exception as error:  # whatever it is, it is told where it was asked for
        channel.send(("failed", f"{type(error).__name__}: {error}"))
