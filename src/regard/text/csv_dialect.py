"""How CSV files are read: which character separates cells, and how long a cell may be."""

from __future__ import annotations

import csv

from regard.text.line import MAX_LINE_BYTES


def find_separator(line: str) -> str:
    """A comma, or a semicolon if the first line has one and no comma."""
    return ";" if ";" in line and "," not in line else ","


def allow_long_cells() -> None:
    """Let ``csv`` read cells as long as the longest line: its limit is one for the process, and short for documents."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
