"""How CSV files are read: which character separates cells, and how long a cell may be."""

from __future__ import annotations

import csv
import re

from regard.text.line import MAX_LINE_BYTES

_QUOTED = re.compile(r'"[^"]*"')


def find_separator(line: str) -> str:
    """The comma, semicolon or tab that the first line has most often; else a comma.

    What is in quotes does not count, nor a comma before a space, which is one of a sentence.
    """
    plain = _QUOTED.sub("", line).replace(", ", " ")
    return max(",;\t", key=plain.count)


def allow_long_cells() -> None:
    """Let ``csv`` read cells as long as the longest line: its limit is one for the process, and short for documents."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
