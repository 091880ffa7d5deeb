"""Run a command as a process of its own, and measure what it took."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence


def run_and_measure(command: Sequence[str]) -> tuple[float, float]:
    """Run a command, and return the peak memory of its process in GB and the processor time of its threads in seconds.

    Exits with the command's own code if that is not 0: the command has said why. An interruption from the terminal
    reaches the command too, which may have something to save, and is then waited for.
    """
    process = subprocess.Popen(command)
    try:
        _, status, usage = os.wait4(process.pid, 0)  # this process only; getrusage has the maximum over all
    except KeyboardInterrupt:
        sys.exit(process.wait() or 130)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(process.returncode)
    return usage.ru_maxrss * 1024 / 1e9, usage.ru_utime + usage.ru_stime
