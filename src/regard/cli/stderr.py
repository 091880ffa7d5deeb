"""Messages for the user on standard error, apart from the output."""

from __future__ import annotations

import sys

from regard.option_spelling import spell_for_shell


def say(message: str) -> None:
    """Print a message, with the shell's spelling of options, and terminal control characters escaped."""
    from regard.escape_text import escape_text

    print(spell_for_shell(escape_text(message)), file=sys.stderr)
