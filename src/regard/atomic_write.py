"""Files and folders that are written aside: under another name, brought to the disk, then renamed.

So each is there complete or not at all, whatever ends the process. A kill may leave these beside NAME:

    .NAME.partial              a file, as far as it was written; the next one takes its place
    .NAME.TOKEN.partial        a folder, as far as it was written, or what is left of one that was being removed
    .NAME.TOKEN.replaced       a whole folder, which gave its name away to a new one

No folder can be renamed onto a full one. So between two renames there is none called NAME, and ``recover_folder`` gives
the name back to the folder that was to be replaced.
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

EntriesToKeep = Callable[[Path], Iterable[str]]
"""What lies in a folder and is to lie in the one that replaces it: relative paths, a folder before what is in it."""

_LEFTOVER_NAME = re.compile(r"\.(?P<name>.+)\.[a-z0-9_]{8}\.(?P<kind>partial|replaced)")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Where to write a file, which becomes ``path`` when all is written, or is removed where that fails."""
    aside = path.with_name(f".{path.name}.partial")
    try:
        yield aside
        sync_file(aside)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def atomic_write_folder(folder: Path, others: EntriesToKeep = lambda _: ()) -> Iterator[Path]:
    """An empty folder to write into, which becomes ``folder`` when all is written, or is removed where that fails.

    A ``folder`` that is there is replaced. ``others`` of it are kept.
    """
    aside = _partial_path(folder)
    aside.mkdir(parents=True)
    try:
        yield aside
        for path in (*aside.rglob("*"), aside):
            (sync_folder if path.is_dir() else sync_file)(path)
        _swap(aside, folder, others)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def remove_folder(folder: Path) -> None:
    """Remove a folder, under another name: a kill leaves no half of it that looks like a whole one."""
    gone = _partial_path(folder)
    folder.replace(gone)
    shutil.rmtree(gone, ignore_errors=True)  # the rest goes another time: see ``recover_folder``


def recover_folder(folder: Path, others: EntriesToKeep = lambda _: ()) -> None:
    """Put in order what kills left of writing ``folder``, while nobody else writes it.

    The folder that was being replaced gets its name back where no other has it. What was half written is removed.
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
    """The name of a whole folder: its own, or the one that it gave away; of anything else that which it has."""
    left = _LEFTOVER_NAME.fullmatch(path.name)
    return left["name"] if left and left["kind"] == "replaced" else path.name


def sync_file(path: Path) -> None:
    """Wait until the disk has it: the rename that follows must not come first."""
    with path.open("r+b") as file:  # Windows brings to the disk only what may be written
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring a rename to the disk, where the system can: Windows opens no folder, some file systems sync none."""
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


def _swap(aside: Path, folder: Path, others: EntriesToKeep) -> None:
    """Put ``aside`` where ``folder`` is, which steps back first."""
    if not folder.exists():
        aside.replace(folder)
        sync_folder(folder.parent)
        return
    old = aside.with_suffix(".replaced")
    folder.replace(old)
    try:
        aside.replace(folder)
    except BaseException:
        old.replace(folder)
        raise
    _move(others(old), old, folder)
    sync_folder(folder.parent)
    remove_folder(old)


def _move(names: Iterable[str], old: Path, new: Path) -> None:
    """Move what is so named. What is in the new folder already stays as it is there."""
    for name in names:
        if os.path.lexists(old / name) and not os.path.lexists(new / name):  # else it went with its folder
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            (old / name).replace(new / name)


def _partial_path(folder: Path) -> Path:
    left = _LEFTOVER_NAME.fullmatch(folder.name)  # what is left of a folder keeps that one's name
    return folder.with_name(f".{left['name'] if left else folder.name}.{secrets.token_hex(4)}.partial")


def _find_leftovers(folder: Path) -> list[Path]:
    if not folder.parent.is_dir():
        return []
    found = ((path, _LEFTOVER_NAME.fullmatch(path.name)) for path in folder.parent.iterdir())
    return [path for path, left in found if left and left["name"] == folder.name and path.is_dir()]
