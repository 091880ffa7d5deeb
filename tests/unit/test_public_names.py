"""The public names of ``regard``, which are imported when they are first used."""

import ast
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from script_process import run_script

ROOT = Path(regard.__file__).parent
PARSED = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
MODULES = {"masks", "positions"}


def names_for_type_checkers():
    """Return the imports under TYPE_CHECKING: the module of each name."""
    (block,) = (one for one in PARSED.body if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING")
    imports = [one for one in block.body if isinstance(one, ast.ImportFrom)]
    return {name.name: one.module for one in imports for name in one.names}


def run_python(program):
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def run_with_torch(program):
    """Run a program in a process that has imported torch, which takes most of a start, and not regard."""
    return run_script(f"import warnings\nwarnings.simplefilter('error')\n{program}")


def test_type_checkers_see_the_names_that_are_imported_late():
    expected = names_for_type_checkers()
    assert set(expected) == set(regard.__all__)
    assert {name: module for name, module in expected.items() if name not in MODULES} == regard._MODULES


def test_no_module_has_the_name_of_a_function():
    """Importing it would replace the function."""
    modules = {path.stem for path in ROOT.iterdir()}
    assert modules & set(regard.__all__) == MODULES


def test_every_name_is_found_and_listed():
    assert sorted(regard.__all__) == list(regard.__all__)
    for name in regard.__all__:
        assert name in dir(regard)
        found = getattr(regard, name)
        assert getattr(found, "__module__", None) == regard._MODULES.get(name)
    assert "__version__" in dir(regard)


@pytest.mark.parametrize("name", [name for name in regard.__all__ if name not in MODULES])
def test_names_are_pickled_by_reference(name):
    assert pickle.loads(pickle.dumps(getattr(regard, name))) is getattr(regard, name)


def test_importing_regard_imports_no_torch_until_a_name_is_used():
    program = """
import sys, regard
assert "torch" not in sys.modules and "regard.errors" not in sys.modules
assert callable(regard.attention) and "torch" in sys.modules
"""
    result = run_python(program)
    assert result.returncode == 0, result.stderr


def test_importing_every_public_module_does_not_import_the_compiler_of_torch():
    modules = ", ".join(sorted({name for name in regard._MODULES.values() if name != "regard.hf"}))
    program = f"""
import sys, {modules}, regard.models, regard.view, regard.cli.app
assert "torch._dynamo" not in sys.modules, "it takes a second of every start"
"""
    result = run_python(program)
    assert result.returncode == 0, result.stderr


def test_modules_do_not_replace_functions():
    modules = ", ".join(sorted(set(regard._MODULES.values()) | {"regard.models.load", "regard.kernels"}))
    program = f"""
import {modules}
from regard import *
from regard import attention as imported
assert imported is attention is regard.attention
assert all(callable(one) for one in (attention, observe, record, load, mechanism, catalogue, why))
assert regard.masks is masks and regard.layers.MultiHeadAttention is MultiHeadAttention
"""
    result = run_with_torch(program)
    assert result.returncode == 0, result.stderr


def test_unknown_names_have_no_attribute():
    for name in ("nothing", "_nothing", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"module 'regard' has no attribute '{name}'"):
            getattr(regard, name)
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from regard import nothing")


def test_submodules_are_imported_when_used():
    program = "import regard; print(regard.errors.ShapeError.__name__, regard.train.Settings.__name__)"
    assert run_with_torch(program).stdout == "ShapeError Settings\n"


def test_a_package_that_a_submodule_lacks_is_named(monkeypatch):
    """The submodule is there, so it is no unknown name."""
    monkeypatch.delitem(sys.modules, "regard.train", raising=False)
    monkeypatch.delattr(regard, "train", raising=False)
    monkeypatch.setattr(regard, "_import_module", lambda name: exec("import package_that_is_not_there"))
    with pytest.raises(ModuleNotFoundError, match="package_that_is_not_there"):
        regard.train  # noqa: B018
