"""Run device-independent code on a fake device, in a process of its own, because the fake device is process-wide."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cli_process import ENVIRONMENT, fork_command

CHECKS = Path(__file__).parent
PROGRAM = """
import sys, pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-o", "addopts=--strict-markers", {file!r}]))
"""


@pytest.mark.parametrize(
    "check",
    [
        "check_layers",
        pytest.param("check_commands", marks=pytest.mark.slow),
        pytest.param("check_classifiers", marks=pytest.mark.slow),
        pytest.param("check_promises", marks=pytest.mark.slow),
        pytest.param("check_training", marks=pytest.mark.slow),
        pytest.param("check_waiting", marks=pytest.mark.slow),
        pytest.param("check_translators", marks=pytest.mark.slow),
    ],
)
def test_fake_device(check):
    """Runs without plugins and shape checks, which take time and do not concern devices."""
    environment = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("PYTEST")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    program = PROGRAM.format(file=str(CHECKS / f"{check}.py"))
    result = subprocess.run(
        [*fork_command("python"), "-"],
        input=program,
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
