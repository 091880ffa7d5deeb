"""Output of lines: standard output, or a file that gets its final name once it is complete.

A run that ends early (an unusable line, an interruption, a full disk) leaves the lines written so far in
``OUT.partial`` and reports their number.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TextIO, final

from regard.cli.stderr import say
from regard.errors import OutputError, OutputExistsError, RegardError, write_error
from regard.language import count_noun


def check_output_file(out: Path | None, *, overwrite: bool, data: str | None = None) -> None:
    """Raise OutputExistsError for an existing file unless ``overwrite``, OutputError for a folder and for the input."""
    if out is None or not os.path.lexists(out):
        return
    if data not in (None, "-") and out.is_file() and Path(str(data)).is_file() and out.samefile(str(data)):
        raise OutputError(
            f"{out} is the input, which the output would replace",
            expected="two files",
            got=f"--data {data} --out {out}",
            do="choose another --out",
        )
    if out.is_dir():
        raise OutputError(f"{out} is a folder", expected="the name of a file", got="a folder", do="name a file in it")
    if not overwrite and not _is_device(out):
        raise OutputExistsError(
            f"{out} already exists", expected="a new file", got="an existing file", do="add --overwrite"
        )


class TextOutput(Protocol):
    """The destination of text."""

    def write(self, text: str, /) -> int:
        """Write the text, and return its length."""
        ...

    def flush(self) -> None:
        """Pass on what was written."""
        ...


@final
class _Terminal:
    """The terminal: control characters but line breaks and tabs are escaped, since they could do anything there."""

    def write(self, text: str, /) -> int:
        from regard.escape_text import escape_text

        lines = ("\t".join(map(escape_text, line.split("\t"))) for line in text.split("\n"))
        return sys.stdout.write("\n".join(lines))

    def flush(self) -> None:
        sys.stdout.flush()


@contextmanager
def open_output_file(out: Path | None) -> Iterator[TextOutput]:
    """Open the output for writing; None is standard output. Raises OutputError if it cannot be written."""
    if out is None:
        yield _Terminal() if sys.stdout.isatty() else sys.stdout
    elif _is_device(out):
        yield from _open_device(out)
    else:
        yield from _open_partial_file(out)


def _is_device(out: Path) -> bool:
    """Whether the path is no regular file, such as /dev/null or a named pipe, and so must not be replaced."""
    return out.exists() and not out.is_file()


def _open_device(out: Path) -> Iterator[TextIO]:
    try:
        with out.open("w", encoding="utf-8", newline="\n") as file:
            yield file
    except OSError as error:
        if isinstance(error, RegardError):
            raise
        raise write_error(f"{out} cannot be written", error) from error


def _open_partial_file(out: Path) -> Iterator[TextIO]:
    from regard.atomic_write import sync_file, sync_folder

    temporary = out.with_name(f"{out.name}.partial")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        sync_file(temporary)
        temporary.replace(out)
        sync_folder(out.absolute().parent)
    except OSError as error:
        _report_partial_file(temporary)
        if isinstance(error, RegardError):
            raise
        raise write_error(f"{out} cannot be written", error) from error
    except BaseException:
        _report_partial_file(temporary)
        raise


def _report_partial_file(temporary: Path) -> None:
    """Report the number of lines in the partial file, or delete it if it has none."""
    if not temporary.is_file():
        return
    with temporary.open("rb") as file:
        lines = sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
    if lines:
        say(f"{temporary}: the {count_noun(lines, 'line that was', 'lines that were')} finished")
    else:
        temporary.unlink()
