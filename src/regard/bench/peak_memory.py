"""Peak memory and time of one call of a case, in a process of its own (``case_process``)."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, final

import torch

from regard.bench.settings import BenchSettings
from regard.comparison import MechanismChoice

_PREPARATION_SECONDS = 120.0
"""Time limit of a case's preparation, which includes the import of torch and the drawing of its tokens."""


@final
@dataclass(frozen=True)
class FirstCall:
    """The first call of a case: its peak memory in bytes and its time, or why there are none.

    ``too_slow`` says that it was stopped at the time limit.
    """

    peak_bytes: int | None = None
    seconds: float | None = None
    refused: str | None = None
    failed: str | None = None
    too_slow: bool = False


@final
class CaseProcess:
    """Runs cases of ``settings`` in processes of their own; a context manager that ends them."""

    def __init__(self, settings: BenchSettings) -> None:
        self.settings = settings
        self._server: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()

    @staticmethod
    def is_supported() -> bool:
        """Whether this system can fork: a process of its own tells how much memory a case used."""
        return hasattr(os, "fork")

    def __enter__(self) -> CaseProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def measure(self, choice: MechanismChoice, length: int) -> FirstCall:
        """Measure the first call of a case; it is stopped after ``settings.stop_seconds``."""
        case = {
            "settings": asdict(self.settings) | {"threads": torch.get_num_threads()},
            "name": choice.name,
            "options": dict(choice.options),
            "length": length,
        }
        server = self._start()
        assert server.stdin is not None
        server.stdin.write(json.dumps(case) + "\n")
        server.stdin.flush()
        found, process, limit = None, 0, _PREPARATION_SECONDS
        while True:
            try:
                found = self._lines.get(timeout=limit)
            except queue.Empty:
                if process:
                    with suppress(OSError):
                        os.kill(process, signal.SIGKILL)
                    self._lines.get()  # the server's report of it
                    return FirstCall(too_slow=True)
                self._end()
                return FirstCall(failed="its tokens were not ready in two minutes")
            if found is None:
                self._end()
                return FirstCall(failed="the process that measures memory ended")
            if "started" in found:
                process, limit = found["started"], self.settings.stop_seconds
                continue
            return FirstCall(found.get("bytes"), found.get("seconds"), found.get("refused"), found.get("failed"))

    def _start(self) -> subprocess.Popen[str]:
        """Start the server, unless it runs."""
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "regard.bench.case_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # an interrupt reaches this process alone, which then ends the others
            )
            threading.Thread(target=self._read_lines, args=(self._server, self._lines), daemon=True).start()
        return self._server

    @staticmethod
    def _read_lines(server: subprocess.Popen[str], lines: queue.Queue[dict[str, Any] | None]) -> None:
        assert server.stdout is not None
        for line in server.stdout:
            lines.put(json.loads(line))
        lines.put(None)

    def _end(self) -> None:
        """End the server, and the case that it runs."""
        server, self._server = self._server, None
        self._lines = queue.Queue()
        if server is not None:
            with suppress(OSError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            for stream in (server.stdin, server.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
