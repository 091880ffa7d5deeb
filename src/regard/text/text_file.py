"""A file that is one text, as in a folder of texts: UTF-8, plain or gzip, named .txt or without a suffix."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Iterator
from pathlib import Path

from regard.errors import DataError
from regard.list_files import list_entries, why_no_file
from regard.text.gzip_io import inner_suffix, open_decompressed
from regard.text.line import MAX_LINE_BYTES

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
