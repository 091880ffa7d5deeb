"""An object in a separate process, as its users run it: with its own memory, allocator and threads.

The threads matter most: if a process has more threads than there are cores, OpenMP lets all of them sleep between
operations, so contestants with their own thread pools slow each other down.
"""

from __future__ import annotations

import multiprocessing
import signal
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, final

from regard.errors import RegardError


@final
class SubprocessWorker:
    """Proxy of the object that ``make(*arguments)`` returns in a new process, which ends with this proxy.

    ``make`` must be importable; arguments and results must be picklable. Raises NotImplementedError if ``make`` raises
    it, and RuntimeError if it fails.
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
        """Call the object's method of that name and return its result."""
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
    """Loop of the other process: send one reply after the object is made, and one for each call."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interruption of the terminal is for the calling process
    try:
        made = make(*arguments)
        channel.send(("made", None))
        while True:
            method = getattr(made, channel.recv())
            channel.send(("answer", method()))
    except EOFError:
        return  # the proxy is gone
    except (RegardError, NotImplementedError) as error:
        channel.send(("refused", str(error)))
    except Exception as error:  # any error is raised in the calling process
        channel.send(("failed", f"{type(error).__name__}: {error}"))
