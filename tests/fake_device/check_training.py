"""``regard train translate`` on the fake device: the losses of a run on the CPU, and an interrupted run."""

from __future__ import annotations

import json

import pytest
import torch
from accelerate.state import AcceleratorState, PartialState
from safetensors.torch import load_file
from typer.testing import CliRunner

from fake_device.device import DEVICE
from regard.cli.app import app
from small_translators import write_pairs

COMMON = ["--set", "layers=1", "--set", "width=32", "--warmup", "3", "--batch-tokens", "301", "--dtype", "float32",
          "--save-seconds", "0"]  # fmt: skip
KINDS = {"tiny": ["--model", "tiny", "--set", "inner=37"], "gru": ["--model", "gru", "--set", "hidden=28"]}


@pytest.fixture
def train(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PartialState, "default_device", property(lambda self: DEVICE))
    write_pairs(tmp_path / "pairs.tsv")

    def run_training(kind, out, *arguments):
        AcceleratorState._reset_state(reset_partial_state=True)
        command = ["train", "translate", "--data", "pairs.tsv", "--out", out, *COMMON, *KINDS[kind]]
        result = CliRunner(env={"COLUMNS": "100"}).invoke(app, [*command, *map(str, arguments)])
        assert result.exit_code == 0, result.exception
        return tmp_path / f"{out}.run"

    return run_training


def losses(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines]


def last_weights(run):
    return load_file(max((run / "checkpoints").iterdir()) / "weights.safetensors")


@pytest.mark.parametrize("kind", KINDS)
def test_losses_equal_those_on_the_cpu(train, kind):
    options = ["--steps", 20, "--set", "dropout=0", "--validate-every", 10]
    cpu_losses = losses(train(kind, "here", *options, "--device", "cpu"))
    assert len(cpu_losses) > 3
    assert losses(train(kind, "there", *options)) == pytest.approx(cpu_losses, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_run_ends_with_the_same_weights(train, kind):
    uninterrupted = last_weights(train(kind, "whole", "--steps", 5))
    train(kind, "cut", "--steps", 2)
    resumed = last_weights(train(kind, "cut", "--steps", 5, "--resume"))
    for name, weight in uninterrupted.items():
        assert torch.equal(resumed[name], weight), name
