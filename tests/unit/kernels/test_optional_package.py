"""Packages of kernels that are absent, too old or broken: why they cannot be used, and what is used instead."""

import pytest
import torch

from regard.kernels import select
from regard.kernels.implementations import flex, scan_fla, triton
from regard.kernels.optional_package import find_problem
from regard.kernels.request import Request, Terms
from regard.kernels.select import explain_choice
from regard.masks import causal


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write a package whose name no other test uses: ``find_problem`` remembers what it found."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, text, **modules):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
        for module, of_module in modules.items():
            (tmp_path / name / f"{module}.py").write_text(of_module)
        return name

    return write


def test_a_package_that_is_not_there():
    assert find_problem("no_kernels_at_all") == "the package no_kernels_at_all is not installed"


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("3.7.1", None),
        ("3.10.0", None),
        ("4.0", None),
        ("3.7.0+git1b2c", None),
        ("3.6.9", "3.7 or later is needed, and 3.6.9 is installed"),
        ("2.11.0", "3.7 or later is needed, and 2.11.0 is installed"),
        ("", "3.7 or later is needed, and an unknown version is installed"),
    ],
)
def test_versions(package, version, problem):
    name = package(f"kernels_{version.replace('.', '_').replace('+', '_')}", f"__version__ = {version!r}")
    assert find_problem(name, minimum=(3, 7)) == (None if problem is None else f"{name} {problem}")
    assert find_problem(name) is None


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("without_driver", "raise ImportError('libcuda.so.1: cannot open')", "ImportError: libcuda.so.1: cannot open"),
        ("without_device", "raise RuntimeError('0 active drivers')", "RuntimeError: 0 active drivers"),
        ("without_others", "import a_missing_package", "No module named 'a_missing_package'"),
    ],
)
def test_packages_that_cannot_be_imported(package, name, text, reason):
    problem = find_problem(package(name, text))
    assert problem.startswith(f"the package {name} cannot be imported: ")
    assert reason in problem


def test_modules_that_are_missing_or_broken(package):
    name = package("kernels_in_parts", "", good="", bad="raise ValueError('no device')")
    assert find_problem(name, (f"{name}.good",)) is None
    assert find_problem(name, (f"{name}.good", f"{name}.bad")).endswith("ValueError: no device")
    assert "No module named 'kernels_in_parts.newer'" in find_problem(name, (f"{name}.newer",))


@pytest.mark.parametrize(("module", "operation"), [(triton, "observe"), (flex, "attention")])
def test_auto_takes_another_implementation_where_triton_is_broken(module, operation, monkeypatch):
    """Rather than one that would fail in the middle of a call. The tensors pass for tensors on a GPU."""
    for of_device in (triton, flex):
        monkeypatch.setattr(of_device, "_device_refusal", lambda target: None)
    refusal = "the package triton cannot be imported: ImportError"
    monkeypatch.setattr(module, "find_problem", lambda *names, **options: refusal)
    others = tuple(choice for choice in select._IMPLEMENTATIONS[operation] if choice.name != "native")
    monkeypatch.setitem(select._IMPLEMENTATIONS, operation, others)
    query = torch.zeros(1, 2, 389, 16)
    choice = explain_choice(operation, Request(query, query, query, Terms(softcap=3.0, mask=causal())))
    assert choice.impl == "reference"
    assert choice.reasons[module.BACKEND.name] == refusal


def test_fla_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(scan_fla, "find_spec", lambda name: None)
    assert "pip install" in scan_fla.package_problem()
    monkeypatch.setattr(scan_fla, "find_spec", lambda name: object())
    monkeypatch.setattr(scan_fla, "find_problem", lambda *names: names)
    name, modules, minimum = scan_fla.package_problem()
    assert (name, minimum) == ("fla", (0, 6))
    assert "fla.ops.kda" in modules
