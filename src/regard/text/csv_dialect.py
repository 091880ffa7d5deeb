"""How CSV files are read: which character separates cells, and how long a cell may be."""

from __future__ import annotations

import csv
import re

from regard.text.line import MAX_LINE_BYTES

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

    What is in quotes does not count, nor a comma before a space, which is one of a sentence.
    """
    plain = _QUOTED.sub("", line).replace(", ", " ")
    return max(",;\t", key=plain.count)


def allow_long_cells() -> None:
    """Let ``csv`` read cells as long as the longest line: its limit is one for the process, and short for documents."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
