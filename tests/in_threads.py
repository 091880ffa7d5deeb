"""Threads that take turns after every step of the interpreter: what two can do to each other, they do."""

import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any


def in_threads(function: Callable[[int], None], count: int, *, files: tuple[str, ...]) -> None:
    """Call ``function`` with 0 to ``count - 1`` in a thread each. In ``files`` another thread goes on at every step."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.replace("\\", "/").endswith(files):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            time.sleep(0)
        return trace

    threads = [threading.Thread(target=function, args=(number,)) for number in range(count)]
    before = threading.gettrace()
    threading.settrace(trace)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.settrace(before)  # type: ignore[arg-type]
