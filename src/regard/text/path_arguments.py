"""Paths of files as callers give them: one or several, as a ``Path`` or as a string."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from regard.errors import ArgumentError, DataError, short_repr

PathLike: TypeAlias = "str | os.PathLike[str]"
"""A path of a file or folder."""


def to_paths(paths: PathLike | Sequence[PathLike]) -> list[Path]:
    """The paths as a list: a single one, or each of a sequence. Raises ArgumentError for anything else."""
    if isinstance(paths, (str, os.PathLike)):
        return [Path(paths)]
    return [to_path(path) for path in paths] if isinstance(paths, Sequence) else [to_path(paths)]


def to_path(path: object) -> Path:
    """The path of a single file or folder. Raises ArgumentError for anything else."""
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(
            "paths must be strings or Path objects",
            expected="the path of a file or folder, or a list of these",
            got=short_repr(path),
            do='for example ["train.csv"], or Path("train.csv")',
        )
    return Path(path)


def check_exists(path: Path, expected: str, *, do: str = "check the path") -> None:
    """Raise DataError for a path that does not exist, where ``expected`` was expected."""
    if not path.exists():
        raise DataError(f"cannot read {path}", expected=expected, got="No such file or directory", do=do)
