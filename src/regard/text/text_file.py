"""A file that is one text, as in a folder of texts: UTF-8, plain or gzip, named .txt or without a suffix."""

from __future__ import annotations

import zlib
from pathlib import Path

from regard.errors import DataError
from regard.text.gzip_io import inner_suffix, open_decompressed
from regard.text.line import MAX_LINE_BYTES

_SUFFIXES = ("", ".txt", ".text")


def is_text_name(file: Path) -> bool:
    """Whether the name of a file is that of a text."""
    return inner_suffix(file) in _SUFFIXES


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
        text = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError:
        return "", "a file is not UTF-8"
    return (text, None) if "\0" not in text else ("", "a file contains zero bytes, and is no text")
