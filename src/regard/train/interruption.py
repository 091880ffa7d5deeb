"""``InterruptHandler``: signals that ask a run to stop are noted, so that it ends at a place of its own.

SIGINT is Ctrl-C, SIGTERM asks a process to end, and SIGHUP says that its terminal was closed.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, final

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@final
class InterruptHandler:
    """Sets ``stop_requested`` on the first of the signals; a second one goes to the previous handler.

    A signal that the process was told to ignore, as SIGHUP by ``nohup``, stays ignored.
    """

    def __init__(self) -> None:
        self.stop_requested = False
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> InterruptHandler:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous_handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop_requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self._previous_handlers = {}
