"""Sentence pairs from a table, comma-separated or tab-separated: one pair per row, in two of its columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from regard.errors import OptionError
from regard.text.line_reader import LineReader
from regard.text.pairs.heading import read_heading
from regard.text.pairs.pair import PairOrSkipped, SkippedPair, make_pair


def read_table(
    path: Path,
    *,
    columns: tuple[int, int] | None = None,
    source: str | None = None,
    target: str | None = None,
) -> Iterator[PairOrSkipped]:
    """Read the pairs of a .csv, or of another file with tabs, plain or gzip. Columns are counted from 1.

    Without ``columns`` they are found in the heading, by the languages ``source`` and ``target``, by words such as
    "source" and "target", or by two codes of languages; without a heading they are 1 and 2 (``read_heading``). Raises
    DataError for a heading that is not understood, OptionError unless ``columns`` are two different numbers from 1.
    """
    if columns is not None and (min(columns) < 1 or columns[0] == columns[1]):
        raise OptionError(
            "columns must be two different numbers, counted from 1",
            expected="for example 1,2, or 2,1 for the other direction",
            got=f"{columns[0]},{columns[1]}",
            do="look at the first line of the file",
        )
    chosen: tuple[int, int] | None = None
    with closing(LineReader(path)) as lines:
        for row in lines.rows():
            cells = row.cells
            if row.problem is not None or not any(cell.strip() for cell in cells):
                yield SkippedPair(row.place, row.problem or "the line is blank")
                continue
            if chosen is None:
                heading = read_heading(cells, row.place, columns, source, target)
                chosen = heading.columns
                if heading.is_guess:
                    yield SkippedPair(row.place, "the row is taken for the names of the columns")
                if heading.is_heading:
                    continue
            if len(cells) < max(chosen):
                yield SkippedPair(row.place, f"there are fewer than {max(chosen)} columns")
                continue
            yield make_pair(cells[chosen[0] - 1], cells[chosen[1] - 1], row.place)
