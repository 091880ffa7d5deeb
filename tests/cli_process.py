"""The ``regard`` command as tests start it: in a process of its own, on one thread and in UTF-8.

A start takes more than a second, nearly all of it to import torch. So one process imports it for all tests, and most
of them run their commands in forks of that one. Streams, signals, limits, exit code and end are those of any process.
What only a start shows takes one of its own: what is imported, and variables that are read then. So does what has to
come out the same in several processes, since forks hash alike.
"""

import atexit
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
START_COMMAND = [sys.executable, "-c", "from regard.cli.app import main; main()"]


def fork_command(program: str = "regard", *, warnings: str = "default") -> list[str]:
    """A command that starts as ``START_COMMAND`` does, or a Python program from standard input; ``warnings`` is -W."""
    client = Path(__file__).with_name("fork_client.py")
    return [sys.executable, "-I", "-S", "-W", warnings, str(client), _start_fork_server(), program]


@cache
def _start_fork_server() -> str:
    """The address of the process that forks. It ends with this one."""
    server = Path(__file__).with_name("fork_server.py")
    process = subprocess.Popen(
        [sys.executable, str(server)],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # what interrupts the tests is not for it
    )
    atexit.register(process.communicate)
    assert process.stdout is not None
    return process.stdout.readline().rstrip()
