"""The texts of one column of a table, row by row.

id,text
7,"It rained,
all day."          -> text 1: It rained,\nall day.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

from regard.errors import DataError
from regard.text.line import Line
from regard.text.table_rows import Row

TABLE_SUFFIXES = (".csv", ".tsv", ".tab")

TEXT_NAMES = (
    "text", "sentence", "content", "review", "document", "comment", "message", "tweet", "question", "body", "source",
)  # fmt: skip
"""Names by which the column of the text is found, the usual one first."""
_NUMBER = re.compile(r"[0-9]{1,9}")


def read_column(rows: Iterator[Row], column: str, name: str) -> Iterator[Line]:
    """Yield the text of ``column`` in each row but the header; rows without any cell, blank lines, are left out.

    ``column`` is a name in the first row, or a number from 1; with a number the first row is a text too, unless its
    cell is a usual name of a column of texts. The number of a text is that of its first line. Raises DataError if the
    table ``name`` lacks the column.
    """
    found: _Column | None = None
    before: list[bytes] = []  # a change of the header is a change of the first text
    for row in rows:
        before.append(row.raw)
        if is_blank(row):
            continue
        if found is None:
            found = _find_column(row, column, name)
            if found.has_header:
                continue
        raw, place = b"".join(before), found.place
        before.clear()
        if row.problem is None and place < len(row.cells):
            yield Line(row.number, row.place, raw, row.cells[place])
        else:
            error = row.error or _row_error(row, column, f"the row has fewer than {place + 1} columns")
            yield Line(row.number, row.place, raw, problem=error)


def is_blank(row: Row) -> bool:
    """Whether a row is a blank line."""
    return not row.cells and row.problem is None


def find_name(names: Sequence[str], usual: Sequence[str]) -> int | None:
    """Find the index of the first of the usual names; None if there is none."""
    lowered = [name.strip().lower() for name in names]
    return next((lowered.index(name) for name in usual if name in lowered), None)


@final
class _Column(NamedTuple):
    """The index of a column; whether the first row is a header; and whether that is a guess."""

    place: int
    has_header: bool
    is_guess: bool = False


def _find_column(first: Row, column: str, name: str) -> _Column:
    """Find the column by its name, by its name in other case, or by its number, where a header is a guess."""
    if first.problem is not None:
        raise first.error or _row_error(first, column, first.problem)
    names, column = [cell.strip() for cell in first.cells], column.strip()
    for candidates, wanted in ((names, column), ([one.lower() for one in names], column.lower())):
        if wanted in candidates:
            return _Column(candidates.index(wanted), has_header=True)
    if _NUMBER.fullmatch(column) and 1 <= int(column) <= len(names):
        place = int(column) - 1
        return _Column(place, find_name([names[place]], TEXT_NAMES) is not None, is_guess=True)
    raise DataError(
        f"{name} has no column {column!r}",
        expected=f"{column!r} in the first line, or a number from 1 to {len(names)}",
        got=describe_columns(first),
        do="check the name of the column, or give its number (--field)",
    )


def describe_first_row(first: Row, column: str, name: str) -> str | None:
    """Say whether the first row is a text, which is a guess where the column is given by its number; else None."""
    found = _find_column(first, column, name)
    if not found.is_guess:
        return None
    cell = repr(first.cells[found.place].strip()[:30])
    return f"{name}: {cell}, in the first row, is {'the name of the column' if found.has_header else 'a text'}"


def describe_columns(header: Row) -> str:
    """Name the columns of a table, for messages."""
    return ", ".join(repr(cell.strip()[:30]) for cell in header.cells[:8]) or "none"


def _row_error(row: Row, column: str, reason: str) -> DataError:
    reason = row.problem or reason
    return DataError(
        f"{row.place} {reason.removeprefix('the row ').removeprefix('the line ')}",
        expected=f"a row of the table, with a text in the column {column!r}",
        got=", ".join(repr(cell[:30]) for cell in row.cells[:8]) or repr(row.raw[:60].decode("utf-8", "replace")),
        do="correct the line, or take it out",
    )
