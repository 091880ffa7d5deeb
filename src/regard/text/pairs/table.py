"""Sentence pairs from a table, comma-separated or tab-separated: one pair per row, in two of its columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from regard.columns import Columns
from regard.log import log
from regard.text.line_reader import LineReader
from regard.text.lookahead import Lookahead
from regard.text.pairs.heading import Heading, describe_heading, read_heading
from regard.text.pairs.pair import PairOrSkipped, make_pair
from regard.text.skip_counts import Skipped
from regard.text.table_rows import TableRow, read_ahead


def read_table(
    path: Path, *, columns: Columns | None = None, source: str | None = None, target: str | None = None
) -> Iterator[PairOrSkipped]:
    """Read the pairs of a table, plain or gzip: see ``LineReader.rows``.

    Without ``columns``, names or numbers from 1, they are found by the first rows: in a heading by the languages
    ``source`` and ``target``, by words such as "source" and "target", or by two languages; else they are the only two
    that hold texts. Which they are is reported as notes. Raises DataError if they are ambiguous (``read_heading``).
    """
    heading: Heading | None = None
    with closing(LineReader(path)) as lines:
        rows = Lookahead(lines.rows(), TableRow.size)
        for row in rows:
            cells = row.cells
            if row.problem is not None or not any(cell.strip() for cell in cells):
                yield Skipped(row.place, row.problem or "the line is blank")
                continue
            if heading is None:
                heading = read_heading(read_ahead(row, rows), row.place, columns, source, target)
                if columns is None:
                    log.info(describe_heading(heading, cells, str(path)))
                if heading.is_guess:
                    yield Skipped(row.place, "the row is taken for the names of the columns")
                if heading.is_heading:
                    continue
            first, second = heading.columns
            if len(cells) < max(first, second):
                yield Skipped(row.place, f"there are fewer than {max(first, second)} columns")
                continue
            yield make_pair(cells[first - 1], cells[second - 1], row.place)
