"""The columns of the text and of the label in a table, or their fields in JSON lines: by name, by number, or found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from regard.errors import DataError, OptionError, short_repr
from regard.text.table_column import TEXT_NAMES, find_name

Columns: TypeAlias = tuple[str | int, str | int]
"""Columns of text and label: names, or numbers from 1."""

LABEL_NAMES = (
    "label", "labels", "class", "category", "categories", "target", "sentiment", "topic", "intent", "tags", "stars",
)  # fmt: skip
"""Names by which the column of the label is found, the usual one first."""


def check_columns(columns: object, names: tuple[str, str]) -> None:
    """Raise OptionError unless ``columns`` are None, or two different ones; ``names`` are their usual names."""
    listed = columns if isinstance(columns, tuple) else ()
    valid = len(listed) == 2 and listed[0] != listed[1] and all(map(_is_column, listed))
    if columns is not None and not valid:
        first, second = names
        raise OptionError(
            f"wrong columns of {first} and {second}",
            expected="two different columns, by name or by number from 1",
            got=short_repr(columns),
            do=f'for example columns=("{first}", "{second}") (--columns {first},{second}) or columns=(2, 1) '
            "(--columns 2,1)",
        )


def find_columns(first: Sequence[str], columns: Columns | None, place: str) -> tuple[tuple[int, int], bool]:
    """Find the indices of text and label, from 0, and whether the first row of the table is a header.

    Raises DataError if the header lacks a column, or if it is ambiguous which columns are meant.
    """
    if columns is not None and all(isinstance(one, int) for one in columns):
        text, label = (int(one) - 1 for one in columns)
        return (text, label), _is_header(first, text, label)
    if columns is not None:
        text, label = (_find_column(first, one, place) for one in columns)
        return (text, label), True
    found = find_name(first, TEXT_NAMES), find_name(first, LABEL_NAMES)
    if found[0] is not None and found[1] is not None:
        return (found[0], found[1]), True
    if found == (None, None) and len(first) == 2:
        return (0, 1), False
    raise DataError(
        f"it is ambiguous which columns of {place} hold the text and the label",
        expected='columns named "text" and "label", or two columns without names, the text first',
        got=f"{len(first)} columns: " + ", ".join(repr(cell[:30]) for cell in first[:8]),
        do="name the two, the text first, or give their numbers: columns=(2, 1) (--columns NAME,NAME or --columns 2,1)",
    )


def _find_column(header: Sequence[str], column: str | int, place: str) -> int:
    if isinstance(column, int):
        return column - 1
    names = [name.strip() for name in header]
    for candidates, wanted in ((names, column), ([name.lower() for name in names], column.lower())):
        if wanted in candidates:
            return candidates.index(wanted)
    raise DataError(
        f"{place} has no column {column!r}",
        expected=f"a header with {column!r}",
        got=", ".join(repr(name[:30]) for name in names[:8]),
        do="check the name of the column, or give its number: columns=(1, 2) (--columns 1,2)",
    )


def _is_column(one: object) -> bool:
    if isinstance(one, str):
        return bool(one.strip())
    return isinstance(one, int) and not isinstance(one, bool) and one >= 1


def _is_header(first: Sequence[str], text: int, label: int) -> bool:
    """Whether the first row names the columns, which were given by number: one of the two names is enough."""
    if max(text, label) >= len(first):
        return False
    return find_name([first[text]], TEXT_NAMES) is not None or find_name([first[label]], LABEL_NAMES) is not None
