"""Messages for the user on standard error, apart from the output."""

from __future__ import annotations

import sys


def say(message: str) -> None:
    """Print a message, with terminal control characters escaped."""
    from regard.escape_text import escape_text

    print(escape_text(message), file=sys.stderr)
