"""Run device-independent code on a fake device, in a separate process, because the fake device is process-wide."""

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
        pytest.param("check_classifiers", marks=pytest.mark.slow),
        pytest.param("check_promises", marks=pytest.mark.slow),
        pytest.param("check_training", marks=pytest.mark.slow),
        pytest.param("check_translators", marks=pytest.mark.slow),
    ],
)
def test_fake_device(check):
    """Runs without plugins and shape checks, which take time and do not concern devices."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=--strict-markers"]
    command.append(str(CHECKS / f"{check}.py"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert result.returncode == 0, result.stdout
