"""The ``regard`` command as tests start it: in a process of its own, on one thread and in UTF-8."""

import os
import sys

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
START = [sys.executable, "-c", "from regard.cli.app import main; main()"]
