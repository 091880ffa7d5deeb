"""Files and a value of each from a table or JSON lines: the path of a file and its label, or its text, in each row.

    path,label                  {"path": "a/1.jpg", "label": "daisy"}
    a/1.jpg,daisy

Paths are relative to the folder of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import final

from regard.columns import Columns
from regard.errors import DataError
from regard.media.labelled_file import LabelledFile, LabelledOrSkipped
from regard.media.medium import Medium
from regard.text.gzip_io import inner_suffix
from regard.text.labelled.columns import LABEL_NAMES
from regard.text.labelled.labelled_text import labels_of_value
from regard.text.labelled.read import read_rows as read_table_rows
from regard.text.line_reader import JSON_SUFFIXES, LineReader, read_objects
from regard.text.skip_counts import Skipped
from regard.text.table_column import TABLE_SUFFIXES, TEXT_NAMES, find_column, find_name


@final
@dataclass(frozen=True)
class ValueColumn:
    """The column of a table beside the paths of files: a word for messages, and its usual names."""

    word: str
    names: tuple[str, ...]


LABEL = ValueColumn("label", LABEL_NAMES)


@final
@dataclass(frozen=True)
class FileRow:
    """A row of a table: the file, its value as written in the table, None if the row has none, and the place."""

    file: Path
    value: object
    place: str


def is_table(path: Path) -> bool:
    """Whether the name of a file is the name of a table or of JSON lines."""
    return inner_suffix(path) in (*TABLE_SUFFIXES, *JSON_SUFFIXES)


def names_files(path: Path, kind: Medium) -> bool:
    """Whether a table names files of this kind: by the first path in a column of a usual name, or one that exists.

    Of a medium with ``by_header`` the names of the columns of path and label are enough, whatever the path. A table
    with a column of a usual name for texts does not.
    """
    try:
        with closing(LineReader(path)) as lines:
            if inner_suffix(path) in JSON_SUFFIXES:
                first_object = next(read_objects(lines), None)
                record = {} if first_object is None or isinstance(first_object, Skipped) else first_object[1]
                names, cells = list(record), [value if isinstance(value, str) else "" for value in record.values()]
                first = cells
            else:
                rows = list(islice(lines.rows(), 2))
                if not rows or any(row.problem is not None for row in rows):
                    return False
                names = first = list(rows[0].cells)
                cells = list(rows[-1].cells)
    except DataError:  # an empty file
        return False
    if find_name(names, TEXT_NAMES) is not None:
        return False
    column = find_name(names, kind.columns)
    if column is not None and find_name(names, LABEL_NAMES) is not None:
        return kind.by_header or (column < len(cells) and kind.is_name(Path(cells[column].strip())))
    return any(kind.is_name(Path(cell.strip())) and (path.parent / cell.strip()).is_file() for cell in first)


def read_table(path: Path, kind: Medium, *, columns: Columns | None) -> Iterator[LabelledOrSkipped]:
    """Read the files and labels of a table or of JSON lines: see ``read_rows``."""
    for row in read_rows(path, kind, LABEL, columns=columns):
        if isinstance(row, Skipped):
            yield row
            continue
        names = labels_of_value(row.value, split=False)
        if names is not None and len(names) == 1:
            yield LabelledFile(row.file, names[0], row.place)
        else:
            yield Skipped(row.place, "it has several labels" if names else "there is no label")


def read_rows(path: Path, kind: Medium, value: ValueColumn, *, columns: Columns | None) -> Iterator[FileRow | Skipped]:
    """Read the rows of a table or of JSON lines, plain or gzip; a quoted cell of a CSV may have several lines.

    ``columns`` are the columns of path and value, by name or by number from 1; None finds them by their names, or takes
    the first two. Raises DataError if the columns are ambiguous or missing.
    """
    if inner_suffix(path) in JSON_SUFFIXES:
        return _json_rows(path, kind, value, columns)
    return _cell_rows(path, kind, value, columns)


def _json_rows(path: Path, kind: Medium, value: ValueColumn, columns: Columns | None) -> Iterator[FileRow | Skipped]:
    fields: tuple[str, str] | None = None
    with closing(LineReader(path)) as lines:
        for entry in read_objects(lines):
            if isinstance(entry, Skipped):
                yield entry
                continue
            line, record = entry
            fields = fields or _find_fields(list(record), columns, line.name, kind, value)
            file, found = (record.get(name) for name in fields)
            yield _make_row(file, found, path.parent, line.name)


def _cell_rows(path: Path, kind: Medium, value: ValueColumn, columns: Columns | None) -> Iterator[FileRow | Skipped]:
    places: tuple[int, int] | None = None
    width = 0
    for row in read_table_rows(path):
        cells = row.cells
        if row.problem is not None or not any(cell.strip() for cell in cells):
            yield Skipped(row.place, row.problem or "the line is blank")
            continue
        if places is None:
            width = len(cells)
            places, is_header = _find_columns(cells, columns, str(path), kind, value)
            if is_header:
                continue
        if len(cells) > width:
            yield Skipped(row.place, "the row has more cells than the first one")
            continue
        file, found = (cells[place] if place < len(cells) else None for place in places)
        yield _make_row(file, found, path.parent, row.place)


def _make_row(file: object, value: object, folder: Path, place: str) -> FileRow | Skipped:
    if not isinstance(file, str) or not file.strip() or "\0" in file:
        return Skipped(place, "there is no path")
    return FileRow(folder / Path(file.strip()), value, f"{file.strip()} ({place})")


def _find_columns(
    first: Sequence[str], columns: Columns | None, name: str, kind: Medium, value: ValueColumn
) -> tuple[tuple[int, int], bool]:
    """The indices of path and value, from 0, and whether the first row is a header."""
    found = find_name(first, kind.columns), find_name(first, value.names)
    if columns is not None and all(isinstance(column, int) for column in columns):
        file, other = (int(column) - 1 for column in columns)
        return (file, other), not (file < len(first) and kind.is_name(Path(first[file].strip())))
    if columns is not None:
        file, other = (find_column(first, column, name) for column in columns)
        return (file, other), True
    if found[0] is not None and found[1] is not None:
        return (found[0], found[1]), True
    if len(first) == 2 and kind.is_name(Path(first[0].strip())):
        return (0, 1), False
    raise _columns_error(name, first, kind, value)


def _find_fields(
    names: Sequence[str], columns: Columns | None, name: str, kind: Medium, value: ValueColumn
) -> tuple[str, str]:
    if columns is not None:
        file, other = map(str, columns)
        if file in names and other in names:
            return file, other
        raise _columns_error(name, names, kind, value, has_numbers=False)
    found = find_name(names, kind.columns), find_name(names, value.names)
    if found[0] is None or found[1] is None:
        raise _columns_error(name, names, kind, value, has_numbers=False)
    return names[found[0]], names[found[1]]


def _columns_error(
    name: str, got: Sequence[str], kind: Medium, value: ValueColumn, *, has_numbers: bool = True
) -> DataError:
    """The error for columns that do not follow; fields of JSON have no numbers."""
    named = f'`columns=("path", "{value.word}")`'
    return DataError(
        f"it is ambiguous which columns of {name} hold the path of the {kind.singular} and its {value.word}",
        expected=f'columns named "path" and "{value.word}"'
        + (", or two columns without names, the path first" if has_numbers else ""),
        got=", ".join(repr(cell[:30]) for cell in got[:8]),
        do=f"name the two, or give their numbers: {named} or `columns=(1, 2)`"
        if has_numbers and len(got) > 1
        else f"name the two: {named}",
    )
