"""Tables for the terminal: of shares with bars, and ones that leave out their least important columns to fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

_GAP = 2
"""Cells between two columns."""
BAR_WIDTH = 20  # width of a share of 100 %, in characters
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@final
@dataclass(frozen=True)
class Column:
    """A column: its name, and the order in which columns are left out, 1 first (0 is never).

    Cells wider than ``wraps_from`` are wrapped; None is never.
    """

    name: str
    justify: Literal["left", "right"] = "left"
    leave_out: int = 0
    wraps_from: int | None = None


def fitted_table(columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], width: int) -> Table:
    """Make a table of as many columns as ``width`` cells have room for."""
    widths = [_width(column, [row[at] for row in rows]) for at, column in enumerate(columns)]
    shown = list(range(len(columns)))
    for at in sorted((at for at in shown if columns[at].leave_out), key=lambda at: columns[at].leave_out):
        if sum(widths[place] + _GAP for place in shown) - _GAP <= width:
            break
        shown.remove(at)
    table = Table(box=None, pad_edge=False)
    for at in shown:
        column = columns[at]
        table.add_column(column.name, justify=column.justify, no_wrap=column.wraps_from is None, overflow="fold")
    for row in rows:
        table.add_row(*(row[at] for at in shown))
    return table


def _width(column: Column, cells: Sequence[str | Text]) -> int:
    widest = max(cell_len(str(cell)) for cell in (column.name, *cells))
    return widest if column.wraps_from is None else min(widest, column.wraps_from)


def make_share_table(name: str, number: str, rows: Sequence[tuple[str, float]], *, plain: bool) -> Table:
    """A table of names with their shares, as numbers and as bars."""
    table = Table(box=None, pad_edge=False)
    table.add_column(name)
    table.add_column(number, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for text, share in rows:
        table.add_row(Text(text, style="bold"), f"{100 * share:.1f} %", bar(share, plain=plain))
    return table


def bar(share: float, *, plain: bool) -> Text:
    """Draw a bar of blocks, in eighths of a character, or of # for a terminal with only ASCII."""
    if plain:
        return Text("#" * round(share * BAR_WIDTH), style="cyan")
    eighths = round(share * BAR_WIDTH * 8)
    return Text("█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip(), style="cyan")
