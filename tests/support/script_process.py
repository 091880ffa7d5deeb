"""Run scripts in separate processes, forked from one that has imported torch, which takes most of a start.

That process does nothing else. So in a script torch has started no threads, regard is not imported and no kernels are
selected. A script has its own environment, except for variables that torch reads when it loads, such as
OMP_NUM_THREADS.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
if sys.platform == "linux":
    # The latter are imported by backward passes, by torch.compile and by DistributedDataParallel: a second in each.
    _CONTEXT.set_forkserver_preload(
        [
            "torch",
            "torch.fx.experimental.symbolic_shapes",
            "torch._dynamo.convert_frame",
            "torch._dynamo.backends.debugging",
        ]
    )


def run_script(
    script: str, *, environment: Mapping[str, str] = os.environ, timeout: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """Return the exit status and output, as ``subprocess.run([sys.executable, "-c", script])`` does.

    The script has the tests' module path. Raises subprocess.TimeoutExpired after ``timeout`` seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        stdout, stderr = Path(folder, "stdout"), Path(folder, "stderr")
        process = _CONTEXT.Process(target=_execute, args=(script, dict(environment), (str(stdout), str(stderr))))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(script, timeout)
        outputs = stdout.read_text(encoding="utf-8"), stderr.read_text(encoding="utf-8")
    return subprocess.CompletedProcess(script, process.exitcode, *outputs)


def _execute(script: str, environment: Mapping[str, str], outputs: tuple[str, str]) -> None:
    for descriptor, file in zip((1, 2), outputs, strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    exec(compile(script, "script", "exec"), {"__name__": "__main__"})
