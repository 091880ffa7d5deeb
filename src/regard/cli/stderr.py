"""A line for people, on standard error: what goes on, beside what is written."""

from __future__ import annotations

import sys


def say(message: str) -> None:
    """The message, with whatever would act on a terminal written out."""
    from regard.view.escape_text import escape_text

    print(escape_text(message), file=sys.stderr)
