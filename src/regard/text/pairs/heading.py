"""The columns of the sentence and its translation in a table, by the names in its first row or by what they hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, final

from regard.columns import Columns
from regard.errors import DataError
from regard.text.column_kinds import ColumnContents, ColumnKind, describe_columns, judge_columns
from regard.text.pairs.languages import (
    NUMBER_NAMES,
    USUAL_SIDE_NAMES,
    find_code,
    find_sides,
    find_two_codes,
    has_language,
)
from regard.text.table_column import describe_sides, find_column
from regard.text.table_heading import has_heading

_USUAL_NAMES = {word for pair in USUAL_SIDE_NAMES for word in pair}
_LANGUAGE_CODE = re.compile(r"[a-z]{2,3}([-_]\w+)?", re.IGNORECASE)
_MAX_SIZE_RATIO = 5
"""Bytes of one column for each byte of its translation, at most; texts beside their titles have more."""


@final
class Heading(NamedTuple):
    """The columns of source and target, from 1; whether the first row is a heading; and whether that is a guess."""

    columns: tuple[int, int]
    is_heading: bool
    is_guess: bool = False


@final
class _Table:
    """The first rows of a table, what its columns hold, and the languages that were asked for."""

    def __init__(self, rows: Sequence[Sequence[str]], place: str, source: str | None, target: str | None) -> None:
        self.cells, self.place, self.source, self.target = rows[0], place, source, target
        known = [self.is_side_name(cell) or find_code(cell) is not None for cell in self.cells]
        self.has_heading = has_heading(rows, known)
        judged = judge_columns(rows[1:] if self.has_heading and len(rows) > 1 else rows)
        self.columns = [*judged, *[ColumnContents(ColumnKind.BLANK)] * (len(self.cells) - len(judged))]
        self.texts = self._find_texts()

    def is_side_name(self, cell: str) -> bool:
        """Whether a cell is a usual name of a side or one of the two languages."""
        languages = [language for language in (self.source, self.target) if language is not None]
        return cell.strip().lower() in _USUAL_NAMES or any(has_language(cell, language) for language in languages)

    def _find_texts(self) -> list[int]:
        """Indices of the columns of texts, with columns of few short texts if there would not be two."""
        width = range(len(self.cells))
        texts = [place for place in width if self.columns[place].kind is ColumnKind.TEXTS]
        texts = texts if len(texts) >= 2 else [place for place in width if self.columns[place].is_text]
        # Of two columns, one may be blank: then every row is skipped for that. Or it has dates, which are translated.
        others = [place for place in width if self.columns[place].kind in (ColumnKind.BLANK, ColumnKind.DATES)]
        return sorted(texts + others) if len(width) == 2 else texts


def read_heading(
    rows: Sequence[Sequence[str]],
    place: str,
    columns: Columns | None,
    source: str | None,
    target: str | None,
) -> Heading:
    """Find the columns by the first rows of a table, unless ``columns`` are given, and whether the first is a heading.

    Raises DataError if the columns do not follow: none is named by a language that was asked for, or there are not
    just two columns of texts.
    """
    table = _Table(rows, place, source, target)
    if columns is not None:
        return _use_columns(table, columns)
    named = _find_named_columns(table)
    if named is not None:
        _check_named_columns(table, named)
        return Heading(_count_from_1(named), is_heading=True)
    has_languages = source is not None or target is not None
    if has_languages and table.has_heading:
        raise _no_language_error(table)
    codes = None if has_languages else _find_codes(table)
    if codes is not None:
        return Heading(_count_from_1(codes), is_heading=True, is_guess=True)
    return Heading(_count_from_1(_find_text_columns(table)), is_heading=table.has_heading, is_guess=table.has_heading)


def _use_columns(table: _Table, columns: Columns) -> Heading:
    """Take the columns that the user gave; with a name the first row is a heading, else that may be a guess."""
    chosen = [find_column(table.cells, column, f"the table ({table.place})") for column in columns]
    numbers = (chosen[0] + 1, chosen[1] + 1)
    if any(isinstance(number, str) for number in columns):
        return Heading(numbers, is_heading=True)
    named, codes = _find_named_columns(table), _find_codes(table)
    is_certain = max(chosen) < len(table.cells) and all(table.is_side_name(table.cells[place]) for place in chosen)
    if is_certain or (named is not None and set(named) == set(chosen)):
        return Heading(numbers, is_heading=True)
    is_guess = table.has_heading or (codes is not None and set(codes) == set(chosen))
    return Heading(numbers, is_heading=is_guess, is_guess=is_guess)


def _find_named_columns(table: _Table) -> tuple[int, int] | None:
    """Find the indices of the columns by the languages or by usual words; None if the row does not name them."""
    every = list(range(len(table.cells)))
    for places in (table.texts, every, every[:2]):
        names = [table.cells[place] for place in places]
        found = find_sides(names, table.source, table.target)
        # If one cell is a known language, the other must look like a language code: it may be a sentence.
        if found and (
            table.has_heading
            or all(table.is_side_name(names[side]) or _LANGUAGE_CODE.fullmatch(names[side].strip()) for side in found)
        ):
            return places[found[0]], places[found[1]]
    return None


def _check_named_columns(table: _Table, named: tuple[int, int]) -> None:
    """Raise DataError if a name is a language, or names the row numbers that its column has.

    Numbers in columns named "source" and "target" are texts, whatever they are.
    """
    for place in named:
        column, name = table.columns[place], table.cells[place].strip().lower()
        is_counter = column.is_counter and name not in _USUAL_NAMES
        if is_counter or (name in NUMBER_NAMES and column.kind is ColumnKind.NUMBERS):
            raise _ambiguous_error(table)


def _find_codes(table: _Table) -> tuple[int, int] | None:
    """Find the columns of texts that are named by just two languages, if the first row can be a heading."""
    if not (table.has_heading or all(map(_is_short_name, table.cells))):
        return None
    of_texts = find_two_codes([cell if place in table.texts else "" for place, cell in enumerate(table.cells)])
    return of_texts or find_two_codes(table.cells)


def _is_short_name(cell: str) -> bool:
    return re.fullmatch(r"[^\W\d][\w-]*", cell.strip()) is not None


def _find_text_columns(table: _Table) -> tuple[int, int]:
    """The two columns of texts, the source first. Raises DataError unless there are just two alike."""
    if len(table.texts) != 2:
        raise _ambiguous_error(table)
    first, second = table.texts
    sizes = sorted(table.columns[place].size for place in (first, second))
    if len(table.cells) > 2 and sizes[1] > _MAX_SIZE_RATIO * sizes[0]:
        raise _ambiguous_error(table)
    return first, second


def _count_from_1(places: tuple[int, int]) -> tuple[int, int]:
    return places[0] + 1, places[1] + 1


def describe_heading(heading: Heading, first: Sequence[str], name: str) -> str:
    """Say which columns of a table are read, and what its first row is taken for."""
    sides = {"source": heading.columns[0] - 1, "target": heading.columns[1] - 1}
    return describe_sides(sides, first, name, is_heading=heading.is_heading, unit="a pair")


def _column_advice(table: _Table) -> str:
    """Advice to name the columns, with numbers that the table has."""
    width = len(table.cells)
    if width < 2:
        return "add the column of the translation"
    numbers = "(1, 2)" if width == 2 else "(2, 3)"
    return f"give the two columns, the source first, by number or by name: `columns={numbers}`"


def _no_language_error(table: _Table) -> DataError:
    languages = [language for language in (table.source, table.target) if language is not None]
    missing = [code for code in languages if not any(has_language(cell, code) for cell in table.cells)] or languages
    return DataError(
        f"no column is named by {' or '.join(map(repr, missing))}, so it is ambiguous which columns of the table hold "
        f"the sentence and its translation: {table.place}",
        expected="columns named by the two languages, or source and target",
        got=describe_columns(table.cells, table.columns),
        do=f"{_column_advice(table)}, or correct the languages (`source=...`, `target=...`)",
    )


def _ambiguous_error(table: _Table) -> DataError:
    return DataError(
        f"it is ambiguous which columns of the table hold the sentence and its translation: {table.place}",
        expected='columns named "source" and "target", or by the two languages; or just two columns of texts',
        got=describe_columns(table.cells, table.columns),
        do=f'{_column_advice(table)}; or the languages, if they name the columns: `source="en", target="fr"`',
    )
