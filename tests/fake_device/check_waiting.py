"""Training on a device reads nothing from it between two reports: each reading would wait for all that it was asked."""

from __future__ import annotations

import json

import pytest
import torch
from accelerate.state import AcceleratorState, PartialState
from typer.testing import CliRunner

from fake_device import device
from fake_device.device import DEVICE
from regard.cli.app import app
from regard.train import loop, optimizers
from small_translators import write_pairs

_READING = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
OPTIONS = ["--model", "tiny", "--set", "layers=1", "--set", "width=32", "--set", "inner=37", "--set", "dropout=0",
           "--warmup", "3", "--batch-tokens", "301", "--dtype", "float32", "--steps", "20",
           "--validate-every", "10"]  # fmt: skip


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Train in this process, and return the losses, and the steps in which something was read from the device."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PartialState, "default_device", property(lambda self: DEVICE))
    write_pairs(tmp_path / "pairs.tsv")
    run, train_step, reading, steps = device._run_on_cpu, loop.Trainer._train_step, [], []

    def watched_run(function, args, kwargs):
        to_cpu = kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cpu"
        if function in _READING or (function is torch.ops.aten._to_copy.default and to_cpu):
            reading.append(function)
        return run(function, args, kwargs)

    def watched_step(trainer, batches):
        before = len(reading)
        train_step(trainer, batches)
        if len(reading) > before:
            steps.append((trainer.progress.step, reading[before:]))

    def watched_tolist(tensor):
        reading.append("tolist")
        return tensor.cpu_tensor.tolist()

    monkeypatch.setattr(device, "_run_on_cpu", watched_run)
    monkeypatch.setattr(device.DeviceTensor, "tolist", watched_tolist)
    monkeypatch.setattr(loop.Trainer, "_train_step", watched_step)

    def run_training(out, *options):
        AcceleratorState._reset_state(reset_partial_state=True)
        command = ["train", "translate", "--data", "pairs.tsv", "--out", out, *OPTIONS, *options]
        result = CliRunner(env={"COLUMNS": "100"}).invoke(app, command)
        assert result.exit_code == 0, result.exception
        lines = (tmp_path / f"{out}.run" / "metrics.jsonl").read_text().splitlines()
        found, steps[:] = dict(steps), []
        return [line["loss"] for line in map(json.loads, lines) if "gradient_norm" in line], found

    return run_training


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_steps_between_reports_read_nothing(train, optimizer, monkeypatch):
    losses, steps = train("waiting", "--optimizer", optimizer)
    assert set(steps) == set(range(1, 21))
    monkeypatch.setattr(optimizers, "_SKIPPING", (DEVICE.type,))
    others, steps = train("ahead", "--optimizer", optimizer)
    assert steps.keys() == {10, 20}, steps
    assert others == pytest.approx(losses, abs=1e-4)
