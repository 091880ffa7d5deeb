"""Messages for the user on standard error, apart from the output."""

from __future__ import annotations

import sys

from regard.cli.argument_options import spell_for_shell
from regard.errors import RegardError
from regard.language import translate_message


def say(message: str) -> None:
    """Print a message in the language in use, with marked arguments as options, and control characters escaped."""
    from regard.escape_text import escape_text

    print(spell_in_language(escape_text(message)), file=sys.stderr)


def spell_in_language(message: str) -> str:
    """The message in the language in use, with marked arguments as options of the command."""
    return spell_for_shell(translate_message(message))


def error_in_language(error: RegardError) -> RegardError:
    """The error with its parts in the language in use; ``got`` may be the user's own text."""
    return RegardError(
        translate_message(error.what),
        expected=translate_message(error.expected),
        got=translate_message(error.got, is_value=True),
        do=translate_message(error.do),
    )
