"""Tables in a narrow terminal: words and numbers are whole, headers and reasons are wrapped, and wide tables cut."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from regard.bench.tables import Table
from regard.bench.terminal import print_tables


@pytest.mark.parametrize("width", [40, 60, 76, 80, 120])
def test_numbers_and_words_are_not_broken(width):
    header = ("mechanism", "cosine", "least", "token error", "nearest", "nearest 10", "time of a text")
    row = ("bigbird:block=16", "0.133", "-0.071", "214.4 %", "15.6 %", "51.6 %", "1,284 ms")
    notes = Table("Not measured", ("mechanism", "reason"), (("linformer", "it has parameters of its own " * 5),), "")
    file = io.StringIO()
    print_tables("heading", [Table("Vectors", header, (row,), ""), notes], Console(file=file, width=width))
    printed = file.getvalue()
    assert max(map(len, printed.splitlines())) <= width
    assert {*" ".join((*header, *row)).split()} <= {*printed.split()}
    assert all(cell in printed for cell in row[1:])
    if width == 80:
        assert "time of a text" not in printed, "a header is wrapped between its words"


@pytest.mark.parametrize("width", [30, 60])
def test_long_names_are_folded(width):
    rows = (("nystromformer:landmarks=16,iterations=6,convolution=null", "5.11: 114.5 %", "12.3 ms"),)
    file = io.StringIO()
    table = Table("Heads", ("mechanism", "worst head", "time"), rows, "")
    print_tables("heading", [table], Console(file=file, width=width))
    printed = file.getvalue()
    assert max(map(len, printed.splitlines())) <= width
    assert all(cell in printed for cell in rows[0][1:])
