"""Tables in a narrow terminal: words and numbers are whole, headers and reasons are wrapped."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from regard.bench.tables import Table
from regard.bench.terminal import print_tables


@pytest.mark.parametrize("width", [76, 80])
def test_numbers_and_words_are_not_broken(width):
    header = ("mechanism", "cosine", "least", "token error", "nearest", "nearest 10", "time of a text")
    row = ("bigbird:block=16", "0.133", "-0.071", "214.4 %", "15.6 %", "51.6 %", "1,284 ms")
    notes = Table("Not measured", ("mechanism", "reason"), (("linformer", "it has parameters of its own " * 5),), "")
    file = io.StringIO()
    print_tables("heading", [Table("Vectors", header, (row,), ""), notes], Console(file=file, width=width))
    printed = file.getvalue()
    assert max(map(len, printed.splitlines())) <= width
    assert {*" ".join((*header, *row[1:])).split()} <= {*printed.split()}
    assert all(cell in printed for cell in row[1:])
    assert "nearest 10" not in printed, "a header is wrapped between its words"
