"""Labelled texts from tables: comma-separated values with quotes, and tab-separated values without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from regard.columns import Columns
from regard.log import log
from regard.text.labelled.columns import LabelColumns, describe_label_columns, find_columns
from regard.text.labelled.labelled_text import LabelledOrSkipped, labels_of_cell, make_labelled
from regard.text.line_reader import LineReader
from regard.text.lookahead import Lookahead
from regard.text.skip_counts import Skipped
from regard.text.table_rows import TableRow


def read_table(path: Path, *, columns: Columns | None, split: bool) -> Iterator[LabelledOrSkipped]:
    """Read the texts of a table, plain or gzip: see ``LineReader.rows``.

    ``columns`` are the columns of text and label, by name or by number from 1; None finds them by the header, or by
    what they hold, and reports a guess as notes. ``split`` says whether a cell may hold several labels. Raises
    DataError if the columns are ambiguous.
    """
    found: LabelColumns | None = None
    rows = Lookahead(read_rows(path), TableRow.size)
    for row in rows:
        if row.problem is not None:
            yield Skipped(row.place, row.problem)
            continue
        if not any(cell.strip() for cell in row.cells):
            yield Skipped(row.place, "the line is blank")
            continue
        if found is None:
            found = find_columns(row, rows, columns, str(path))
            if found.is_guess:
                log.info(describe_label_columns(found, row.cells, str(path)))
            if found.is_heading:
                continue
        places = found.text, found.label
        if len(row.cells) <= max(places):
            yield Skipped(row.place, f"there are fewer than {max(places) + 1} columns")
            continue
        text, label = (row.cells[place] for place in places)
        yield make_labelled(text, labels_of_cell(label, split=split), row.place, split=split)


def read_rows(path: Path) -> Iterator[TableRow]:
    """Read the rows of a table, plain or gzip."""
    with closing(LineReader(path)) as lines:
        yield from lines.rows()
