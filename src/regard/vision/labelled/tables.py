"""Labelled pictures from a table or JSON lines: the path of a picture and its label in each row.

    path,label                  {"path": "a/1.jpg", "label": "daisy"}
    a/1.jpg,daisy

Paths are relative to the folder of the table.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from regard.errors import DataError
from regard.text.gzip_io import inner_suffix
from regard.text.labelled.columns import LABEL_NAMES, TEXT_NAMES, Columns, find_name
from regard.text.labelled.labelled_text import labels_of_value
from regard.text.line_reader import LineReader, skip_reason
from regard.vision.labelled.labelled_picture import LabelledOrSkipped, LabelledPicture, SkippedPicture
from regard.vision.picture_file import is_picture_name

TABLE_SUFFIXES = (".csv", ".tsv", ".tab")
JSON_SUFFIXES = (".jsonl", ".ndjson")
PATH_NAMES = ("path", "image", "picture", "file", "filename", "file_name", "image_path", "img", "photo")
"""Names by which the column of the picture is found, the usual one first."""


def is_table(path: Path) -> bool:
    """Whether the name of a file is that of a table or of JSON lines."""
    return inner_suffix(path) in (*TABLE_SUFFIXES, *JSON_SUFFIXES)


def names_pictures(path: Path) -> bool:
    """Whether a table names pictures: by the names of its columns, or by a picture in its first row that exists.

    A table with a column of a usual name for texts does not.
    """
    try:
        with closing(LineReader(path)) as lines:
            first = next(iter(lines), None)
    except DataError:  # an empty file
        return False
    if first is None or first.problem is not None:
        return False
    if inner_suffix(path) in JSON_SUFFIXES:
        record = _parse_object(first.text) or {}
        names, cells = list(record), [one for one in record.values() if isinstance(one, str)]
    else:
        names = cells = _split(first.text, path)
    if find_name(names, TEXT_NAMES) is not None:
        return False
    named = find_name(names, PATH_NAMES) is not None and find_name(names, LABEL_NAMES) is not None
    return named or any(_is_picture(one) and (path.parent / one.strip()).is_file() for one in cells)


def read_table(path: Path, *, columns: Columns | None) -> Iterator[LabelledOrSkipped]:
    """Read the rows of a table or of JSON lines, plain or gzip.

    ``columns`` are those of path and label, by name or by number from 1; None finds them by their names, or takes the
    first two. Raises DataError if the columns are ambiguous or missing.
    """
    places: tuple[int, int] | tuple[str, str] | None = None
    with closing(LineReader(path)) as lines:
        for line in lines:
            if line.problem is not None or not line.text.strip():
                reason = "the line is blank" if line.problem is None else skip_reason(line)
                yield SkippedPicture(line.name, reason)
                continue
            if inner_suffix(path) in JSON_SUFFIXES:
                record = _parse_object(line.text)
                if record is None:
                    yield SkippedPicture(line.name, "the line is not a JSON object")
                    continue
                places = places or _find_fields(list(record), columns, line.name)
                picture, label = (record.get(str(place)) for place in places)
            else:
                cells = _split(line.text, path)
                if places is None:
                    places, is_header = _find_columns(cells, columns, str(path))
                    if is_header:
                        continue
                picture, label = (cells[int(place)] if int(place) < len(cells) else None for place in places)
            yield _labelled(picture, label, path.parent, line.name)


def _labelled(picture: object, label: object, folder: Path, place: str) -> LabelledOrSkipped:
    names = labels_of_value(label, split=False)
    if not isinstance(picture, str) or not picture.strip() or "\0" in picture:
        return SkippedPicture(place, "there is no path")
    if not names:
        return SkippedPicture(place, "there is no label")
    return LabelledPicture(folder / Path(picture.strip()), names[0], f"{picture.strip()} ({place})")


def _split(line: str, path: Path) -> list[str]:
    if inner_suffix(path) == ".csv":
        separator = ";" if ";" in line and "," not in line else ","
        return next(csv.reader([line], delimiter=separator), [])
    return line.split("\t")


def _find_columns(first: Sequence[str], columns: Columns | None, name: str) -> tuple[tuple[int, int], bool]:
    """The indices of path and label, from 0, and whether the first row is a header."""
    found = find_name(first, PATH_NAMES), find_name(first, LABEL_NAMES)
    if columns is not None and all(isinstance(one, int) for one in columns):
        picture, label = (int(one) - 1 for one in columns)
        return (picture, label), not (picture < len(first) and _is_picture(first[picture]))
    if columns is not None:
        wanted = [find_name(first, [str(one).lower()]) for one in columns]
        if wanted[0] is not None and wanted[1] is not None:
            return (wanted[0], wanted[1]), True
    elif found[0] is not None and found[1] is not None:
        return (found[0], found[1]), True
    elif len(first) == 2 and _is_picture(first[0]):
        return (0, 1), False
    raise _columns_error(name, first)


def _find_fields(names: Sequence[str], columns: Columns | None, name: str) -> tuple[str, str]:
    if columns is not None:
        picture, label = map(str, columns)
        if picture in names and label in names:
            return picture, label
        raise _columns_error(name, names)
    found = find_name(names, PATH_NAMES), find_name(names, LABEL_NAMES)
    if found[0] is None or found[1] is None:
        raise _columns_error(name, names)
    return names[found[0]], names[found[1]]


def _columns_error(name: str, got: Sequence[str]) -> DataError:
    return DataError(
        f"it is ambiguous which columns of {name} hold the path of the picture and its label",
        expected='columns named "path" and "label", or two columns without names, the path first',
        got=", ".join(repr(cell[:30]) for cell in got[:8]),
        do='name the two, or give their numbers: columns=("path", "label") (--columns path,label or --columns 1,2)',
    )


def _parse_object(text: str) -> dict[str, object] | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _is_picture(text: str) -> bool:
    return is_picture_name(Path(text.strip()))
