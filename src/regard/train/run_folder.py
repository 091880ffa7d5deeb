"""The folder of a training run: what is needed to go on, and what was measured on the way.

    run.json                 what was asked for, and a hash of the data
    *tokenizer.json          what the task keeps, such as subwords
    checkpoints/step-N/      weights.safetensors, optimizer.safetensors, random.safetensors, progress.json
    snapshots/step-N.safetensors     the best validated weights
    metrics.jsonl            one JSON object for each report
    tensorboard/             the same for TensorBoard
    samples.txt              what the model made of some validation data, at each validation

A checkpoint is written aside, brought to the disk, and renamed, as is every file but the reports (``text.aside``). So
whatever ends the process, the last complete one is there. Nothing in the folder is a pickle.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from regard.atomic_write import atomic_write, atomic_write_folder, original_name, remove_folder, sync_folder
from regard.errors import CheckpointError, OutputExistsError
from regard.models.checkpoint_writer import is_desktop_file, write_tensors
from regard.train.progress import Progress

_MAX_CHECKPOINTS = 2
"""Checkpoints that are kept: the last, and the one before."""
_RUN_FILES = {"checkpoints", "snapshots", "run.json", "metrics.jsonl", "tensorboard", "samples.txt"}
_CHECKPOINT_NAME = re.compile(r"step-\d+")
_CHECKPOINT_OR_PARTIAL_NAME = re.compile(r"step-\d+|\.step-.+\.(partial|replaced)")
_SNAPSHOT_OR_PARTIAL_NAME = re.compile(r"step-\d+\.safetensors|\.step-.+\.partial")
_RUN_ADVICE = "put it back from a copy, or begin anew with --overwrite: its checkpoints say not what they are of"
_SNAPSHOT_ADVICE = "put it back from a copy, or train on from the best model so far: --model OUT, with another --out"
_SAMPLES_HEADING = re.compile(rb"^step (\d+)\r?$", re.MULTILINE)
"""What the samples of a step begin with, in samples.txt."""


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
    def has_run(self) -> bool:
        """Whether a run was begun here."""
        return self._run.exists()

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint."""
        return bool(self._list_checkpoints())

    @contextmanager
    def lock(self, say: Callable[[str], None]) -> Iterator[None]:
        """Nobody else writes here meanwhile. Raises OutputExistsError where somebody does.

        On a disk that knows no locks, which is said, nobody is kept out.
        """
        path = self.path.with_name(f".{self.path.name}.lock")
        lock = FileLock(path, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise OutputExistsError(
                f"another process is training in {self.path}",
                expected="one at a time",
                got=f"{path} is locked",
                do="wait until it ends, stop it, or choose another --out",
            ) from None
        except (OSError, NotImplementedError) as error:
            say(f"{path} cannot be locked ({error}): see to it that no other process trains into {self.path}")
        try:
            yield
        finally:
            with suppress(OSError):  # Windows removes nothing that is open
                path.unlink()
            lock.release()

    def begin(self, asked: Mapping[str, Any], files: Mapping[str, str]) -> None:
        """Make the folder, in place of an old run's. ``files`` are texts to be kept with it, by name."""
        if self.path.exists():
            self._check_run_files()
            self._run.unlink(missing_ok=True)  # the first: a half-removed folder is no run
            shutil.rmtree(self.path)
        for folder in (self._checkpoints, self._snapshots):
            folder.mkdir(parents=True)
        sync_folder(self.path.parent)
        for name, text in files.items():
            with atomic_write(self.path / name) as aside:
                aside.write_text(text, encoding="utf-8")
        named = [name for name in files if not _is_run_file(name)]
        with atomic_write(self._run) as aside:  # the last: with it the run has begun
            _write_json(aside, {**asked, **({"files": named} if named else {})})

    def check_same(self, asked: Mapping[str, Any], unwritten: Mapping[str, Any] | None = None) -> None:
        """Raise OutputExistsError unless the run was begun with ``read_setting``.

        ``unwritten`` is what runs of earlier versions were begun with although they did not write it.
        """
        before, now = (
            _flatten(fields) for fields in (_read_json(self._run, _RUN_ADVICE), json.loads(json.dumps(asked)))
        )
        before = {**(unwritten or {}), **before}
        lost = {name: None for name in before if name.startswith("recipe.")}
        for name, value in {**lost, **now}.items():
            if before.get(name) != value:
                raise OutputExistsError(
                    f"the run in {self.path} was begun with another {name}",
                    expected=str(before.get(name)),
                    got=str(value),
                    do="give the same options and data with --resume, or begin anew with --overwrite",
                )

    def read_setting(self, name: str) -> Any:
        """What the run was begun with, by its name in ``begin``. Raises CheckpointError where that is not to be had."""
        if not self.has_run:
            raise CheckpointError(
                f"there is no run in {self.path}",
                expected="the run that the first of these processes began",
                got="no run.json",
                do="choose an --out on a disk that all machines share",
            )
        fields = _read_json(self._run, _RUN_ADVICE)
        if name not in fields:
            raise CheckpointError(
                f"the run in {self.path} was begun by another version of regard",
                expected=f"{name} in run.json",
                got=", ".join(fields),
                do="go on with that version, or begin anew with --overwrite",
            )
        return fields[name]

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint aside, rename it, and remove those before the last."""
        with atomic_write_folder(self._checkpoints / f"step-{checkpoint.progress.step:08d}") as aside:
            for kind in ("weights", "optimizer", "random"):
                write_tensors(aside / f"{kind}.safetensors", getattr(checkpoint, kind))
            _write_json(aside / "progress.json", checkpoint.progress.to_dict())
        self._remove_old_checkpoints()
        self._remove_unused_snapshots()

    def load_last(self) -> Checkpoint | None:
        """The last complete checkpoint; None where there is none. Raises CheckpointError for a damaged one."""
        complete = self._list_checkpoints()
        if not complete:
            return None
        folder = complete[-1]
        do = f"move {folder} away: --resume then takes the checkpoint before"
        parts = {kind: _read_tensors(folder / f"{kind}.safetensors", do) for kind in ("weights", "optimizer", "random")}
        return Checkpoint(progress=Progress.from_dict(_read_json(folder / "progress.json", do)), **parts)

    def save_snapshot(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """Keep the weights of a validation."""
        with atomic_write(self._snapshots / name) as aside:
            write_tensors(aside, weights)

    def load_snapshot(self, name: str) -> dict[str, Tensor]:
        """Weights that were kept."""
        return _read_tensors(self._snapshots / name, _SNAPSHOT_ADVICE)

    def remove_reports_after(self, step: int) -> None:
        """Remove what was reported after ``step``, by a run that was cut off: it will be reported again."""
        if self.metrics.exists():
            lines = self.metrics.read_text(encoding="utf-8").splitlines()
            with atomic_write(self.metrics) as aside:
                aside.write_text("".join(f"{line}\n" for line in lines if _read_step(line) <= step), encoding="utf-8")
        if self.samples.exists():
            text = self.samples.read_bytes()
            later = (found.start() for found in _SAMPLES_HEADING.finditer(text) if int(found[1]) > step)
            with atomic_write(self.samples) as aside:
                aside.write_bytes(text[: next(later, len(text))])

    def _remove_old_checkpoints(self) -> None:
        """Remove the checkpoints before the last, and what kills left of any."""
        kept = self._list_checkpoints()[-_MAX_CHECKPOINTS:]
        for path in sorted(self._checkpoints.iterdir()):
            if _CHECKPOINT_OR_PARTIAL_NAME.fullmatch(path.name) and path not in kept:
                remove_folder(path)

    def _remove_unused_snapshots(self) -> None:
        """Remove the snapshots that no checkpoint speaks of."""
        do = "move its folder away"
        kept = [
            Progress.from_dict(_read_json(folder / "progress.json", do)).best for folder in self._list_checkpoints()
        ]
        names = {snapshot.name for best in kept for snapshot in best}
        for path in self._snapshots.iterdir():
            if _SNAPSHOT_OR_PARTIAL_NAME.fullmatch(path.name) and path.name not in names:
                path.unlink()

    def _list_checkpoints(self) -> list[Path]:
        """All whole checkpoints, the last one last; also one that a kill caught while it was being replaced."""
        if not self._checkpoints.is_dir():
            return []
        # A hidden one sorts first, and gives way to one that has its own name.
        found = {original_name(path): path for path in sorted(self._checkpoints.iterdir())}
        return [found[name] for name in sorted(found) if _CHECKPOINT_NAME.fullmatch(name)]

    def _check_run_files(self) -> None:
        """Raise OutputExistsError for a folder that holds anything but a run."""
        named: list[str] = []
        with suppress(CheckpointError):  # what is damaged may be replaced
            named = _read_json(self._run, _RUN_ADVICE).get("files", [])
        others = sorted(
            path.name for path in self.path.iterdir() if not _is_run_file(path.name) and path.name not in named
        )
        if others:
            raise OutputExistsError(
                f"{self.path} holds files that are not of a training run, and they would be lost",
                expected="only " + ", ".join(sorted(_RUN_FILES)),
                got=", ".join(others[:8]),
                do="choose another --out, or move these files away",
            )


def _is_run_file(name: str) -> bool:
    """Whether a run writes it, or a desktop."""
    if name.startswith(".") and name.endswith(".partial"):  # as a kill leaves it
        name = name[1:].removesuffix(".partial")
    return name in _RUN_FILES or name.endswith("tokenizer.json") or is_desktop_file(name)


def _read_step(line: str) -> float:
    """The step that a line reports; a line that was cut off is of no step."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _flatten(fields: Mapping[str, Any], within: str = "") -> dict[str, Any]:
    """All values by their names, those of an object within an object by both."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        found |= _flatten(value, f"{within}{name}.") if isinstance(value, dict) else {within + name: value}
    return found


def _read_tensors(path: Path, do: str) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise _damaged_error(path, error, do) from error


def _write_json(path: Path, fields: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _read_json(path: Path, do: str) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged_error(path, error, do) from error
    if not isinstance(fields, dict):
        raise _damaged_error(path, TypeError(f"{type(fields).__name__}, no object"), do)
    return fields


def _damaged_error(path: Path, error: Exception, do: str) -> CheckpointError:
    what = "cannot be read" if isinstance(error, OSError) else "is damaged"
    return CheckpointError(f"{path} {what}", expected="a file as training writes it", got=str(error), do=do)
