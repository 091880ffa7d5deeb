"""The folder of a training run: what is needed to go on, and what was measured on the way.

    run.json                 what was asked for, and a hash of the data
    *tokenizer.json          the subwords
    checkpoints/step-N/      weights.safetensors, optimizer.safetensors, random.safetensors, progress.json
    snapshots/step-N.safetensors     the best validated weights
    metrics.jsonl            one JSON object for each report
    tensorboard/             the same for TensorBoard
    samples.txt              what the model made of some validation data, at each validation

A checkpoint is written aside, brought to the disk, and renamed. So whatever ends the process, the last complete one is
there. Nothing in the folder is a pickle.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from regard.errors import CheckpointError, OutputExistsError
from regard.models.saving import sync_file, write_tensors
from regard.text.parts import sync_folder
from regard.train.progress import Progress

_KEPT = 2
"""Checkpoints that are kept: the last, and the one before."""


@final
@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Everything that decides the steps to come."""

    progress: Progress
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    random: Mapping[str, Tensor]


@final
class RunFolder:
    """The folder ``path``, which need not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics, self.samples = path / "metrics.jsonl", path / "samples.txt"
        self.tensorboard = path / "tensorboard"
        self._checkpoints, self._snapshots, self._run = path / "checkpoints", path / "snapshots", path / "run.json"

    @property
    def begun(self) -> bool:
        """Whether a run was begun here."""
        return self._run.exists()

    @property
    def saved(self) -> bool:
        """Whether there is a checkpoint."""
        return bool(self._complete())

    def begin(self, asked: Mapping[str, Any], files: Mapping[str, str]) -> None:
        """Make the folder, in place of an old run's. ``files`` are texts to be kept with it, by name."""
        if self.path.exists():
            self._check_ours()
            shutil.rmtree(self.path)
        for folder in (self._checkpoints, self._snapshots):
            folder.mkdir(parents=True)
        for name, text in files.items():
            (self.path / name).write_text(text, encoding="utf-8")
            sync_file(self.path / name)
        _write_json(self._run, asked)  # the last: with it the run has begun

    def check_same(self, asked: Mapping[str, Any]) -> None:
        """Raise OutputExistsError unless the run was begun with ``asked``."""
        before = _read_json(self._run)
        for name, value in json.loads(json.dumps(asked)).items():
            if before.get(name) != value:
                raise OutputExistsError(
                    f"the run in {self.path} was begun with another {name}",
                    expected=str(before.get(name)),
                    got=str(value),
                    do="give the same options and data with --resume, or begin anew with --overwrite",
                )

    def asked(self, name: str) -> Any:
        """What the run was begun with, by its name in ``begin``."""
        return _read_json(self._run)[name]

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint aside, rename it, and remove those before the last."""
        name = f"step-{checkpoint.progress.step:08d}"
        aside = self._checkpoints / f".{name}.partial"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        try:
            for kind in ("weights", "optimizer", "random"):
                _write_tensors(aside / f"{kind}.safetensors", getattr(checkpoint, kind))
            _write_json(aside / "progress.json", checkpoint.progress.fields())
            sync_folder(aside)
            shutil.rmtree(self._checkpoints / name, ignore_errors=True)
            aside.rename(self._checkpoints / name)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        sync_folder(self._checkpoints)
        for old in self._complete()[:-_KEPT]:
            shutil.rmtree(old)
        self._keep_snapshots()

    def last(self) -> Checkpoint | None:
        """The last complete checkpoint; None where there is none. Raises CheckpointError for a damaged one."""
        complete = self._complete()
        if not complete:
            return None
        folder = complete[-1]
        parts = {kind: _read_tensors(folder / f"{kind}.safetensors") for kind in ("weights", "optimizer", "random")}
        return Checkpoint(progress=Progress.of(_read_json(folder / "progress.json")), **parts)

    def save_snapshot(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """Keep the weights of a validation."""
        _write_tensors(self._snapshots / f".{name}.partial", weights)
        (self._snapshots / f".{name}.partial").rename(self._snapshots / name)

    def snapshot(self, name: str) -> dict[str, Tensor]:
        """Weights that were kept."""
        return _read_tensors(self._snapshots / name)

    def forget_after(self, step: int) -> None:
        """Remove what was reported after ``step``, by a run that was cut off: it will be reported again."""
        if not self.metrics.exists():
            return
        lines = self.metrics.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if _step_of(line) <= step]
        aside = self.metrics.with_suffix(".partial")
        aside.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        aside.replace(self.metrics)

    def _keep_snapshots(self) -> None:
        """Remove the snapshots that no checkpoint speaks of."""
        kept = [Progress.of(_read_json(folder / "progress.json")).best for folder in self._complete()]
        names = {snapshot.name for best in kept for snapshot in best}
        for path in self._snapshots.iterdir():
            if path.name not in names:
                path.unlink()

    def _complete(self) -> list[Path]:
        if not self._checkpoints.is_dir():
            return []
        return sorted(path for path in self._checkpoints.iterdir() if path.name.startswith("step-"))

    def _check_ours(self) -> None:
        """Raise OutputExistsError for a folder that holds anything but a run."""
        ours = {
            "checkpoints",
            "snapshots",
            "run.json",
            "metrics.jsonl",
            "metrics.partial",
            "tensorboard",
            "samples.txt",
        }
        found = {path.name for path in self.path.iterdir()}
        others = sorted(name for name in found - ours if not name.endswith("tokenizer.json"))
        if others:
            raise OutputExistsError(
                f"{self.path} holds files that are not of a training run, and they would be lost",
                expected="only " + ", ".join(sorted(ours)),
                got=", ".join(others[:8]),
                do="choose another --out, or move these files away",
            )


def _step_of(line: str) -> float:
    """The step that a line reports; a line that was cut off is of no step."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    write_tensors(path, tensors)
    sync_file(path)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error


def _write_json(path: Path, fields: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    sync_file(path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error
    if not isinstance(fields, dict):
        raise _damaged(path, TypeError(f"{type(fields).__name__}, no object"))
    return fields


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged",
        expected="a file as training writes it",
        got=str(error),
        do="remove its folder: --resume then takes the checkpoint before",
    )
