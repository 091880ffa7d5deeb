"""The texts of one column of a table, row by row.

id,text
7,"It rained,
all day."          -> text 1: It rained,\nall day.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, final

from regard.errors import DataError
from regard.text.column_kinds import ColumnContents, ColumnKind, describe_columns, judge_columns
from regard.text.line import Line
from regard.text.lookahead import Lookahead
from regard.text.table_heading import has_heading
from regard.text.table_rows import TableRow, read_ahead

PARQUET_SUFFIX = ".parquet"
TABLE_SUFFIXES = (".csv", ".tsv", ".tab", PARQUET_SUFFIX)

TEXT_NAMES = (
    "text", "sentence", "content", "review", "document", "comment", "message", "tweet", "question", "body", "source",
)  # fmt: skip
"""Names by which the column of the text is found, the usual one first."""
_NUMBER = re.compile(r"[0-9]{1,9}")


def read_column(rows: Iterator[TableRow], column: str, name: str) -> Iterator[Line]:
    """Yield the text of ``column`` in each row but the header; rows without any cell, blank lines, are left out.

    ``column`` is a name in the first row, or a number from 1; with a number the rows tell whether the first is a text
    or has the names of the columns. The number of a text is the number of its first line. Raises DataError if the table
    ``name`` lacks the column.
    """
    found: TextColumn | None = None
    before: list[bytes] = []  # a change of the header is a change of the first text
    ahead = Lookahead(rows, TableRow.size)
    for row in ahead:
        before.append(row.raw)
        if is_blank(row):
            continue
        if found is None:
            found = find_text_column(row, ahead, column, name)
            if found.has_header:
                continue
        raw, place = b"".join(before), found.place
        before.clear()
        if row.problem is None and place < len(row.cells):
            yield Line(row.number, row.place, raw, row.cells[place])
        else:
            error = row.error or _row_error(row, column, f"the row has fewer than {place + 1} columns")
            yield Line(row.number, row.place, raw, problem=error)


def is_blank(row: TableRow) -> bool:
    """Whether a row is a blank line."""
    return not row.cells and row.problem is None


def find_name(names: Sequence[str], usual: Sequence[str]) -> int | None:
    """Find the index of the first of the usual names; None if there is none."""
    lowered = [name.strip().lower() for name in names]
    return next((lowered.index(name) for name in usual if name in lowered), None)


def find_column(header: Sequence[str], column: str | int, name: str, *, do: str = "`columns=(1, 2)`") -> int:
    """Find the index of a column by its name, by its name in other case, or by its number from 1.

    Raises DataError if the first row of the table ``name`` lacks it; ``do`` says how to give a number, or two.
    """
    if isinstance(column, int):
        return column - 1
    names, column = [cell.strip() for cell in header], column.strip()
    for candidates, name_of_column in ((names, column), ([known.lower() for known in names], column.lower())):
        if name_of_column in candidates:
            return candidates.index(name_of_column)
    raise DataError(
        f"{name} has no column {column!r}",
        expected=f"{column!r} in the first line, or a number from 1 to {len(names)}",
        got=_join_names(names),
        do="check the name of the column" + (f", or give its number: {do}" if len(names) > 1 else ""),
    )


def describe_sides(sides: Mapping[str, int], first: Sequence[str], name: str, *, is_heading: bool, unit: str) -> str:
    """Say from which columns the sides are read, by index, and what the first row is: a heading or a ``unit``."""
    columns = [
        f"{side} from column {place + 1}"
        + (f" ({first[place].strip()[:30]!r})" if is_heading and place < len(first) else "")
        for side, place in sides.items()
    ]
    listed = ", ".join(columns)
    if is_heading:
        return f"{name}: {listed}; the first row has the names of the columns"
    return f"{name}: {listed}; the first row is {unit}"


@final
class TextColumn(NamedTuple):
    """The index of a column of texts; whether the first row is a header; whether that, or the column, is a guess."""

    place: int
    has_header: bool
    is_guess: bool = False


def find_text_column(first: TableRow, rows: Lookahead[TableRow], column: str | None, name: str) -> TextColumn:
    """Find the column of the text by its name, or by its number, where the rows tell whether the first is a header.

    Without a ``column`` it is the one of a usual name, or the only one that holds texts. Raises DataError if the table
    ``name`` lacks it, or if it is ambiguous.
    """
    if first.problem is not None:
        raise first.error or _row_error(first, column or TEXT_NAMES[0], first.problem)
    if column is None:
        return _guess_column(first, rows, name)
    names = [cell.strip().lower() for cell in first.cells]
    if column.strip().lower() not in names and _NUMBER.fullmatch(column.strip()) and 1 <= int(column) <= len(names):
        place = int(column) - 1
        has_header = first.is_names or find_name([names[place]], TEXT_NAMES) is not None
        return TextColumn(place, has_header or has_heading(read_ahead(first, rows)), not first.is_names)
    return TextColumn(find_column(first.cells, column, name, do='`field="1"`'), has_header=True)


def _guess_column(first: TableRow, rows: Lookahead[TableRow], name: str) -> TextColumn:
    cells = read_ahead(first, rows)
    has_header = first.is_names or has_heading(cells)
    columns = judge_columns(cells[1:] if has_header and len(cells) > 1 else cells)
    place = find_text_name(first.cells, columns)
    if place is not None:
        return TextColumn(place, has_header=True, is_guess=True)
    texts = [place for place, column in enumerate(columns) if column.kind is ColumnKind.TEXTS]
    texts = texts or [place for place, column in enumerate(columns) if column.is_text]
    if len(texts) == 1 and texts[0] < len(first.cells):
        return TextColumn(texts[0], has_header, is_guess=True)
    raise DataError(
        f"it is ambiguous which column of {name} holds the text",
        expected='a column named "text" or similarly, or just one column of texts',
        got=describe_columns(first.cells, columns),
        do='name the column, or give its number from 1: `field="..."`; if each line is a text, let the '
        "name of the file end in .txt",
    )


def find_text_name(names: Sequence[str], columns: Sequence[ColumnContents]) -> int | None:
    """Find the index of the column with a usual name of texts, best of those that hold texts; None if there is none."""
    of_texts = [name if place < len(columns) and columns[place].is_text else "" for place, name in enumerate(names)]
    found = find_name(of_texts, TEXT_NAMES)
    return find_name(names, TEXT_NAMES) if found is None else found


def describe_text_column(first: TableRow, found: TextColumn, name: str) -> str:
    """Say which column is read, and whether the first row is a text."""
    cell = repr(first.cells[found.place].strip()[:30])
    return f"{name}: {cell}, in the first row, is {'the name of the column' if found.has_header else 'a text'}"


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(repr(name.strip()[:30]) for name in names[:8]) or "none"


def _row_error(row: TableRow, column: str, reason: str) -> DataError:
    reason = row.problem or reason
    return DataError(
        f"{row.place} {reason.removeprefix('the row ').removeprefix('the line ')}",
        expected=f"a row of the table, with a text in the column {column!r}",
        got=", ".join(repr(cell[:30]) for cell in row.cells[:8]) or repr(row.raw[:60].decode("utf-8", "replace")),
        do="correct the line, or take it out",
    )
