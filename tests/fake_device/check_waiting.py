"""Training on a device does not wait for it between two reports.

To read from a GPU takes a wait for all that it was asked before, and so does a copy to it from memory that is not
pinned.
"""

from __future__ import annotations

import json

import pytest
import soundfile
import torch
from accelerate.state import AcceleratorState, PartialState
from typer.testing import CliRunner

from captioned_files import write_captioned
from cli.test_train_clip_process import SET as CLIP_SIZES
from cli.test_train_sounds_process import SET as SOUND_SIZES
from fake_device import device
from fake_device.device import DEVICE
from picture_files import write_folders
from regard import copy_to_device
from regard.cli.app import app
from regard.train import loop, optimizers
from small_classifiers import write_texts
from small_language_models import write_documents
from small_translators import write_pairs
from sound_files import tone
from spelled_tones import write_spelled

_ATEN = torch.ops.aten
_READING = (
    _ATEN._local_scalar_dense.default,
    _ATEN.nonzero.default,
    _ATEN.masked_select.default,
    _ATEN.bincount.default,
    _ATEN.equal.default,
    _ATEN._unique2.default,
    _ATEN.repeat_interleave.Tensor,
)
"""Operations that read from a device, most of them the size of their result."""
_INDEXING = (
    _ATEN.index.Tensor,
    _ATEN.index_put.default,
    _ATEN.index_put_.default,
    _ATEN._index_put_impl_.default,
)
"""Operations that do with an index of bools."""
SIZES = ["--set", "layers=1", "--set", "width=32"]
COMMON = ["--warmup", "3", "--dtype", "float32", "--steps", "20", "--validate-every", "10"]
BLOCKS = ["--data", "texts", "--batch", "7", "--block", "31", "--vocabulary", "290", *SIZES]
TRANSLATE = ["translate", "--data", "pairs.tsv", "--batch-tokens", "301", "--model", "tiny", "--set", "inner=37",
             "--set", "dropout=0", *SIZES]  # fmt: skip
PICTURES = ["classify", "--data", "shapes", "--set", "heads=2", "--batch", "16", *SIZES]
TASKS = {
    "lm": ["lm", *BLOCKS],
    "lm, llama": ["lm", "--model", "llama", *BLOCKS],
    "mlm": ["mlm", *BLOCKS],
    "mlm, modernbert": ["mlm", "--model", "modernbert", *BLOCKS],
    "texts": ["classify", "--data", "texts.tsv", "--set", "inner=37", "--batch", "17", "--vocabulary", "350", *SIZES],
    "pictures": PICTURES,
    "pictures, strong": [*PICTURES, "--augment", "strong"],
    "sounds": ["classify", "--data", "tones", *SOUND_SIZES, "--batch", "16"],
    "clip": ["clip", "--data", "photos", *CLIP_SIZES, "--batch", "16"],
    "gato": ["gato", "--task", "Pendulum-v1", "--text", "texts", "--pictures", "shapes", "--set", "inner=37",
             "--set", "patch_channels=8", "--experience", "211", "--batch", "5", "--length", "47", "--games", "1",
             *SIZES],
}  # fmt: skip
WAITING_TASKS = {
    "gru": ["translate", "--data", "pairs.tsv", "--batch-tokens", "301", "--model", "gru", "--set", "hidden=28",
            *SIZES],
    "transcribe": ["transcribe", "--data", "letters", *SOUND_SIZES, "--batch", "16"],
}  # fmt: skip
"""Torch sorts the texts of recurrent layers by their length, and a CTC loss reads the lengths of sounds."""


def is_waiting(function, args, kwargs):
    """Whether an operation waits for the device."""
    if function in _READING:
        return True
    if function in _INDEXING:
        return any(isinstance(index, device.DeviceTensor) and index.dtype is torch.bool for index in args[1])
    if function is _ATEN.copy_.default:
        is_copied = isinstance(args[0], device.DeviceTensor) != isinstance(args[1], device.DeviceTensor)
        return is_copied and not (args[2] if len(args) > 2 else kwargs.get("non_blocking"))
    if function is not _ATEN._to_copy.default or kwargs.get("device") is None:
        return False
    is_copied = isinstance(args[0], device.DeviceTensor) != (torch.device(kwargs["device"]).type == DEVICE.type)
    return is_copied and not kwargs.get("non_blocking")


