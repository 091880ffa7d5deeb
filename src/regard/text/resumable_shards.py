"""Output in parts, so that a run can be killed at any moment and taken up again.

    OUT.parts/manifest.json      what was asked
    OUT.parts/00000000.data      the rows of part 0
    OUT.parts/00000000.json      its record: how far the input was read, and a hash of all that was read

Every file is written aside, brought to the disk, then renamed. A record is written after its data: a part with a
record is complete, one without is written again. A folder without manifest holds nothing that is needed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, final

from regard.atomic_write import atomic_write, sync_folder
from regard.errors import OutputExistsError

_OPTIONS_SAFE_TO_ENABLE = ("skip_bad", "truncate")
"""Options that let through what stopped the run before; the rows already written are the same with them."""


@final
@dataclass(frozen=True)
class SkippedLine:
    """A line that was left out, and why."""

    line: int
    problem: str


@final
@dataclass(frozen=True)
class ShardRecord:
    """What a part holds.

    ``lines`` counts the lines of input up to the part's end, ``digest`` is a SHA-256 of them. ``lengths`` counts the
    vectors of each row. ``truncated`` lists the numbers of the lines that were cut, ``unknown`` of those of which the
    vocabulary lacks most words.
    """

    lines: int
    digest: str
    lengths: tuple[int, ...]
    skipped: tuple[SkippedLine, ...]
    truncated: tuple[int, ...]
    unknown: tuple[int, ...] = ()


@final
class Shards:
    """The folder of parts beside ``out``."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out.with_name(f"{out.name}.parts")
        self.count = 0
        self._manifest = self.folder / "manifest.json"

    @property
    def has_earlier_run(self) -> bool:
        """Whether an earlier run left parts."""
        return self._manifest.exists()

    @property
    def is_empty(self) -> bool:
        """Whether no part is complete, on the disk."""
        return not self._path("json", 0).exists()

    def start(self, asked: Mapping[str, Any]) -> None:
        """Begin anew: earlier parts are removed."""
        self.remove()
        self.folder.mkdir(parents=True)
        sync_folder(self.folder.parent)
        with atomic_write(self._manifest) as aside:
            aside.write_text(json.dumps(dict(asked), indent=2), encoding="utf-8")

    def resume(self, asked: Mapping[str, Any]) -> ShardRecord | None:
        """Take up an earlier run: the record of its last complete part, None if there is none.

        Raises OutputExistsError where that run was asked for something else, or its parts are damaged.
        """
        self._check_same_options(self._read_json(self._manifest), asked)
        while self._path("json", self.count).exists():
            self.count += 1
        return self.record(self.count - 1) if self.count else None

    def add(self, record: ShardRecord, write: Callable[[BinaryIO], object]) -> None:
        """Write the next part."""
        with atomic_write(self._path("data", self.count)) as aside, aside.open("wb") as file:
            write(file)
        with atomic_write(self._path("json", self.count)) as aside:
            aside.write_text(json.dumps(asdict(record)), encoding="utf-8")
        self.count += 1

    def record(self, part: int) -> ShardRecord:
        """The record of a part."""
        fields = self._read_json(self._path("json", part))
        try:
            return ShardRecord(
                lines=int(fields["lines"]),
                digest=str(fields["digest"]),
                lengths=tuple(map(int, fields["lengths"])),
                skipped=tuple(SkippedLine(**skipped) for skipped in fields["skipped"]),
                truncated=tuple(map(int, fields["truncated"])),
                unknown=tuple(map(int, fields.get("unknown", ()))),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged_error(self._path("json", part), error) from error

    def records(self) -> Iterator[ShardRecord]:
        """The record of each part, read one after the other."""
        return map(self.record, range(self.count))

    def data_files(self) -> list[Path]:
        """The data file of each part."""
        return [self._path("data", part) for part in range(self.count)]

    def remove(self) -> None:
        """Remove all parts; the manifest first, so that a half-removed folder counts as none."""
        self._manifest.unlink(missing_ok=True)
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def _path(self, kind: str, part: int) -> Path:
        return self.folder / f"{part:08d}.{kind}"

    def _check_same_options(self, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        differences = [
            f"{name}: {then.get(name)!r} then, {value!r} now"
            for name, value in now.items()
            if then.get(name) != value and not (name in _OPTIONS_SAFE_TO_ENABLE and value is True)
        ]
        if differences:
            raise OutputExistsError(
                f"{self.folder} holds parts of another run",
                expected="the same options, to resume",
                got="; ".join(differences),
                do="use the options of that run with --resume, or --overwrite to start again",
            )

    def _read_json(self, path: Path) -> dict[str, Any]:
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(fields, dict):
                raise ValueError("no JSON object")
        except (OSError, ValueError) as error:
            raise self._damaged_error(path, error) from error
        return fields

    def _damaged_error(self, path: Path, error: Exception) -> OutputExistsError:
        return OutputExistsError(
            f"{path} cannot be used to resume",
            expected="a file that an earlier run wrote",
            got=str(error),
            do="start again with --overwrite",
        )
