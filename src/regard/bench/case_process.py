"""A program that measures the peak memory of cases, each in a process of its own.

It imports regard once, reads one case per line from standard input, and forks for each. A fork has fresh memory: no
allocator holds what an earlier case freed. It writes JSON lines:

    {"started": process id}     the case is prepared, and its one call begins
    {"bytes": .., "seconds": ..}, {"refused": reason} or {"failed": reason}

``bytes`` is what the call added to the resident memory at its highest point: output and temporary memory, but not the
tokens. A limit of the process's memory makes an allocation fail before the system kills other processes.

Why a call failed, in one line.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from regard.available_memory import available_memory
from regard.bench.problem import make_call, make_tokens
from regard.bench.settings import BenchSettings
from regard.comparison import MechanismChoice
from regard.errors import RegardError, class_and_line

_WARM_UP_LENGTH = 8
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


def main() -> None:
    """Measure a case for each line of standard input."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _measure_and_exit(json.loads(line))
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            _write({"failed": f"its process was ended by signal {os.WTERMSIG(status)}"})
        elif os.WEXITSTATUS(status) != 0:
            _write({"failed": "its process ended without a result"})


def _measure_and_exit(case: dict[str, Any]) -> None:
    """Measure one case and end this fork, without the shutdown of the interpreter."""
    try:
        settings = BenchSettings(**case["settings"])
        found = _measure(settings, MechanismChoice(case["name"], case["options"]), case["length"])
    except RegardError as error:
        found = {"refused": error.what}
    except Exception as error:  # any error of a case is reported, and the next case runs
        found = {"failed": describe_failure(error)}
    _write(found)
    os._exit(0)


def _measure(settings: BenchSettings, choice: MechanismChoice, length: int) -> dict[str, Any]:
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    sizes = {"heads": settings.heads, "head_dim": settings.head_dim, "seed": settings.seed}
    small = make_tokens(settings, _WARM_UP_LENGTH)
    # The first call in a process starts threads and chooses instructions.
    make_call(choice.build(length=_WARM_UP_LENGTH, **sizes), small, settings.mask, backward=settings.backward)()
    mechanism, tokens = choice.build(length=length, **sizes), make_tokens(settings, length)
    call = make_call(mechanism, tokens, settings.mask, backward=settings.backward)
    _limit_memory()
    gc.collect()
    if _CLEAR_REFS.exists():
        _CLEAR_REFS.write_text("5", encoding="ascii")  # resets the peak to the current memory
    before = _read_peak_memory()
    signal.alarm(int(settings.stop_seconds) + 60)  # ends this process if the program that waits for it was killed
    _write({"started": os.getpid()})
    start = time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    return {"bytes": max(0, _read_peak_memory() - before), "seconds": seconds}


def _read_peak_memory() -> int:
    """Read the peak resident memory so far, in bytes."""
    if _STATUS.exists():
        (line,) = (line for line in _STATUS.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def _limit_memory() -> None:
    """Limit the memory of this process to what it has and what it may use more."""
    room = available_memory()
    if room is None or not _STATUS.exists():
        return
    (line,) = (line for line in _STATUS.read_text(encoding="utf-8").splitlines() if line.startswith("VmData"))
    limit = int(line.split()[1]) * 1024 + room
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))


def _write(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()


def describe_failure(error: BaseException) -> str:
    """Describe an error of a call; torch raises RuntimeError if memory runs out."""
    if isinstance(error, RegardError):
        return f"{error.what} (got {error.got})"
    text = str(error)
    if isinstance(error, MemoryError) or "alloc" in text or "out of memory" in text.lower():
        return "not enough memory"
    return class_and_line(error, 200)