def write_data(folder):
    write_pairs(folder / "pairs.tsv")
    write_documents(folder / "texts", 211)
    write_texts(folder / "texts.tsv")
    write_folders(folder / "shapes", count=7)
    write_captioned(folder / "photos", 46)
    write_spelled(folder / "letters", 46)
    for label, hertz in (("high", 1500), ("low", 300)):
        (folder / "tones" / label).mkdir(parents=True)
        for number in range(13):
            soundfile.write(
                folder / "tones" / label / f"{number}.wav", tone(0.3, hertz=hertz * (1 + number / 50)), 8000
            )


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Train in this process, and return the losses, and the steps in which something waited for the device."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PartialState, "default_device", property(lambda self: DEVICE))
    monkeypatch.setattr(copy_to_device, "_PINNED", (DEVICE.type,))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    write_data(tmp_path)
    run, train_step, waiting, steps = device._run_on_cpu, loop.Trainer._train_step, [], []
    make_tensor = torch.tensor

    def watched_run(function, args, kwargs):
        if is_waiting(function, args, kwargs):
            waiting.append(function)
        return run(function, args, kwargs)

    def watched_step(trainer, batches):
        before = len(waiting)
        train_step(trainer, batches)
        if len(waiting) > before:
            steps.append((trainer.progress.step, waiting[before:]))

    def watched_tensor(numbers, **options):  # made on the CPU, and copied
        if torch.device(options.get("device") or "cpu").type == DEVICE.type:
            waiting.append("tensor")
        return make_tensor(numbers, **options)

    def watched_tolist(tensor):
        waiting.append("tolist")
        return tensor.cpu_tensor.tolist()

    monkeypatch.setattr(torch, "tensor", watched_tensor)
    monkeypatch.setattr(device, "_run_on_cpu", watched_run)
    monkeypatch.setattr(device.DeviceTensor, "tolist", watched_tolist)
    monkeypatch.setattr(loop.Trainer, "_train_step", watched_step)

    def run_training(out, *options):
        AcceleratorState._reset_state(reset_partial_state=True)
        result = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["train", *options, *COMMON, "--out", out])
        assert result.exit_code == 0, result.exception
        lines = (tmp_path / f"{out}.run" / "metrics.jsonl").read_text().splitlines()
        found, steps[:] = dict(steps), []
        return [line["loss"] for line in map(json.loads, lines) if "gradient_norm" in line], found

    return run_training


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_steps_between_reports_wait_for_nothing(train, optimizer, monkeypatch):
    losses, steps = train("waiting", *TRANSLATE, "--optimizer", optimizer)
    assert set(steps) == set(range(1, 21))
    monkeypatch.setattr(optimizers, "_SKIPPING", (DEVICE.type,))
    others, steps = train("ahead", *TRANSLATE, "--optimizer", optimizer)
    assert steps.keys() == {10, 20}, steps
    assert others == pytest.approx(losses, abs=1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_steps_of_each_task_wait_for_nothing(train, task, monkeypatch):
    monkeypatch.setattr(optimizers, "_SKIPPING", (DEVICE.type,))
    _, steps = train("model", *TASKS[task])
    assert steps.keys() == {10, 20}, steps


@pytest.mark.parametrize("task", WAITING_TASKS)
def test_tasks_that_wait_in_each_step(train, task, monkeypatch):
    """As docs/devices.md says."""
    monkeypatch.setattr(optimizers, "_SKIPPING", (DEVICE.type,))
    _, steps = train("model", *WAITING_TASKS[task])
    assert set(steps) == set(range(1, 21))
