"""Pictures or sounds with their texts: a folder with a .txt beside each file, or a table of paths and texts.

    photos/1.jpg  photos/1.txt  photos/old/2.png  photos/old/2.txt ..        path,text
                                                                             1.jpg,a red kite

The white space of a text becomes single spaces, and its characters are composed (Unicode's form NFC): so one text is
written in one way.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, final

from regard.columns import Columns
from regard.errors import DataError
from regard.list_files import list_files
from regard.media.medium import Medium
from regard.media.read import check_source, read_and_report
from regard.media.tables import ValueColumn, read_rows
from regard.text.skip_counts import Skipped
from regard.text.text_file import read_text_file
from regard.text.tokenizer import is_unicode


@final
@dataclass(frozen=True)
class FileWithText:
    """A picture or a sound and its text, which is not empty; ``place`` says where it was read, for messages.

    The file is not opened before it is used.
    """

    content: Path
    text: str
    place: str


TextOrSkipped: TypeAlias = FileWithText | Skipped


def normalise_text(text: str) -> str:
    """The text with single spaces as white space, none at its ends, and composed characters (NFC)."""
    return unicodedata.normalize("NFC", " ".join(text.split()))


def read_and_report_files_with_texts(
    paths: Sequence[Path], kind: Medium, columns: Columns | None
) -> list[FileWithText]:
    """Read all files with texts in order, and report what was skipped as notes.

    ``columns`` are the columns of path and text in tables, if they have other names than the medium says.
    Raises OptionError for an unknown format, DataError for a missing source, for no file at all, and as the formats do.
    """
    return read_and_report(_read_all(paths, kind, columns), paths, kind, values="texts")


def _read_all(paths: Sequence[Path], kind: Medium, columns: Columns | None) -> Iterator[TextOrSkipped]:
    for path in paths:
        check_source(path, kind, formats=_formats(kind), values="texts")
    for path in paths:
        yield from _read_folder(path, kind) if path.is_dir() else _read_table(path, kind, columns)


def _formats(kind: Medium) -> str:
    return (
        f"a folder with a NAME.txt beside each {kind.example}; or FILE.csv, FILE.tsv, FILE.jsonl or FILE.json with the "
        "columns path and text"
    )


def _read_table(path: Path, kind: Medium, columns: Columns | None) -> Iterator[TextOrSkipped]:
    for row in read_rows(path, kind, ValueColumn("text", kind.text_names), columns=columns):
        if isinstance(row, Skipped):
            yield row
        elif not isinstance(row.value, str):
            yield Skipped(row.place, "there is no text")
        else:
            yield _add_text(row.file, row.value, row.place)


def _read_folder(folder: Path, kind: Medium) -> Iterator[TextOrSkipped]:
    """Read the files of a folder, by their names in order; hidden files and folders are ignored.

    Raises DataError for a folder without files of the kind, and for one in which no file has a text.
    """
    files = list_files(folder)
    found = [file for file in files if kind.is_name(file)]
    texts = {file.with_suffix(""): file for file in files if file.suffix.lower() == ".txt"}
    if not any(file.with_suffix("") in texts for file in found):
        raise DataError(
            f"{folder} has no {kind.plural} with texts",
            expected=f"{kind.example}, and its text in NAME.txt beside it",
            got=f"{kind.count(len(found))}, and none with a text" if found else f"no {kind.plural}",
            do=f"write the texts beside the {kind.plural}, or give a table of paths and texts: FILE.csv",
        )
    for file in found:
        beside = texts.get(file.with_suffix(""))
        if beside is None:
            yield Skipped(str(file), f"there is no text beside a {kind.singular}")
            continue
        text, problem = read_text_file(beside)
        yield Skipped(str(beside), problem) if problem else _add_text(file, text, str(file))
    for stem in sorted(texts.keys() - {file.with_suffix("") for file in found}):
        yield Skipped(str(texts[stem]), f"there is no {kind.singular} beside a text")


def _add_text(file: Path, text: str, place: str) -> TextOrSkipped:
    if not is_unicode(text):
        return Skipped(place, "there is a lone surrogate, which is half a character")
    text = normalise_text(text)
    return FileWithText(file, text, place) if text else Skipped(place, "the text is empty")
