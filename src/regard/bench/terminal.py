"""Print tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from regard.bench.tables import Table


def print_tables(heading: str, tables: Iterable[Table], console: Console) -> None:
    """Print a heading and the tables, each followed by its explanation."""
    console.print(Text(heading))
    for table in tables:
        console.print()
        console.print(Text(table.title, style="bold"))
        drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        for number, name in enumerate(table.header):
            of_text = number == 0 or name in ("reason", "what")
            cells = [row[number] for row in table.rows]
            drawn.add_column(
                Text(name),
                justify="left" if of_text else "right",
                overflow="fold",
                no_wrap=number == 0,
                # A number and its unit, and a word, stay on one line: only headers and reasons are wrapped.
                min_width=None if of_text else max(cell_len(one) for one in (*name.split(), *cells)),
            )
        for row in table.rows:
            drawn.add_row(*(Text(cell) for cell in row))
        console.print(drawn)
        if table.explanation:
            console.print(Padding(Text(table.explanation, style="dim"), (0, 0, 0, 0)))
