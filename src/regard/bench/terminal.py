"""Print tables in the terminal. A table that is wider than the terminal is printed in parts, of some columns each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from regard.bench.tables import Table

_GAP, _EDGES = 3, 2
"""Cells between two columns, and beside the table."""
_LEAST_TEXT = 24
"""Cells that a column of text gets at least; longer texts are wrapped."""
_LEAST_NAME = 8
"""Cells of the first column at least."""


def print_tables(heading: str, tables: Iterable[Table], console: Console) -> None:
    """Print a heading and the tables, each followed by its explanation."""
    console.print(Text(heading))
    for table in tables:
        console.print()
        console.print(Text(table.title, style="bold"))
        for widths in _split_columns(table, console.width - _EDGES):
            console.print(_draw(table, widths))
        if table.explanation:
            console.print(Padding(Text(table.explanation, style="dim"), (0, 0, 0, 0)))


def _split_columns(table: Table, room: int) -> Iterator[dict[int, int]]:
    """Yield the columns of each part with their widths: the first column, and as many others as fit."""
    widths = [_least_width(table, number) for number in range(len(table.header))]
    widths[0] = min(_full_width(table, 0), max(min(room // 2, room - _GAP - max(widths[1:])), _LEAST_NAME))
    part = {0: widths[0]}
    for number in range(1, len(widths)):
        if len(part) > 1 and _total((*part.values(), widths[number])) > room:
            yield _widen(table, part, room)
            part = {0: widths[0]}
        part[number] = widths[number]
    yield _widen(table, part, room)


def _widen(table: Table, widths: dict[int, int], room: int) -> dict[int, int]:
    """Give the columns that are wrapped what room is left."""
    widths = dict(widths)
    for number, width in widths.items():
        left = max(0, room - _total(widths.values()))
        widths[number] = width + min(left, max(0, _full_width(table, number) - width))
    return widths


def _total(widths: Iterable[int]) -> int:
    """The cells of columns with the gaps between them."""
    widths = tuple(widths)
    return sum(widths) + _GAP * (len(widths) - 1)


def _draw(table: Table, widths: Mapping[int, int]) -> RichTable:
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, width in widths.items():
        of_text = number == 0 or number in table.text_columns
        drawn.add_column(
            Text(table.header[number]), justify="left" if of_text else "right", overflow="fold", width=width
        )
    for row in table.rows:
        drawn.add_row(*(Text(row[number]) for number in widths))
    return drawn


def _full_width(table: Table, number: int) -> int:
    """The cells of the longest text in a column."""
    return max(cell_len(cell) for cell in (table.header[number], *(row[number] for row in table.rows)))


def _least_width(table: Table, number: int) -> int:
    """The cells that a column needs: a number and its unit, and a word, stay on one line."""
    name = table.header[number]
    if number in table.text_columns:
        return min(_full_width(table, number), _LEAST_TEXT)
    return max(cell_len(cell) for cell in (*name.split(), *(row[number] for row in table.rows)))
