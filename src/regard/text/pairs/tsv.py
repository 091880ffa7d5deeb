"""Sentence pairs from tab-separated values: one pair per line, in two of its columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from regard.errors import OptionError
from regard.text.line_reader import LineReader, skip_reason
from regard.text.pairs.languages import USUAL_SIDE_NAMES, find_sides, is_kind_of
from regard.text.pairs.pair import PairOrSkipped, SkippedPair, make_pair

_USUAL_NAMES = {word for pair in USUAL_SIDE_NAMES for word in pair}
_LANGUAGE_CODE = re.compile(r"[a-z]{2,3}([-_]\w+)?", re.IGNORECASE)


def read_tsv(
    path: Path,
    *,
    columns: tuple[int, int] | None = None,
    source: str | None = None,
    target: str | None = None,
) -> Iterator[PairOrSkipped]:
    """Read the pairs of a file, plain or gzip. Columns are counted from 1.

    Without ``columns`` they are found in the header, by the languages ``source`` and ``target`` or by words such as
    "source" and "target"; without a header they are 1 and 2. The first line is a header, and not a pair, if both of its
    cells are such names. Raises OptionError unless ``columns`` are two different numbers from 1.
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
        for line in lines:
            if line.problem is not None:
                yield SkippedPair(line.name, skip_reason(line))
                continue
            cells = line.text.split("\t")
            named = _columns_from_heading(cells, source, target) if line.number == 1 else None
            chosen = columns or named or chosen
            if len(cells) < max(chosen):
                reason = "the line is blank" if not line.text.strip() else f"there are fewer than {max(chosen)} columns"
                yield SkippedPair(line.name, reason)
                continue
            pair = cells[chosen[0] - 1], cells[chosen[1] - 1]
            if named is not None and set(named) == set(chosen):
                continue
            if line.number == 1 and all(_is_side_name(cell, source, target) for cell in pair):
                continue
            yield make_pair(*pair, line.name)


def _columns_from_heading(cells: Sequence[str], source: str | None, target: str | None) -> tuple[int, int] | None:
    """Columns of source and target by the header; None if the line is not a header or does not tell."""
    for names in (cells, cells[:2]):
        found = find_sides(names, source, target)
        # If one cell is a known language, the other must look like a language code: it may be a sentence.
        if found and all(
            _is_side_name(cells[one], source, target) or _LANGUAGE_CODE.fullmatch(cells[one].strip()) for one in found
        ):
            return found[0] + 1, found[1] + 1
    return None


def _is_side_name(cell: str, source: str | None, target: str | None) -> bool:
    """Whether a cell is a usual name of a side or one of the two languages."""
    languages = [language for language in (source, target) if language is not None]
    return cell.strip().lower() in _USUAL_NAMES or any(is_kind_of(cell, language) for language in languages)
