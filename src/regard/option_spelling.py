"""An option of a message in the words of its reader.

Messages come from code that serves Python and the shell, so they give an option in both spellings, side by side:

    resume=True (--resume) continues it
    check the columns of the table (--columns)

A reader in Python sees ``resume=True continues it`` and ``check the columns of the table``; a reader in the shell
``--resume continues it``, and the second message unchanged, since it has no argument of Python.
"""

from __future__ import annotations

import re

_QUOTED = r"\"[^\"]*\"|'[^']*'"
_IN_PARENTHESES = rf"\((?:{_QUOTED}|[^()\"'])*\)"
_VALUE = rf"(?:{_QUOTED}|{_IN_PARENTHESES}|\.\.\.|[^\s(,;]+)"
_ARGUMENT = rf"\b(?:[a-z]\w*={_VALUE}, )*(?P<name>[A-Za-z]\w*)(?P<value>={_VALUE}|\(\))?"
_OPTION = rf"\((?P<option>--(?:{_QUOTED}|[^()\"'])*)\)"
_PAIR = re.compile(rf"(?<!\bthe )(?<!\bits )(?<!\ba ){_ARGUMENT} {_OPTION}")
_OPTION_AFTER = re.compile(rf" {_OPTION}")


def spell_for_python(message: str) -> str:
    """Remove the shell's spelling of each option, which stands in parentheses."""
    return _OPTION_AFTER.sub("", message)


def spell_for_shell(message: str) -> str:
    """Replace each argument of Python before an option in parentheses by that option.

    An argument is ``name=value``, several of these, a call without arguments, or a name that differs from the option's
    in underscores alone. Other words before an option are prose, and stay, as do nouns with an article.
    """
    return _PAIR.sub(_choose_option, message)


def _choose_option(pair: re.Match[str]) -> str:
    option = pair["option"]
    is_argument = pair["value"] is not None or option.split()[0] == "--" + pair["name"].replace("_", "-")
    return option if is_argument else pair[0]
