"""Rows of a table from its lines: comma-separated values with quotes, and tab-separated values without."""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, final

from regard.errors import DataError
from regard.text.line import MAX_LINE_BYTES, Line, skip_reason
from regard.text.lookahead import Lookahead

_MAX_BYTES_AGAIN = 2**26
"""Bytes of a file that are read again after rows that are not valid, so that time is linear in hostile files too."""


@final
class TableRow(NamedTuple):
    """A row: its cells, none for a blank line; the number and the name of its first line; and its bytes.

    ``problem`` is the reason to skip the row, if there is one, and ``error`` the error of its first line without a
    text.
    """

    cells: Sequence[str]
    place: str
    problem: str | None = None
    number: int = 1
    raw: bytes = b""
    error: DataError | None = None
    is_names: bool = False
    """Whether the format says that the row has the names of the columns, as Parquet does."""

    def size(self) -> int:
        """Bytes of the row."""
        return len(self.raw)


def read_ahead(first: TableRow, rows: Lookahead[TableRow]) -> list[Sequence[str]]:
    """The cells of the first row of a table, and of the usable rows after it, which tell what the columns hold."""
    after = [row.cells for row in rows.peek() if row.problem is None and any(cell.strip() for cell in row.cells)]
    return [first.cells, *after]


def split_rows(lines: Iterable[Line], *, quoted: bool) -> Iterator[TableRow]:
    """Split the lines of a table into rows: with quotes (``split_csv``), or at tabs (``split_tsv``).

    A first line ``sep=;``, as Excel writes it, names the separator and is no row. Its bytes belong to the first row.
    """
    source = iter(lines)
    first = next(source, None)
    if first is None:
        return
    separator = named_separator(_text(first))
    if separator is None:
        source = chain([first], source)
    is_csv = quoted or separator not in (None, "\t")
    rows = split_csv(source, separator) if is_csv else split_tsv(source)
    before = b"" if separator is None else first.raw
    for row in rows:
        yield row._replace(raw=before + row.raw) if before else row
        before = b""


def split_tsv(lines: Iterable[Line]) -> Iterator[TableRow]:
    """Split the lines of a TSV file into rows; quotes have no meaning."""
    for line in lines:
        problem = None if line.problem is None else skip_reason(line)
        yield TableRow(
            line.text.split("\t") if line.text else [], line.name, problem, line.number, line.raw, line.problem
        )


def split_csv(lines: Iterable[Line], separator: str | None = None) -> Iterator[TableRow]:
    """Split the lines of a CSV file into rows; a quoted cell may have several lines.

    Without a ``separator`` it follows from the first line (``find_separator``). A row that is not valid is taken
    for a stray quote in its first line: the next row begins with the next line. Lines are read again for this up to
    ``_MAX_BYTES_AGAIN``; after that, all lines of such a row are left out, and counted in its problem.
    """
    allow_long_cells()
    source = iter(lines)
    first = next(source, None)
    if first is None:
        return
    separator = separator or find_separator(_text(first))
    waiting, read, left = deque([first]), list[Line](), _MAX_BYTES_AGAIN

    def texts() -> Iterator[str]:
        size = 0
        while (line := waiting.popleft() if waiting else next(source, None)) is not None:
            size = len(line.raw) + (size if read else 0)
            read.append(line)
            if size > MAX_LINE_BYTES:
                raise csv.Error("a row is too long")
            yield _text(line)

    while True:
        reader = csv.reader(texts(), delimiter=separator, strict=True)
        try:
            for cells in reader:
                yield _make_row(cells, read, None)
                read.clear()
            return
        except csv.Error as error:
            problem, again = f"the row is not valid CSV: {_reason(error)}", read[1:]
            left -= sum(len(line.raw) for line in again)
            if left < 0 and again:
                problem += f"; with {len(again):,} lines after it"
                again = []
            yield _make_row([], read[:1], problem)
            waiting.extendleft(reversed(again))
            read.clear()


def _text(line: Line) -> str:
    """The text of a line with its ending; if it cannot be decoded, the part that can, so that its quotes count."""
    ending = "\r\n" if line.raw.endswith(b"\r\n") else "\n"
    if line.problem is None:
        return line.text + ending
    return line.raw.decode("utf-8", "replace").rstrip("\r\n").replace("\0", "") + ending


def _make_row(cells: Sequence[str], lines: Sequence[Line], problem: str | None) -> TableRow:
    broken = next((line for line in lines if line.problem is not None), None)
    first, raw = lines[0], b"".join(line.raw for line in lines)
    if broken is None:
        return TableRow(cells, first.name, problem, first.number, raw)
    return TableRow(cells, first.name, skip_reason(broken), first.number, raw, broken.problem)


def _reason(error: csv.Error) -> str:
    if "new-line character" in str(error):  # the rest of the message is for programmers
        return "a carriage return is outside of quotes"
    return f"the quotes are not closed, or text follows them ({error})"


_QUOTED = re.compile(r'"[^"]*"')
_NAMED_SEPARATOR = re.compile(r'"?sep=([^\w\s"]|\t)"?[,;\t]*\s*', re.IGNORECASE)


def named_separator(line: str) -> str | None:
    """The separator that the first line of a file names: ``sep=;`` is a line for Excel, and no row. None for a row.

    Other programs that save such a file put the line in quotes, or add empty cells to it.
    """
    found = _NAMED_SEPARATOR.fullmatch(line)
    return None if found is None else found[1]


def find_separator(line: str) -> str:
    """The comma, semicolon or tab that the first line has most often; else a comma.

    Text in quotes does not count, nor a comma before a space, which is one of a sentence.
    """
    plain = _QUOTED.sub("", line).replace(", ", " ")
    return max(",;\t", key=plain.count)


def allow_long_cells() -> None:
    """Let ``csv`` read cells as long as the longest line: its limit is one for the process, and short for documents."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
