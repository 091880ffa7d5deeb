"""The longest cell of a CSV file. The library's limit is one for the whole process, and too low for documents."""

from __future__ import annotations

import csv

from regard.text.line_reader import MAX_LINE_BYTES


def allow_long_cells() -> None:
    """Let ``csv`` read cells as long as the longest line."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
