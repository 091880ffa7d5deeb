"""The source distribution contains all files for building and testing, and no built or installed files."""

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"

# From "Stable Application Binary Interface" of CPython 3.12's documentation, the part that the extension calls.
STABLE_ABI = {
    "PyCapsule_GetPointer",
    "PyCapsule_IsValid",
    "PyDict_Next",
    "PyDict_Size",
    "PyErr_Clear",
    "PyObject_GetAttrString",
    "PyObject_Vectorcall",
}


def test_extension_calls_only_stable_abi_functions():
    """From Python 3.12 on, one wheel works for all versions; a call of any other function would not compile there."""
    sources = (ROOT / "src" / "regard" / "kernels" / "csrc").rglob("*.cpp")
    called = {call for file in sources for call in re.findall(r"\bPy[A-Z]\w*_\w+(?=\()", file.read_text("utf-8"))}
    assert called <= STABLE_ABI


@pytest.fixture(scope="module")
def sdist_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (archive,) = folder.iterdir()
    with tarfile.open(archive) as tar:
        return {name.partition("/")[2] for name in tar.getnames()}


def test_sdist_contains_the_build_files(sdist_files):
    assert {"pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "PKG-INFO"} <= sdist_files
    assert {"Makefile", "constraints.txt", "mkdocs.yml", ".ci/run"} <= sdist_files


@pytest.mark.parametrize("folder", ["src", "tests", "docs", "examples", "benchmarks"])
def test_sdist_contains_every_source_file(sdist_files, folder):
    built = {".so", ".pyd", ".pyc"}
    files = {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*") if path.is_file()}
    sources = {file for file in files if Path(file).suffix not in built}
    assert sources <= sdist_files
    assert {file for file in sdist_files if file.startswith(f"{folder}/")} == sources


def test_sdist_contains_no_other_folders(sdist_files):
    known = {"src", "tests", "docs", "examples", "benchmarks", ".ci"}
    assert {file.partition("/")[0] for file in sdist_files if "/" in file} == known
