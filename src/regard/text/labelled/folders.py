"""Labelled texts from a folder: one folder per label, with one text per file.

reviews/neg/0.txt  reviews/neg/1.txt  reviews/pos/0.txt ..      the labels are neg and pos
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

from regard.errors import DataError
from regard.text.gzip_io import inner_suffix, open_decompressed
from regard.text.labelled.labelled_text import LabelledOrSkipped, SkippedText, labels_of_cell, make_labelled
from regard.text.line import MAX_LINE_BYTES

_SUFFIXES = ("", ".txt", ".text")


def read_folder(path: Path, *, split: bool) -> Iterator[LabelledOrSkipped]:
    """Read the texts of a folder, by the names of its files in order; hidden files and folders are ignored.

    Files are UTF-8, plain or gzip, and named .txt or without a suffix. Raises DataError for a folder without folders.
    """
    folders = sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))
    if not folders:
        raise DataError(
            f"{path} has no folders of texts",
            expected="one folder for each label, with one text per file",
            got=", ".join(sorted(one.name for one in path.iterdir())[:5]) or "an empty folder",
            do="arrange the files as LABEL/NAME.txt, or give a table: FILE.csv",
        )
    for folder in folders:
        labels = labels_of_cell(folder.name, split=split)
        for file in sorted(one for one in folder.rglob("*") if one.is_file() and not one.name.startswith(".")):
            if inner_suffix(file) not in _SUFFIXES:
                yield SkippedText(str(file), "a file is not named .txt")
                continue
            text, problem = read_text_file(file)
            made = make_labelled(text, labels, str(file), split=split)
            yield made if problem is None else SkippedText(str(file), problem)


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
