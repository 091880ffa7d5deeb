"""Sentence pairs from a table, comma-separated or tab-separated: one pair per row, in two of its columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from regard.errors import DataError, OptionError
from regard.text.gzip_io import inner_suffix
from regard.text.line_reader import LineReader
from regard.text.pairs.languages import USUAL_SIDE_NAMES, find_sides, find_two_codes, is_kind_of
from regard.text.pairs.pair import PairOrSkipped, SkippedPair, make_pair
from regard.text.table_rows import split_csv, split_tsv

_USUAL_NAMES = {word for pair in USUAL_SIDE_NAMES for word in pair}
_NAME = re.compile(r"[^\W\d][\w-]*")
"""A name of a column: one word, without the marks of a sentence."""
_LANGUAGE_CODE = re.compile(r"[a-z]{2,3}([-_]\w+)?", re.IGNORECASE)


def read_table(
    path: Path,
    *,
    columns: tuple[int, int] | None = None,
    source: str | None = None,
    target: str | None = None,
) -> Iterator[PairOrSkipped]:
    """Read the pairs of a .csv, or of another file with tabs, plain or gzip. Columns are counted from 1.

    Without ``columns`` they are found in the header, by the languages ``source`` and ``target``, by words such as
    "source" and "target", or by two codes of languages; without a header they are 1 and 2. A row that looks like the
    names of three or more columns, and names neither, raises DataError. The first row is a header, and not a pair, if
    both of its cells are such names. Raises OptionError unless ``columns`` are two different numbers from 1.
    """
    if columns is not None and (min(columns) < 1 or columns[0] == columns[1]):
        raise OptionError(
            "columns must be two different numbers, counted from 1",
            expected="for example 1,2, or 2,1 for the other direction",
            got=f"{columns[0]},{columns[1]}",
            do="look at the first line of the file",
        )
    chosen = columns or (1, 2)
    with closing(LineReader(path)) as lines:
        rows = split_csv(lines) if inner_suffix(path) == ".csv" else split_tsv(lines)
        for number, row in enumerate(rows):
            if row.problem is not None:
                yield SkippedPair(row.place, row.problem)
                continue
            cells = row.cells
            named = _columns_from_heading(cells, source, target) if number == 0 else None
            if number == 0 and columns is None and named is None:
                _check_no_heading(cells, row.place)
            chosen = columns or named or chosen
            if len(cells) < max(chosen):
                is_blank = not any(cell.strip() for cell in cells)
                reason = "the line is blank" if is_blank else f"there are fewer than {max(chosen)} columns"
                yield SkippedPair(row.place, reason)
                continue
            pair = cells[chosen[0] - 1], cells[chosen[1] - 1]
            if named is not None and set(named) == set(chosen):
                continue
            if number == 0 and all(_is_side_name(cell, source, target) for cell in pair):
                continue
            yield make_pair(*pair, row.place)


def _columns_from_heading(cells: Sequence[str], source: str | None, target: str | None) -> tuple[int, int] | None:
    """Columns of source and target by the header; None if the line is not a header or does not tell."""
    for names in (cells, cells[:2]):
        found = find_sides(names, source, target)
        # If one cell is a known language, the other must look like a language code: it may be a sentence.
        if found and all(
            _is_side_name(cells[one], source, target) or _LANGUAGE_CODE.fullmatch(cells[one].strip()) for one in found
        ):
            return found[0] + 1, found[1] + 1
    if source is None and target is None and all(map(_NAME.fullmatch, map(str.strip, cells))):
        codes = find_two_codes(cells)
        return None if codes is None else (codes[0] + 1, codes[1] + 1)
    return None


def _check_no_heading(cells: Sequence[str], place: str) -> None:
    """Raise DataError if the first row looks like the names of three or more columns, of which none is understood."""
    if len(cells) >= 3 and all(map(_NAME.fullmatch, map(str.strip, cells))):
        raise DataError(
            f"it is ambiguous which columns of the table hold the sentence and its translation: {place}",
            expected='columns named "source" and "target", or by the two languages; or the numbers of the columns',
            got=", ".join(repr(cell.strip()[:30]) for cell in cells[:8]),
            do="give the numbers of the two columns, the source first: columns=(2, 3) (--columns 2,3)",
        )


def _is_side_name(cell: str, source: str | None, target: str | None) -> bool:
    """Whether a cell is a usual name of a side or one of the two languages."""
    languages = [language for language in (source, target) if language is not None]
    return cell.strip().lower() in _USUAL_NAMES or any(is_kind_of(cell, language) for language in languages)
