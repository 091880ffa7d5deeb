"""Where lines go: standard output, or a file that has its name once it is complete.

What ends early, by a line that cannot be used, an interruption or a full disk, leaves what was written so far beside
the output, and says how many lines that is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from regard.cli.stderr import say
from regard.errors import OutputError, OutputExistsError, RegardError, write_error


def check_output_file(out: Path | None, *, overwrite: bool) -> None:
    """Raise OutputExistsError for a file that nobody said to replace, OutputError for a folder."""
    if out is None or not os.path.lexists(out):
        return
    if out.is_dir():
        raise OutputError(f"{out} is a folder", expected="the name of a file", got="a folder", do="name a file in it")
    if not overwrite and not _is_device(out):
        raise OutputExistsError(
            f"{out} exists already", expected="a new file", got="an existing one", do="add --overwrite"
        )


@contextmanager
def open_output_file(out: Path | None) -> Iterator[TextIO]:
    """A file to write to. Raises OutputError where that is refused."""
    if out is None:
        yield sys.stdout
    elif _is_device(out):
        with out.open("w", encoding="utf-8", newline="\n") as file:
            yield file
    else:
        yield from _open_partial_file(out)


def _is_device(out: Path) -> bool:
    """Whether it is something else than a file, such as /dev/null or a named pipe, which must not be replaced."""
    return out.exists() and not out.is_file()


def _open_partial_file(out: Path) -> Iterator[TextIO]:
    from regard.atomic_write import sync_file, sync_folder

    aside = out.with_name(f"{out.name}.partial")
    try:
        with aside.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        sync_file(aside)
        aside.replace(out)
        sync_folder(out.absolute().parent)
    except OSError as error:
        _report_partial_file(aside)
        if isinstance(error, RegardError):
            raise
        raise write_error(f"{out} cannot be written", error) from error
    except BaseException:
        _report_partial_file(aside)
        raise


def _report_partial_file(aside: Path) -> None:
    """Say what is kept; nothing is, where nothing was written."""
    if not aside.is_file():
        return
    with aside.open("rb") as file:
        lines = sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
    if lines:
        say(f"{aside}: {lines:,} lines, as far as it came")
    else:
        aside.unlink()
