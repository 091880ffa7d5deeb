"""Labelled texts from tables: comma-separated values with quotes, and tab-separated values without."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import NamedTuple, final

from regard.text.csv_dialect import allow_long_cells, find_separator
from regard.text.labelled.columns import Columns, find_columns
from regard.text.labelled.labelled_text import LabelledOrSkipped, SkippedText, labels_of_cell, make_labelled
from regard.text.line_reader import LineReader, skip_reason


@final
class Row(NamedTuple):
    """A row: its cells, and its place in the file; ``problem`` is the reason to skip it, if there is one."""

    cells: Sequence[str]
    place: str
    problem: str | None = None


def read_csv(path: Path, *, columns: Columns | None, split: bool) -> Iterator[LabelledOrSkipped]:
    """Read the texts of a CSV file, plain or gzip; a quoted cell may have several lines. See ``read_tsv``.

    The separator is a comma, or a semicolon if the first line has one and no comma.
    """
    return _read_rows(read_csv_rows(path), columns, split, str(path))


def read_tsv(path: Path, *, columns: Columns | None, split: bool) -> Iterator[LabelledOrSkipped]:
    """Read the texts of a TSV file, plain or gzip; quotes have no meaning.

    ``columns`` are those of text and label, by name or by number from 1; None finds them in the header, or takes the
    first two. ``split`` says whether a cell may hold several labels. Raises DataError if the columns are ambiguous.
    """
    return _read_rows(read_tsv_rows(path), columns, split, str(path))


def _read_rows(rows: Iterator[Row], columns: Columns | None, split: bool, name: str) -> Iterator[LabelledOrSkipped]:
    places: tuple[int, int] | None = None
    for row in rows:
        if row.problem is not None:
            yield SkippedText(row.place, row.problem)
            continue
        if not any(cell.strip() for cell in row.cells):
            yield SkippedText(row.place, "the line is blank")
            continue
        if places is None:
            places, is_header = find_columns(row.cells, columns, name)
            if is_header:
                continue
        if len(row.cells) <= max(places):
            yield SkippedText(row.place, f"there are fewer than {max(places) + 1} columns")
            continue
        text, label = (row.cells[place] for place in places)
        yield make_labelled(text, labels_of_cell(label, split=split), row.place, split=split)


def read_tsv_rows(path: Path) -> Iterator[Row]:
    """The rows of a TSV file, plain or gzip; quotes have no meaning."""
    with closing(LineReader(path)) as lines:
        for line in lines:
            problem = None if line.problem is None else skip_reason(line)
            yield Row(line.text.split("\t"), line.name, problem)


def read_csv_rows(path: Path) -> Iterator[Row]:
    """The rows of a CSV file, plain or gzip; a quoted cell may have several lines. See ``read_csv``."""
    allow_long_cells()
    with closing(LineReader(path)) as lines:
        problems: dict[int, str] = {}

        def texts() -> Iterator[str]:
            for line in lines:
                if line.problem is not None:
                    problems[line.number] = skip_reason(line)
                yield line.text + "\n"

        stream = texts()
        first = next(stream, "")
        reader = csv.reader(chain([first], stream), delimiter=find_separator(first), strict=True)
        while True:
            begin, problem = reader.line_num + 1, None
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                cells, problem = [], f"the row is not valid CSV: {_reason(error)}"
            within = (problems[number] for number in range(begin, reader.line_num + 1) if number in problems)
            yield Row(cells, f"line {begin} of {lines.name}", next(within, problem))


def _reason(error: csv.Error) -> str:
    if "new-line character" in str(error):  # the rest of the message is for programmers
        return "a carriage return is outside of quotes"
    return f"the quotes are not closed, or text follows them ({error})"
