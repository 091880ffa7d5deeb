"""``--weights`` of every command that runs a model: the model it runs is converted, and its answers are near."""

import json
from importlib import import_module

import numpy as np
import pytest
import typer

from model_commands import CASES, write_models
from regard.cli.app import app
from regard.errors import OptionError, RefusedError
from shell_command import error_message, output

NEAR = {"embed": "vector", "classify": "probabilities", "evaluate lm": "loss", "evaluate mlm": "loss"}
"""Fields with the numbers of a model, which nothing rounds or chooses by."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_models(tmp_path_factory.mktemp("weights"))


def commands(group, before=()):
    """The names of the commands of a group, and the names of their options."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*before, name))
        else:
            yield " ".join((*before, name)), {option for parameter in command.params for option in parameter.opts}


def test_commands_that_run_a_model_have_the_option():
    found = dict(commands(typer.main.get_command(app)))
    assert {name for name, options in found.items() if "--weights" in options} == set(CASES)
    others = {name for name, options in found.items() if "--device" in options} - set(CASES)
    assert {name.split()[0] for name in others} == {"audit", "bench", "conform", "train"}
    assert all("--device" in found[name] for name in CASES)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        pytest.param(name, arguments, id=f"{name} {' '.join(arguments[1:3])}")
        for name in CASES
        for arguments in CASES[name]
    ],
)
def test_the_model_is_converted(command, arguments, folder, monkeypatch):
    monkeypatch.chdir(folder)
    module, converted = import_module("regard.models.load"), []  # regard.models has a function of this name
    convert = module.convert_weights
    monkeypatch.setattr(module, "convert_weights", lambda *given: (converted.append(given[1]), convert(*given)))
    words = command.split()
    rounded = output(*words, *arguments, "--weights", "int8")
    assert converted == ["int8"]
    if command in NEAR and "clip" not in arguments:
        exact = output(*words, *arguments)
        found, expected = (np.array(list(numbers(text, NEAR[command]))) for text in (rounded, exact))
        assert 0 < np.linalg.norm(found - expected) / np.linalg.norm(expected) < 0.05
    assert "format of weights" in error_message(OptionError, *words, *arguments, "--weights", "int3")


def test_a_model_that_transformers_reads_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gemma"}')
    message = error_message(RefusedError, "view", "--model", tmp_path, "a text", "--weights", "int4")
    assert "is read by transformers, which has no int4 weights" in message
    assert "leave --weights out" in message


def numbers(text, field):
    """The numbers of a field, in all records of an output."""
    records = [json.loads(text)] if text.startswith("{\n") else map(json.loads, text.splitlines())
    for record in records:
        value = record[field]
        yield from value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
