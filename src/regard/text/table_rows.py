"""Rows of a table from its lines: comma-separated values with quotes, and tab-separated values without."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, final

from regard.text.csv_dialect import allow_long_cells, find_separator
from regard.text.line import Line, skip_reason


@final
class Row(NamedTuple):
    """A row: its cells, the name of its first line, and its bytes; ``problem`` is the reason to skip it, if any."""

    cells: Sequence[str]
    place: str
    problem: str | None = None
    raw: bytes = b""


def split_tsv(lines: Iterable[Line]) -> Iterator[Row]:
    """Split the lines of a TSV file into rows; quotes have no meaning."""
    for line in lines:
        problem = None if line.problem is None else skip_reason(line)
        yield Row(line.text.split("\t"), line.name, problem, line.raw)


def split_csv(lines: Iterable[Line]) -> Iterator[Row]:
    """Split the lines of a CSV file into rows; a quoted cell may have several lines.

    The separator is a comma, or a semicolon if the first line has one and no comma.
    """
    allow_long_cells()
    read: list[Line] = []

    def texts() -> Iterator[str]:
        for line in lines:
            read.append(line)
            yield line.text + "\n"

    stream = texts()
    first = next(stream, None)
    if first is None:
        return
    reader = csv.reader(chain([first], stream), delimiter=find_separator(first), strict=True)
    while True:
        problem = None
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            cells, problem = [], f"the row is not valid CSV: {_reason(error)}"
        broken = (skip_reason(line) for line in read if line.problem is not None)
        yield Row(cells, read[0].name, next(broken, problem), b"".join(line.raw for line in read))
        read.clear()


def _reason(error: csv.Error) -> str:
    if "new-line character" in str(error):  # the rest of the message is for programmers
        return "a carriage return is outside of quotes"
    return f"the quotes are not closed, or text follows them ({error})"
