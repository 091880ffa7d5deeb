"""Threads that switch after every bytecode instruction, so that races between them become visible."""

import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any


def run_interleaved(function: Callable[[int], None], count: int, *, files: tuple[str, ...]) -> None:
    """Call ``function`` with 0 to ``count - 1``, each in a thread; code of ``files`` yields at every instruction."""
    traced_files = set()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename.replace("\\", "/")
        if not name.endswith(files):
            return None
        traced_files.add(name)
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
    assert len(traced_files) == len(files), f"not all of {files} were executed: have they been renamed?"
