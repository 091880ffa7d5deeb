"""Scripts in processes of their own, each forked from one that has imported torch: most of the time that a start takes.

That process does nothing else. So a script finds no threads of torch's, nothing of regard imported and no kernels
chosen. Its environment is its own, but for what is read when torch is loaded, such as OMP_NUM_THREADS.
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
    _CONTEXT.set_forkserver_preload(["torch", "torch.fx.experimental.symbolic_shapes"])  # which backward passes import


def run_script(
    script: str, *, environment: Mapping[str, str] = os.environ, timeout: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """The exit status and what was written, as from ``subprocess.run([sys.executable, "-c", script])``.

    The script finds modules where the tests do. Raises subprocess.TimeoutExpired after ``timeout`` seconds.
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
        written = stdout.read_text(encoding="utf-8"), stderr.read_text(encoding="utf-8")
    return subprocess.CompletedProcess(script, process.exitcode, *written)


def _execute(script: str, environment: Mapping[str, str], outputs: tuple[str, str]) -> None:
    for descriptor, file in zip((1, 2), outputs, strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    exec(compile(script, "script", "exec"), {"__name__": "__main__"})
