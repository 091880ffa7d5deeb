"""The pytest plugin in a project of its own: its fixture, and that it imports nothing before a test uses it."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TESTS = """
import sys


def test_without_the_fixture():
    assert not {"regard", "torch", "numpy"} & set(sys.modules)


def test_that_leaks(regard_audit):
    import torch

    def attention(query, key, value):
        hidden = torch.ones(query.shape[-2], query.shape[-2]).triu(2).bool()
        return (query @ key.mT).masked_fill(hidden, -torch.inf).softmax(-1) @ value

    regard_audit(attention, torch.randn(3, 1, 2, 7, 5).unbind(), causal=True)


def test_that_holds(regard_audit):
    import torch

    assert regard_audit(torch.nn.Linear(5, 5), torch.randn(1, 7, 5)).exit_code == 0
"""


def test_the_plugin_in_a_fresh_project(tmp_path: Path) -> None:
    (tmp_path / "test_model.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "pytest_regard",
        "-W",
        "error",
        "--tb=short",
        "--regard-pages=pages",
    ]
    # Of other plugins that are installed, jaxtyping's would import regard's packages before the tests.
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stdout + result.stderr
    pages = sorted(page.name for page in (tmp_path / "pages").iterdir())
    assert pages == ["test_model.py-test_that_holds-1.html", "test_model.py-test_that_leaks-1.html"]
    assert "1 failed, 2 passed" in result.stdout, result.stdout
    assert "causal" in result.stdout
    assert "LEAKS" in result.stdout
    assert "regard/" not in result.stdout, "the traceback ends in the test"


def test_pytest_finds_the_plugin_by_an_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["entry-points"]["pytest11"] == {"pytest_regard": "pytest_regard"}
    assert "src/pytest_regard" in project["tool"]["scikit-build"]["wheel"]["packages"]
