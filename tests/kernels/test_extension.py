"""A missing or broken compiled module: one warning gives the reason and what to do, and "auto" continues.

Each test uses a copy of the package with another file in place of the module, in a separate process.
"""

import json
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import regard
from regard.kernels import extension
from script_process import run_script

SOURCE = Path(regard.__file__).parent
OWN = "_native" + EXTENSION_SUFFIXES[0]
OTHER = "_native.cpython-39-riscv64-linux-gnu.so"


@pytest.fixture
def run(tmp_path):
    """Run a script with a copy of the package in which a file of that name and content replaces the module."""

    def run_with_module(script: str, file: str | None, content: bytes = b"") -> subprocess.CompletedProcess[str]:
        built = shutil.ignore_patterns("_native*.so", "_native*.pyd", "csrc", "__pycache__")
        package = shutil.copytree(SOURCE, tmp_path / "regard", ignore=built)
        if file is not None:
            (package / "kernels" / file).write_bytes(content)
        return run_script(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{script}")

    return run_with_module


USE = """
import torch, regard
query = torch.randn(1, 2, 5, 7)
print(regard.why(query, query, query))
for _ in range(3):
    regard.attention(query, query, query)
print(regard.observe(query, query, query).output.isfinite().all().item())
regard.attention(query, query, query, impl="native")
"""


def test_missing_module_warns_once_and_auto_continues(run):
    result = run(USE, None)
    assert "auto takes sdpa" in result.stdout, result.stderr
    assert "  not native: its extension was not built" in result.stdout
    assert "True" in result.stdout
    assert result.stderr.count("RuntimeWarning: regard's own kernels are missing: its extension was not built") == 1
    assert result.stderr.count("To do: install a wheel of regard") == 1
    assert "RefusedError: impl 'native' refuses: its extension was not built" in result.stderr


LIST = "import sys; sys.argv = ['regard', 'list', '--json']; from regard.cli.app import main; main()"


def test_list_names_a_broken_module(run):
    result = run(LIST, OWN, b"\x7fELF of no use")
    rows = {row["impl"]: row for row in json.loads(result.stdout)["implementations"]}
    assert rows["native"]["available"] is False
    assert rows["native"]["details"].startswith(f"its extension {OWN} cannot be loaded: "), rows
    assert rows["reference"]["available"] is True
    assert "RuntimeWarning" not in result.stderr  # nothing was computed


OTHER_INTERFACE = """
from importlib.util import find_spec
from pathlib import Path
loader = Path(find_spec("regard").origin).parent / "kernels" / "extension.py"
loader.write_text(loader.read_text().replace("_INTERFACE = ", "_INTERFACE = 1000 + "))
"""


def test_module_with_another_interface_is_not_called(run):
    """As after an update of only the Python files."""
    result = run(OTHER_INTERFACE + LIST, OWN, Path(extension.native.__file__).read_bytes())
    (native,) = (row for row in json.loads(result.stdout)["implementations"] if row["impl"] == "native")
    assert native["available"] is False
    numbers = f"its interface is {extension.native.interface}, and {1000 + extension.native.interface} is needed"
    assert f"{numbers}); build it again with `pip install .`" in native["details"]


def test_module_for_another_python_is_named(run):
    result = run("from regard.kernels import extension; print(extension.missing_reason)", OTHER)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert result.stdout.strip() == f"its extension was built for another Python or system than this {version}: {OTHER}"
