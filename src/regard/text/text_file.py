"""A file that is one text, as in a folder of texts: UTF-8, plain or gzip, named .txt or without a suffix.

Texts of a folder: each file in it and in its folders is a text, in the order of their paths.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import final, overload

from regard.errors import DataError
from regard.list_files import list_entries, why_no_file
from regard.text.gzip_io import inner_suffix, open_decompressed
from regard.text.line import MAX_LINE_BYTES, Line
from regard.text.skip_counts import SkipCounts
from regard.text.tokenizer import is_unicode

_SUFFIXES = ("", ".txt", ".text")


def list_texts(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """The entries of a folder and of its folders in order, each with the reason to skip it; None for a text."""
    for entry in list_entries(folder):
        if not entry.is_file():
            yield entry, why_no_file(entry)
        else:
            yield entry, None if inner_suffix(entry) in _SUFFIXES else "a file is not named .txt"


def read_text_file(file: Path) -> tuple[str, str | None]:
    """Read a file in UTF-8, plain or gzip; return its text, and the reason if it cannot be used."""
    try:
        with open_decompressed(file) as stream:
            content = stream.read(MAX_LINE_BYTES + 1)
    except (OSError, EOFError, zlib.error, DataError):
        return "", "a file cannot be read"
    if len(content) > MAX_LINE_BYTES:
        return "", f"a file has more than {MAX_LINE_BYTES:,} bytes"
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError:
        return "", "a file is not UTF-8"
    return (text, None) if "\0" not in text else ("", "a file contains zero bytes, and is no text")


@final
class TextFolder(Sequence[Line]):
    """The texts of a folder, each read when it is taken; hidden files, and those not named .txt, are left out.

    ``skipped`` says in words what was left out. Raises DataError for a folder without texts.
    """

    def __init__(self, folder: Path) -> None:
        skips, files = SkipCounts(), list[Path]()
        for entry, problem in list_texts(folder):
            if problem is None:
                files.append(entry)
            else:
                skips.add(str(entry), problem)
        if not files:
            raise DataError(
                f"{folder} has no texts",
                expected="files of texts, such as NAME.txt",
                got=f"{sum(count for count, _ in skips.skipped.values()):,} other files",
                do="check the path; of a table or of JSON lines give the file itself",
            )
        self.skipped, self._files = skips.sentences(), files

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, index: int) -> Line: ...
    @overload
    def __getitem__(self, index: slice) -> list[Line]: ...
    def __getitem__(self, index: int | slice) -> Line | list[Line]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        return _read(self._files[index], range(1, len(self) + 1)[index])


def _read(file: Path, number: int) -> Line:
    text, problem = read_text_file(file)
    if problem is None and not is_unicode(text):
        problem = "there is a lone surrogate, which is half a character"
    raw = text.encode("utf-8", "surrogatepass")
    if problem is None:
        return Line(number, str(file), raw, text)
    error = DataError(f"{file} cannot be used", expected="plain text in UTF-8", got=problem, do="leave it out")
    return Line(number, str(file), raw, problem=error)
