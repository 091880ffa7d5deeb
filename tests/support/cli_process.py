"""Start the ``regard`` command for tests: in its own process, on one thread and in UTF-8.

Starting takes more than a second, nearly all of it to import torch. So one process imports torch for all tests, and
most tests run their commands in forks of it. A fork has the streams, signals, limits and exit code of an ordinary
process.
A test needs a freshly started process (``START_COMMAND``) if it checks what is imported or uses environment variables
that are read at start, or if several processes must give equal results, since all forks have the same hash seed.
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
    """Return a command line like ``START_COMMAND``, or ``python -``, that runs in a fork; ``warnings`` is -W."""
    client = Path(__file__).with_name("fork_client.py")
    return [sys.executable, "-I", "-S", "-W", warnings, str(client), _start_fork_server(), program]


@cache
def _start_fork_server() -> str:
    """Start the fork server and return its socket address. It ends with this process."""
    server = Path(__file__).with_name("fork_server.py")
    process = subprocess.Popen(
        [sys.executable, str(server)],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # an interrupt of the tests must not reach it
    )
    atexit.register(process.communicate)
    assert process.stdout is not None
    return process.stdout.readline().rstrip()
