"""Code that runs on any device, run on one that is not there; in a process of its own, which then has such a device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).parent


@pytest.mark.parametrize(
    "check",
    [
        "check_layers",
        pytest.param("check_promises", marks=pytest.mark.slow),
        pytest.param("check_training", marks=pytest.mark.slow),
        pytest.param("check_translators", marks=pytest.mark.slow),
    ],
)
def test_fake_device(check):
    """Without plugins and the suite's shape checks, which take time and say nothing of devices."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=--strict-markers"]
    command.append(str(CHECKS / f"{check}.py"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, done.stdout
