"""Output in shards, so that a run can be killed at any moment and resumed.

    OUT.parts/manifest.json      the options of the run
    OUT.parts/00000000.data      the rows of shard 0
    OUT.parts/00000000.json      its record: how far the input was read, and a hash of everything read

Every file is written under a temporary name, synced to the disk, then renamed. A record is written after its data: a
shard with a record is complete, one without is written again. A folder without manifest can be deleted.

Several processes may write shards, in any order; one process that resumes their run continues at the first gap.
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
"""Options that may be turned on when resuming: they do not change the rows already written."""


@final
@dataclass(frozen=True)
class SkippedLine:
    """Number of a skipped line, and its problem."""

    line: int
    problem: str


@final
@dataclass(frozen=True)
class ShardRecord:
    """Record of a shard.

    ``lines`` counts the input lines up to the shard's end, ``digest`` is their SHA-256. ``lengths`` counts the vectors
    of each row. ``truncated`` lists the numbers of truncated lines, ``unknown`` the numbers of lines most of whose
    words are not in the vocabulary.
    """

    lines: int
    digest: str
    lengths: tuple[int, ...]
    skipped: tuple[SkippedLine, ...]
    truncated: tuple[int, ...]
    unknown: tuple[int, ...] = ()


@final
class Shards:
    """The folder of shards, ``OUT.parts``, beside ``out``."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out.with_name(f"{out.name}.parts")
        self.count = 0
        self._manifest = self.folder / "manifest.json"

    @property
    def has_earlier_run(self) -> bool:
        """Whether an earlier run left its folder of shards."""
        return self._manifest.exists()

    @property
    def is_empty(self) -> bool:
        """Whether no complete shard is on the disk."""
        return not any(path.stem.isdecimal() for path in self.folder.glob("*.json"))

    def start(self, options: Mapping[str, Any]) -> None:
        """Start a new run with ``options``, removing earlier shards."""
        self.remove()
        self.folder.mkdir(parents=True)
        sync_folder(self.folder.parent)
        with atomic_write(self._manifest) as temporary:
            temporary.write_text(json.dumps(dict(options), indent=2), encoding="utf-8")

    def resume(self, options: Mapping[str, Any]) -> ShardRecord | None:
        """Resume an earlier run: return the record of its last complete shard, None if there is none.

        Raises OutputExistsError if that run had other options, or its files are damaged.
        """
        self._check_same_options(self._read_json(self._manifest), options)
        while self._path("json", self.count).exists():
            self.count += 1
        return self.record(self.count - 1) if self.count else None

    def add(self, record: ShardRecord, write: Callable[[BinaryIO], object]) -> None:
        """Write the next shard: its data with ``write``, then its record."""
        self._write(self.count, record, write, writers=1)
        self.count += 1

    def add_at(self, part: int, record: ShardRecord, write: Callable[[BinaryIO], object]) -> None:
        """Write the shard ``part`` as ``add`` does, while other processes write others, or the same one."""
        self._write(part, record, write, writers=2)

    def has(self, part: int) -> bool:
        """Whether the shard ``part`` is complete."""
        return self._path("json", part).exists()

    def complete(self) -> set[int]:
        """Numbers of the complete shards, which need not follow one another."""
        return {int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdecimal()}

    def count_attempt(self, part: int) -> int:
        """Count one more attempt to compute the shard ``part``, and return how many there were before.

        The count is on the disk, since an attempt may end with its process.
        """
        with self._path("attempts", part).open("ab") as file:
            before = file.tell()
            file.write(b"x")
        return before

    def forget_attempts(self) -> None:
        """Set the number of attempts of every shard to 0."""
        for path in self.folder.glob("*.attempts"):
            path.unlink(missing_ok=True)

    def record(self, part: int) -> ShardRecord:
        """Read the record of a shard. Raises OutputExistsError if it is damaged."""
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
        """Read the records of all shards, one at a time."""
        return map(self.record, range(self.count))

    def data_files(self) -> list[Path]:
        """List the data files of all shards."""
        return [self._path("data", part) for part in range(self.count)]

    def remove(self) -> None:
        """Remove all shards; the manifest first, so that a half-removed folder is ignored."""
        self._manifest.unlink(missing_ok=True)
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def _write(self, part: int, record: ShardRecord, write: Callable[[BinaryIO], object], *, writers: int) -> None:
        with atomic_write(self._path("data", part), writers=writers) as temporary, temporary.open("wb") as file:
            write(file)
        with atomic_write(self._path("json", part), writers=writers) as temporary:
            temporary.write_text(json.dumps(asdict(record)), encoding="utf-8")

    def _path(self, kind: str, part: int) -> Path:
        return self.folder / f"{part:08d}.{kind}"

    def _check_same_options(self, earlier: Mapping[str, Any], present: Mapping[str, Any]) -> None:
        differences = [
            f"{name}: {earlier.get(name)!r} then, {value!r} now"
            for name, value in present.items()
            if earlier.get(name) != value and not (name in _OPTIONS_SAFE_TO_ENABLE and value is True)
        ]
        if differences:
            raise OutputExistsError(
                f"{self.folder} belongs to a run with other options",
                expected="the same options, to resume",
                got="; ".join(differences),
                do="resume with the options of that run (`resume=True`), or start again (`overwrite=True`)",
            )

    def _read_json(self, path: Path) -> dict[str, Any]:
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(fields, dict):
                raise ValueError("not a JSON object")
        except (OSError, ValueError) as error:
            raise self._damaged_error(path, error) from error
        return fields

    def _damaged_error(self, path: Path, error: Exception) -> OutputExistsError:
        return OutputExistsError(
            f"{path} cannot be used to resume",
            expected="a file that an earlier run wrote",
            got=str(error),
            do="start again (`overwrite=True`)",
        )
