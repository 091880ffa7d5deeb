"""The folder of a training run: settings, checkpoints and reports.

    run.json                 recipe and settings, with a hash of the data
    *tokenizer.json          files of the task, such as subwords
    checkpoints/step-N/      weights.safetensors, optimizer.safetensors, random.safetensors, progress.json
    snapshots/step-N.safetensors     the best validated weights
    metrics.jsonl            one JSON object for each report
    tensorboard/             the same for TensorBoard
    samples.txt              the model's output for some validation data, at each validation

A checkpoint is written under a temporary name, synced to disk, and renamed (``regard.atomic_write``), as is every file
except the reports. So the last complete checkpoint survives however the process ends. Nothing in here is a pickle.
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
from regard.list_files import is_desktop_file
from regard.log import log
from regard.models.checkpoint_writer import write_tensors
from regard.train.progress import Progress

_MAX_CHECKPOINTS = 2
"""Checkpoints to keep: the last, and the one before."""
_RUN_FILES = {"checkpoints", "snapshots", "run.json", "metrics.jsonl", "tensorboard", "samples.txt"}
_CHECKPOINT_NAME = re.compile(r"step-\d+")
_CHECKPOINT_OR_PARTIAL_NAME = re.compile(r"step-\d+|\.step-.+\.(partial|replaced)")
_SNAPSHOT_OR_PARTIAL_NAME = re.compile(r"step-\d+\.safetensors|\.step-.+\.partial")
_RUN_ADVICE = "restore it from a copy, or start again with `overwrite=True`: without it the checkpoints are unusable"
_LIMIT_ADVICE = "; a cosine schedule ends with its run, so the limit of such a run cannot be changed"
_SCHEDULE_ADVICE = dict.fromkeys(("steps", "epochs", "minutes"), _LIMIT_ADVICE)
_SNAPSHOT_ADVICE = (
    "restore it from a copy, or fine-tune the best model so far: `start=...`, with another output folder (`out=...`)"
)
_SAMPLES_HEADING = re.compile(rb"^step (\d+)\r?$", re.MULTILINE)
"""The line before the samples of a step, in samples.txt."""

_LEAST_DIGEST = 32
"""Hexadecimal digits from which a string is a hash."""


@final
@dataclass(frozen=True, eq=False)
class TrainingState:
    """The state that training resumes from: progress, weights, optimizer state, random number generators."""

    progress: Progress
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    random: Mapping[str, Tensor]


@final
class RunFolder:
    """The run folder at ``path``, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics, self.samples = path / "metrics.jsonl", path / "samples.txt"
        self.tensorboard = path / "tensorboard"
        self._checkpoints, self._snapshots, self._run = path / "checkpoints", path / "snapshots", path / "run.json"

    @property
    def has_run(self) -> bool:
        """Whether a run was started here."""
        return self._run.exists()

    @property
    def has_checkpoint(self) -> bool:
        """Whether the folder holds a complete checkpoint."""
        return bool(self._list_checkpoints())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder against other processes inside the block. Raises OutputExistsError if another holds the lock.

        On a file system without locks the folder stays unlocked, and a warning goes as notes.
        """
        path = self.path.with_name(f".{self.path.name}.lock")
        lock = FileLock(path, timeout=0)
        try:
            path.touch()  # the library takes a file that cannot be made for a locked one
            lock.acquire()
        except Timeout:
            raise OutputExistsError(
                f"another process is training in {self.path}",
                expected="one process at a time",
                got=f"{path} is locked",
                do="wait until it ends, stop it, or choose another output folder (`out=...`)",
            ) from None
        except (OSError, NotImplementedError) as error:
            log.info(f"{path} cannot be locked ({error}): make sure that no other process trains in {self.path}")
        try:
            yield
        finally:
            with suppress(OSError):  # Windows does not remove open files
                path.unlink()
            lock.release()

    def begin(self, settings: Mapping[str, Any], files: Mapping[str, str]) -> None:
        """Create the folder, replacing the folder of an old run. ``files`` are texts to store in it, by file name."""
        if self.path.exists():
            self._check_run_files()
            self._run.unlink(missing_ok=True)  # first: a folder without run.json is not a run
            shutil.rmtree(self.path)
        for folder in (self._checkpoints, self._snapshots):
            folder.mkdir(parents=True)
        sync_folder(self.path.parent)
        for name, text in files.items():
            with atomic_write(self.path / name) as temporary:
                temporary.write_text(text, encoding="utf-8")
        named = [name for name in files if not _is_run_file(name)]
        with atomic_write(self._run) as temporary:  # last: run.json marks the run as started
            _write_json(temporary, {**settings, **({"files": named} if named else {})})

    def check_same(
        self,
        settings: Mapping[str, Any],
        unwritten: Mapping[str, Any] | None = None,
        argument_of: Callable[[str], str | None] = lambda name: None,
    ) -> None:
        """Raise OutputExistsError unless the run was started with ``settings``.

        ``unwritten`` are settings that earlier versions used but did not write to run.json, and ``argument_of``
        finds the argument by which a user knows a setting, if it has another name (``Task.recipe_argument``).
        """
        old, present = (_flatten(json.loads(json.dumps(fields))) for fields in (unwritten or {}, settings))
        before = {**old, **_flatten(_read_json(self._run, _RUN_ADVICE))}
        lost = {name: None for name in before if name.startswith("recipe.")}
        for name, value in {**lost, **present}.items():
            if before.get(name) == value:
                continue
            if _is_digest(value) and _is_digest(before.get(name)):
                raise OutputExistsError(
                    f"the data has changed since the run in {self.path} was started",
                    expected=f"the same {name.rpartition('.')[2]}",
                    got="others",
                    do="resume with the data of the run, or start again with `overwrite=True`",
                )
            shown = argument_of(name) or (f"`{name}`" if name.isidentifier() else name)
            raise OutputExistsError(
                f"the run in {self.path} was started with another {shown}",
                expected=str(before.get(name)),
                got=str(value),
                do="resume with the same settings and data, or start again with `overwrite=True`"
                + _SCHEDULE_ADVICE.get(name.rpartition(".")[2], ""),
            )

    def read_setting(self, name: str) -> Any:
        """Read a setting that the run was started with, by its name in ``begin``. Raises CheckpointError if missing."""
        if not self.has_run:
            raise CheckpointError(
                f"there is no run in {self.path}",
                expected="the run that the main process started",
                got="no run.json",
                do="choose an output folder (`out=...`) on a disk that all machines share",
            )
        fields = _read_json(self._run, _RUN_ADVICE)
        if name not in fields:
            raise CheckpointError(
                f"the run in {self.path} was started by another version of regard",
                expected=f"{name} in run.json",
                got=", ".join(fields),
                do="resume it with that version, or start again with `overwrite=True`",
            )
        return fields[name]

    def save(self, checkpoint: TrainingState) -> None:
        """Write a checkpoint atomically, and remove all but the last two."""
        with atomic_write_folder(self._checkpoints / f"step-{checkpoint.progress.step:08d}") as temporary:
            for kind in ("weights", "optimizer", "random"):
                write_tensors(temporary / f"{kind}.safetensors", getattr(checkpoint, kind))
            _write_json(temporary / "progress.json", checkpoint.progress.to_dict())
        self._remove_old_checkpoints()
        self._remove_unused_snapshots()

    def load_last(self) -> TrainingState | None:
        """Read the last complete checkpoint; None if there is none. Raises CheckpointError for a damaged one."""
        complete = self._list_checkpoints()
        if not complete:
            return None
        folder = complete[-1]
        do = f"move {folder} away: the run then resumes from the checkpoint before"
        parts = {kind: _read_tensors(folder / f"{kind}.safetensors", do) for kind in ("weights", "optimizer", "random")}
        return TrainingState(progress=Progress.from_dict(_read_json(folder / "progress.json", do)), **parts)

    def save_snapshot(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """Write the weights of a validation to ``snapshots/``."""
        with atomic_write(self._snapshots / name) as temporary:
            write_tensors(temporary, weights)

    def load_snapshot(self, name: str) -> dict[str, Tensor]:
        """Read the weights of a validation from ``snapshots/``."""
        return _read_tensors(self._snapshots / name, _SNAPSHOT_ADVICE)

    def remove_reports_after(self, step: int) -> None:
        """Remove the reports of an interrupted run after ``step``, which the resumed run will write again."""
        if self.metrics.exists():
            lines = self.metrics.read_text(encoding="utf-8").splitlines()
            with atomic_write(self.metrics) as temporary:
                kept = "".join(f"{line}\n" for line in lines if _read_step(line) <= step)
                temporary.write_text(kept, encoding="utf-8")
        if self.samples.exists():
            text = self.samples.read_bytes()
            later = (found.start() for found in _SAMPLES_HEADING.finditer(text) if int(found[1]) > step)
            with atomic_write(self.samples) as temporary:
                temporary.write_bytes(text[: next(later, len(text))])

    def _remove_old_checkpoints(self) -> None:
        """Remove all but the last two checkpoints, and what killed processes left of unfinished ones."""
        kept = self._list_checkpoints()[-_MAX_CHECKPOINTS:]
        for path in sorted(self._checkpoints.iterdir()):
            if _CHECKPOINT_OR_PARTIAL_NAME.fullmatch(path.name) and path not in kept:
                remove_folder(path)

    def _remove_unused_snapshots(self) -> None:
        """Remove the snapshots that no checkpoint lists."""
        do = "move its folder away"
        kept = [
            Progress.from_dict(_read_json(folder / "progress.json", do)).best for folder in self._list_checkpoints()
        ]
        names = {snapshot.name for best in kept for snapshot in best}
        for path in self._snapshots.iterdir():
            if _SNAPSHOT_OR_PARTIAL_NAME.fullmatch(path.name) and path.name not in names:
                path.unlink()

    def _list_checkpoints(self) -> list[Path]:
        """List the complete checkpoints by step, including one whose replacement was interrupted by a kill."""
        if not self._checkpoints.is_dir():
            return []
        # A hidden folder sorts first, so that one with the final name takes precedence.
        found = {original_name(path): path for path in sorted(self._checkpoints.iterdir())}
        return [found[name] for name in sorted(found) if _CHECKPOINT_NAME.fullmatch(name)]

    def _check_run_files(self) -> None:
        """Raise OutputExistsError if the folder holds files that are not of a run."""
        named: list[str] = []
        with suppress(CheckpointError):  # a damaged run may be replaced
            named = _read_json(self._run, _RUN_ADVICE).get("files", [])
        others = sorted(
            path.name for path in self.path.iterdir() if not _is_run_file(path.name) and path.name not in named
        )
        if others:
            raise OutputExistsError(
                f"{self.path} holds files that are not of a training run, and they would be lost",
                expected="only " + ", ".join(sorted(_RUN_FILES)),
                got=", ".join(others[:8]),
                do="choose another output folder (`out=...`), or move these files away",
            )


def _is_run_file(name: str) -> bool:
    """Whether a run or a desktop environment writes a file of this name."""
    if name.startswith(".") and name.endswith(".partial"):  # left by a killed process
        name = name[1:].removesuffix(".partial")
    return name in _RUN_FILES or name.endswith("tokenizer.json") or is_desktop_file(name)


def _read_step(line: str) -> float:
    """The step of a line of metrics.jsonl; infinity for a truncated line."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _is_digest(value: object) -> bool:
    """Whether a field is a hash of data."""
    return isinstance(value, str) and len(value) >= _LEAST_DIGEST and not set(value) - set("0123456789abcdef")


def _flatten(fields: Mapping[str, Any], within: str = "") -> dict[str, Any]:
    """Flatten nested objects to one level, with names joined by dots."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        flat |= _flatten(value, f"{within}{name}.") if isinstance(value, dict) else {within + name: value}
    return flat


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
        raise _damaged_error(path, TypeError(f"{type(fields).__name__}, not an object"), do)
    return fields


def _damaged_error(path: Path, error: Exception, do: str) -> CheckpointError:
    what = "cannot be read" if isinstance(error, OSError) else "is damaged"
    return CheckpointError(f"{path} {what}", expected="a file written by training", got=str(error), do=do)
