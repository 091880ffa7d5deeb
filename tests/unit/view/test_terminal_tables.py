"""Tables that leave out columns in a narrow terminal."""

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from hypothesis_examples import examples
from regard.view.terminal_tables import Column, fitted_table

COLUMNS = (
    Column("name", wraps_from=8),
    Column("share", "right"),
    Column("bar", leave_out=1),
    Column("more", leave_out=2),
)
ROWS = [["nystromformer", "12.5 %", "######", "5 of 7"], ["漢", "3.0 %", "#", "1 of 7"]]


def shown(width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(fitted_table(COLUMNS, ROWS, width))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_columns_are_left_out_in_their_order():
    assert shown(40)[0].split() == ["name", "share", "bar", "more"]
    assert shown(27)[0].split() == ["name", "share", "more"]
    assert shown(20)[0].split() == ["name", "share"]


@given(st.integers(16, 60))
@examples(20)
def test_no_cell_is_cut_and_no_line_is_too_wide(width):
    lines = shown(width)
    assert all(cell_len(line) <= width for line in lines)
    text = "".join(line.split("  ")[0] for line in lines[1:])
    assert text.startswith("nystromformer"[:8])
    assert "12.5 %" in "\n".join(lines)
