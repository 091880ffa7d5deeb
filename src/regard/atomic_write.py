"""Atomic writes of files and folders: write under a temporary name, sync to disk, then rename.

So each is either complete or absent, however the process ends. A killed process may leave these beside NAME:

    .NAME.partial              an incomplete file; the next write overwrites it
    .NAME.TOKEN.partial        an incomplete file of one of several writers
    .NAME.TOKEN.partial        or an incomplete folder, or the rest of a folder that was being removed
    .NAME.TOKEN.replaced       a complete folder that was renamed to make room for its replacement

A folder cannot be renamed onto a non-empty folder. So replacing one takes two renames, and between them no folder is
called NAME; after a kill at that moment, ``recover_folder`` gives the old folder its name back.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import write_error

EntriesToKeep = Callable[[Path], Iterable[str]]
"""Lists the entries of a folder to move to its replacement: relative paths, each folder before its contents."""

_LEFTOVER_NAME = re.compile(r"\.(?P<name>.+)\.[a-z0-9_]{8}\.(?P<kind>partial|replaced)")


@contextmanager
def atomic_write(path: Path, *, writers: int = 1) -> Iterator[Path]:
    """Yield a temporary path to write to; rename it to ``path`` at the end of the block, or remove it on an error.

    If other processes may write the same file at that time (``writers`` above 1), each has a temporary path of its own.
    """
    token = f"{secrets.token_hex(4)}." if writers > 1 else ""
    temporary = path.with_name(f".{path.name}.{token}partial")
    try:
        yield temporary
        sync_file(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_text_file(text: str, path: Path, *, what: str) -> None:
    """Write a text whole, or not at all. Raises OutputError, which calls it ``what``, if it cannot be written."""
    write_bytes_file(text.encode("utf-8"), path, what=what)


def write_bytes_file(content: bytes, path: Path, *, what: str) -> None:
    """Write a file whole, or not at all. Raises OutputError, which calls it ``what``, if it cannot be written."""
    try:
        with atomic_write(path, writers=2) as temporary:  # nothing keeps two programs from writing the same file
            temporary.write_bytes(content)
    except OSError as error:
        raise write_error(f"{what} cannot be written", error) from error


@contextmanager
def atomic_write_folder(folder: Path, others: EntriesToKeep = lambda _: ()) -> Iterator[Path]:
    """Yield an empty temporary folder; rename it to ``folder`` at the end of the block, or remove it on an error.

    An existing ``folder`` is replaced; the entries that ``others`` lists for it are moved to the new one.
    """
    temporary = _partial_path(folder)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
            (sync_folder if path.is_dir() else sync_file)(path)
        _swap(temporary, folder, others)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def remove_folder(folder: Path) -> None:
    """Remove a folder after renaming it, so that a kill leaves no half of it that looks complete."""
    gone = _partial_path(folder)
    folder.replace(gone)
    shutil.rmtree(gone, ignore_errors=True)  # ``recover_folder`` removes what could not be removed here


def recover_folder(folder: Path, others: EntriesToKeep = lambda _: ()) -> None:
    """Clean up after killed writes of ``folder``. No other process may be writing it.

    A folder that was being replaced gets its name back unless a new one has it. Incomplete folders are removed.
    """
    left = sorted(_find_leftovers(folder), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in [path for path in left if path.suffix == ".replaced"]:
        if not os.path.lexists(folder):
            old.replace(folder)
            sync_folder(folder.parent)
        else:
            _move(others(old), old, folder)
            remove_folder(old)
    for half in [path for path in left if path.suffix == ".partial"]:
        shutil.rmtree(half, ignore_errors=True)


def original_name(path: Path) -> str:
    """The name that a complete folder had before it was replaced; for any other path its present name."""
    left = _LEFTOVER_NAME.fullmatch(path.name)
    return left["name"] if left and left["kind"] == "replaced" else path.name


def sync_file(path: Path) -> None:
    """Sync a file's contents to disk, so that they are there before a rename that follows."""
    with path.open("r+b") as file:  # Windows syncs only files that are open for writing
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Sync a rename inside ``folder`` to disk, if the system can: Windows and some file systems cannot."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(handle)


def _swap(temporary: Path, folder: Path, others: EntriesToKeep) -> None:
    """Rename ``temporary`` to ``folder``, after renaming an existing ``folder`` out of the way."""
    if not folder.exists():
        temporary.replace(folder)
        sync_folder(folder.parent)
        return
    old = temporary.with_suffix(".replaced")
    folder.replace(old)
    try:
        temporary.replace(folder)
    except BaseException:
        old.replace(folder)
        raise
    _move(others(old), old, folder)
    sync_folder(folder.parent)
    remove_folder(old)


def _move(names: Iterable[str], old: Path, new: Path) -> None:
    """Move the named entries that exist in the old folder and not yet in the new one."""
    for name in names:
        if os.path.lexists(old / name) and not os.path.lexists(new / name):  # else it was moved with its folder
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            (old / name).replace(new / name)


def _partial_path(folder: Path) -> Path:
    left = _LEFTOVER_NAME.fullmatch(folder.name)  # a leftover keeps the name of the original folder
    return folder.with_name(f".{left['name'] if left else folder.name}.{secrets.token_hex(4)}.partial")


def _find_leftovers(folder: Path) -> list[Path]:
    if not folder.parent.is_dir():
        return []
    found = ((path, _LEFTOVER_NAME.fullmatch(path.name)) for path in folder.parent.iterdir())
    return [path for path, left in found if left and left["name"] == folder.name and path.is_dir()]
