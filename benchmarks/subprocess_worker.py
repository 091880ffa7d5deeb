"""An object in a process of its own, as its users run it: with its own memory, allocator and threads.

Threads above all: where a process has more of them than there are cores, OpenMP lets all of them sleep between any two
operations, so contestants that bring their own threads slow each other down.
"""

from __future__ import annotations

import multiprocessing
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, final

from regard.errors import RegardError


@final
class SubprocessWorker:
    """What ``make(*arguments)`` gives, in a new process, which ends with this object.

    ``make`` is a function that can be imported; arguments and answers can be pickled. Raises NotImplementedError where
    it refuses, RuntimeError where it fails.
    """

    def __init__(self, make: Callable[..., object], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        process.start()
        theirs.close()
        weakref.finalize(self, process.kill)
        self._receive()

    def call(self, method: str) -> Any:
        """What the object's method of that name answers."""
        self._connection.send(method)
        return self._receive()

    def _receive(self) -> Any:
        try:
            kind, answer = self._connection.recv()
        except EOFError:
            raise RuntimeError("its process ended") from None
        if kind == "refused":
            raise NotImplementedError(answer)
        if kind == "failed":
            raise RuntimeError(answer)
        return answer


def _serve(channel: Connection, make: Callable[..., object], arguments: tuple[object, ...]) -> None:
    """The life of the other process: an answer for each call, and a first one when the object is made."""
    try:
        made = make(*arguments)
        channel.send(("made", None))
        while True:
            method = getattr(made, channel.recv())
            channel.send(("answer", method()))
    except EOFError:
        return  # nobody asks any more
    except (RegardError, NotImplementedError) as error:
        channel.send(("refused", str(error)))
    except Exception as error:  # whatever it is, it is told where it was asked for
        channel.send(("failed", f"{type(error).__name__}: {error}"))
