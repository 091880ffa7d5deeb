"""The columns of source and target of a table, and whether its first row is a heading, with the names of the columns.

Columns are named for certain by the languages that are known, or by words such as "source" and "target". Two codes or
names of languages that were not asked for, and three or more single words, are a guess, which is reported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, final

from regard.errors import DataError
from regard.text.pairs.languages import USUAL_SIDE_NAMES, find_sides, find_two_codes, is_kind_of

_USUAL_NAMES = {word for pair in USUAL_SIDE_NAMES for word in pair}
_NAME = re.compile(r"[^\W\d][\w-]*")
_LANGUAGE_CODE = re.compile(r"[a-z]{2,3}([-_]\w+)?", re.IGNORECASE)


@final
class Heading(NamedTuple):
    """The columns of source and target, from 1; whether the first row is a heading; and whether that is a guess."""

    columns: tuple[int, int]
    is_heading: bool
    is_guess: bool = False


def read_heading(
    cells: Sequence[str], place: str, columns: tuple[int, int] | None, source: str | None, target: str | None
) -> Heading:
    """Find the columns by the first row, unless ``columns`` are given, and decide whether the row is a heading.

    Raises DataError for a row of three or more names from which the columns do not follow.
    """
    named, codes = _find_named_columns(cells, source, target), _find_codes(cells, source, target)
    if columns is None:
        if named is not None:
            return Heading(named, is_heading=True)
        if codes is not None:
            return Heading(codes, is_heading=True, is_guess=True)
        if _are_names(cells) or _begins_with_number(cells):
            raise _ambiguous_error(cells, place)
        return Heading((1, 2), is_heading=_are_sides(cells, (1, 2), source, target))
    if _are_sides(cells, columns, source, target) or (named is not None and set(named) == set(columns)):
        return Heading(columns, is_heading=True)
    is_guess = _are_names(cells) or (codes is not None and set(codes) == set(columns))
    return Heading(columns, is_heading=is_guess, is_guess=is_guess)


def _find_named_columns(cells: Sequence[str], source: str | None, target: str | None) -> tuple[int, int] | None:
    """Find the columns by the languages or by usual words; None if the row does not name them."""
    for names in (cells, cells[:2]):
        found = find_sides(names, source, target)
        # If one cell is a known language, the other must look like a language code: it may be a sentence.
        if found and all(
            _is_side_name(cells[one], source, target) or _LANGUAGE_CODE.fullmatch(cells[one].strip()) for one in found
        ):
            return found[0] + 1, found[1] + 1
    return None


def _find_codes(cells: Sequence[str], source: str | None, target: str | None) -> tuple[int, int] | None:
    """Find the columns by two codes of languages, if none is known and all cells are names."""
    is_open = source is None and target is None and all(_NAME.fullmatch(cell.strip()) for cell in cells)
    codes = find_two_codes(cells) if is_open else None
    return None if codes is None else (codes[0] + 1, codes[1] + 1)


def _are_names(cells: Sequence[str]) -> bool:
    """Whether a row looks like the names of three or more columns: single words, without the marks of a sentence."""
    return len(cells) >= 3 and all(_NAME.fullmatch(cell.strip()) for cell in cells)


def _begins_with_number(cells: Sequence[str]) -> bool:
    """Whether the first of three or more columns has a number, such as that of the row, and so no sentence."""
    return len(cells) >= 3 and cells[0].strip().isdecimal()


def _are_sides(cells: Sequence[str], columns: tuple[int, int], source: str | None, target: str | None) -> bool:
    """Whether both columns have the name of a side."""
    return max(columns) <= len(cells) and all(_is_side_name(cells[one - 1], source, target) for one in columns)


def _is_side_name(cell: str, source: str | None, target: str | None) -> bool:
    """Whether a cell is a usual name of a side or one of the two languages."""
    languages = [language for language in (source, target) if language is not None]
    return cell.strip().lower() in _USUAL_NAMES or any(is_kind_of(cell, language) for language in languages)


def _ambiguous_error(cells: Sequence[str], place: str) -> DataError:
    return DataError(
        f"it is ambiguous which columns of the table hold the sentence and its translation: {place}",
        expected='columns named "source" and "target", or by the two languages; or the numbers of the columns',
        got=", ".join(repr(cell.strip()[:30]) for cell in cells[:8]),
        do="give the numbers of the two columns, the source first: columns=(2, 3) (--columns 2,3); or the languages, "
        'if they name the columns: source="en", target="fr" (--source en --target fr)',
    )
