"""Every command that runs a model on the device under test, in float32: the words of the output on the CPU."""

from __future__ import annotations

import re

import pytest

from device_under_test import find_device_under_test
from model_commands import CASES, write_models
from shell_command import run

CALLS = [
    pytest.param(name, arguments, id=f"{name} {' '.join(map(str, arguments[1:3]))}")
    for name in CASES
    for arguments in CASES[name]
]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
TIME = re.compile(r"\d+(?:\.\d+)? (?:ms|s|µs)(?!\w)")
WITH_DTYPE = {"embed", "generate", "evaluate lm", "evaluate mlm"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_models(tmp_path_factory.mktemp("commands"))


def split_numbers(text):
    """The words and the numbers of an output, without times, by which columns are wider or narrower."""
    text = " ".join(TIME.sub("", text).split())
    return NUMBER.sub("#", text), [float(number) for number in NUMBER.findall(text)]


@pytest.mark.gpu
@pytest.mark.parametrize(("command", "arguments"), CALLS)
def test_output_is_that_of_the_cpu(command, arguments, folder, monkeypatch):
    monkeypatch.chdir(folder)
    words = [*command.split(), *arguments, *(["--dtype", "float32"] if command in WITH_DTYPE else [])]
    here, there = run(*words, "--device", "cpu"), run(*words, "--device", find_device_under_test())
    assert (here.exit_code, there.exit_code) == (0, 0), there.exception
    expected_words, expected_numbers = split_numbers(here.stdout)
    found_words, numbers = split_numbers(there.stdout)
    assert found_words == expected_words
    assert numbers == pytest.approx(expected_numbers, rel=2e-3, abs=2e-4)
