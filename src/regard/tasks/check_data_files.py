"""The files of a recipe, refused if they are missing before a run takes time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.errors import DataError


def check_data_files(paths: Sequence[Path], *, kind: str) -> None:
    """Raise DataError for a path that does not exist; ``kind`` is what the files hold, such as "texts"."""
    for path in paths:
        if not path.exists():
            raise DataError(
                f"cannot read {path}",
                expected=f"a file or a folder of {kind}",
                got="No such file or directory",
                do="check the path",
            )
