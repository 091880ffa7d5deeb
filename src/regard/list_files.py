"""The files of a folder that a user means: one listing for all commands, whatever the files hold.

Hidden files and folders are left out, of which users rarely know: ``.ipynb_checkpoints/``, ``._0.png`` and
``__MACOSX/`` of macOS, ``Thumbs.db`` of Windows. Links to folders are not followed, so the listing ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from regard.errors import DataError

_DESKTOP_FILES = frozenset({".ds_store", "thumbs.db", "desktop.ini"})
_MACOS_FOLDER = "__MACOSX"
"""Folder of an archive of macOS, with what its file system knows about the files."""


def is_desktop_file(name: str) -> bool:
    """Whether a desktop environment leaves files of this name in folders, such as .DS_Store."""
    return name.lower() in _DESKTOP_FILES


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is left out."""
    return name.startswith(".") or name == _MACOS_FOLDER or is_desktop_file(name)


def list_files(folder: Path) -> list[Path]:
    """The files in a folder and in its folders, by their paths in order. Raises DataError as ``walk``."""
    return sorted(path for path in walk(folder) if path.is_file())


def list_entries(folder: Path) -> list[Path]:
    """As ``list_files``, with entries that are neither files nor folders: pipes, and links to folders or to no file."""
    return sorted(walk(folder))


def list_folders(folder: Path) -> list[Path]:
    """The folders in a folder, but not those in them, by their names in order; links to folders count.

    Raises DataError as ``walk``.
    """
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not is_hidden(path.name))
    except OSError as error:
        _refuse(error)


def why_no_file(entry: Path) -> str:
    """Why an entry that is no file is skipped."""
    if entry.is_symlink():
        return "a link to a folder is not followed" if entry.is_dir() else "a link leads to no file"
    return "a pipe or a device is not read"


def walk(folder: Path) -> Iterator[Path]:
    """All that is no folder in a folder and in its folders, in no order. Raises DataError for an unreadable folder."""
    for place, folders, files in os.walk(folder, onerror=_refuse):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        folders[:] = [name for name in folders if not is_hidden(name) and name not in links]
        yield from (Path(place) / name for name in (*files, *links) if not is_hidden(name))


def _refuse(error: OSError) -> NoReturn:
    raise DataError(
        f"cannot read the folder {error.filename}",
        expected="a folder that can be listed",
        got=error.strerror or str(error),
        do="check its permissions",
    ) from error
