"""A dataclass as one parameter of a command: its fields are options, in their order, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

import regard.train
from regard.cli.app import app
from regard.cli.option_group import expand_option_group
from regard.train.reports import TerminalReport


@dataclass(frozen=True)
class Shape:
    width: Annotated[int, typer.Option("--width", min=1)] = 3
    angle: float = 0.0
    colour: Annotated[str, typer.Option("--colour")] = "red"


@dataclass(frozen=True)
class Slanted(Shape):
    angle: Annotated[float, typer.Option("--angle")] = 0.5


@expand_option_group
def draw(name: str, *, shape: Shape, copies: int = 1) -> None:
    """Draw a shape."""
    print(name, shape, copies)


@expand_option_group
def slant(*, shape: Slanted) -> None:
    """Draw a slanted shape."""
    print(shape)


def run(command, *arguments):
    shell = typer.Typer()
    shell.command()(command)
    return CliRunner().invoke(shell, arguments)


def test_options_of_a_group_stand_at_its_place_and_reach_the_command():
    assert run(draw, "a", "--width", "7", "--copies", "2").output == "a Shape(width=7, angle=0.0, colour='red') 2\n"
    help_text = run(draw, "--help").output
    assert help_text.index("--width") < help_text.index("--colour") < help_text.index("--copies")
    assert "Draw a shape." in help_text


def test_a_field_is_an_option_only_where_a_class_declares_it_as_one():
    assert run(draw, "a", "--angle", "2").exit_code == 2
    assert run(slant, "--angle", "2").output == "Slanted(width=3, angle=2.0, colour='red')\n"
    help_text = run(slant, "--help").output
    assert help_text.index("--width") < help_text.index("--angle") < help_text.index("--colour")


@pytest.mark.parametrize("task", ["lm", "mlm", "classify", "translate"])
def test_options_of_training_reach_the_settings_of_the_run(monkeypatch, task):
    seen = []
    monkeypatch.setattr(
        regard.train, "run", lambda task, settings, out, **options: seen.append((settings, out, options)) or exit(0)
    )
    numbers = {
        "accumulate": 3, "rate": 0.25, "warmup": 7, "clip": 2.5, "weight-decay": 0.125, "epochs": 11, "steps": 13,
        "minutes": 17.0, "patience": 19, "validate-every": 23, "average": 29, "save-seconds": 31.0, "seed": 37,
    }  # fmt: skip
    options = [word for name, number in numbers.items() for word in (f"--{name}", str(number))]
    words = ["--schedule", "constant", "--dtype", "float32", "--device", "cpu", "--resume", "--checkpoint-activations"]
    CliRunner().invoke(app, ["train", task, "--data", "texts", "--out", "model", *options, *words])
    ((settings, out, rest),) = seen
    schedule = settings.schedule
    assert (schedule.name, schedule.peak, schedule.warmup, schedule.steps) == ("constant", 0.25, 7, None)
    for name in numbers.keys() - {"rate", "warmup"}:
        assert getattr(settings, name.replace("-", "_")) == numbers[name], name
    assert settings.precision == "float32"
    assert settings.checkpoint_activations is True
    assert isinstance(rest.pop("report"), TerminalReport)
    assert (out, rest) == (Path("model"), {"resume": True, "overwrite": False, "device": "cpu"})
