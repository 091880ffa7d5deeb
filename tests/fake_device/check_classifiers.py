"""Classifiers on the fake device: probabilities, training and views equal those on the CPU."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState, PartialState
from typer.testing import CliRunner

from fake_device.device import DEVICE, DeviceTensor
from regard.classification import Classifier
from regard.cli.app import app
from regard.view import read
from small_classifiers import TEXTS, classifier, write_texts

OPTIONS = {
    "mean": {},
    "cls": {"pooling": "cls", "position": "learned"},
    "several": {"several": True, "position": "t5"},
    "linear": {"mechanism": "linear"},
    "linformer": {"mechanism": "linformer", "mechanism_options": {"projected": 7}},
}


def make_on_both_devices(name):
    """Build the same classifier on the CPU and on the fake device."""
    made = [classifier(**OPTIONS[name]) for _ in range(2)]
    made[1].to(DEVICE)
    assert all(isinstance(weight, DeviceTensor) for weight in made[1].parameters())
    return made


@pytest.mark.parametrize("name", OPTIONS)
def test_probabilities_equal_those_on_the_cpu(name):
    here, there = (Classifier(model).probabilities([*TEXTS, "dog"]) for model in make_on_both_devices(name))
    torch.testing.assert_close(there, here, rtol=0, atol=1e-5)


def test_view_equals_that_on_the_cpu():
    here, there = (read(model, TEXTS[0]) for model in make_on_both_devices("cls"))
    assert dict(there.answer.probabilities) == pytest.approx(dict(here.answer.probabilities), abs=1e-5)
    for one, other in zip(here.layers, there.layers, strict=True):
        np.testing.assert_allclose(other.weights(), one.weights(), atol=1e-5)


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Train on the fake device, or with ``--device cpu`` on the CPU, and return the losses."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PartialState, "default_device", property(lambda self: DEVICE))
    write_texts(tmp_path / "texts.tsv")
    sizes = ["--set", "layers=1", "--set", "width=32", "--set", "inner=37", "--set", "dropout=0"]

    def train(out, *arguments):
        AcceleratorState._reset_state(reset_partial_state=True)
        command = ["train", "classify", "--data", "texts.tsv", "--out", out, *sizes, "--vocabulary", 350]
        command += ["--steps", 20, "--warmup", 3, "--validate-every", 10, "--dtype", "float32", *arguments]
        result = CliRunner(env={"COLUMNS": "100"}).invoke(app, [str(one) for one in command])
        assert result.exit_code == 0, result.exception
        lines = (tmp_path / f"{out}.run" / "metrics.jsonl").read_text().splitlines()
        return [line["loss"] for line in map(json.loads, lines)]

    return train


@pytest.mark.parametrize("more", [[], ["--class-weights", "balanced"], ["--labels", "several"]], ids="".join)
def test_losses_equal_those_on_the_cpu(train, more):
    here = train("here", "--device", "cpu", *more)
    assert len(here) > 3
    assert train("there", *more) == pytest.approx(here, abs=1e-3)
