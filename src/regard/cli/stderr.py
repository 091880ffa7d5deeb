"""Messages for the user on standard error, apart from the output."""

from __future__ import annotations

import sys

from regard.cli.argument_options import spell_for_shell


def say(message: str) -> None:
    """Print a message, with marked arguments as options of the command, and terminal control characters escaped."""
    from regard.escape_text import escape_text

    print(spell_for_shell(escape_text(message)), file=sys.stderr)
