"""Arguments in messages, marked by backquotes, so that each reader sees them in his own words.

    `resume=True` continues it
    check the columns of the table (`columns=...`)

Messages name arguments of Python: ``name=value``, several of these, a name alone, or a call. In Python they are shown
without the backquotes. The command line replaces them by its options where the running command has such options
(``cli.argument_options``): ``--resume continues it``. A value of ``...`` stands for any.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping

_MARKED = re.compile(r"(?<!`)`([A-Za-z_][^`\n]*)`(?!`)")


def without_marks(message: str) -> str:
    """Remove the backquotes around arguments: the message for a reader in Python."""
    return replace_arguments(message, lambda name, value: None)


def replace_arguments(message: str, spell: Callable[[str, ast.expr | None], str | None]) -> str:
    """Replace each marked argument by what ``spell`` makes of its name and value; None leaves it as Python writes it.

    The value in ``name=value`` is an expression; it is None for a name alone. Text in backquotes that is no argument
    stays unchanged.
    """

    def replace(marked: re.Match[str]) -> str:
        arguments = _parse(marked[1])
        if arguments is None:
            return marked[0]
        spelled = [spell(name, value) for name, value in arguments]
        return marked[1] if None in spelled else " ".join(word for word in spelled if word)

    return _MARKED.sub(replace, message) if "`" in message else message


def rename_arguments(message: str, names: Mapping[str, str]) -> str:
    """Give marked arguments other names: ``names`` by those that they have."""

    def rename(marked: re.Match[str]) -> str:
        inner = marked[1]
        for name, other in names.items():
            inner = re.sub(rf"(^|, ){name}(?=$|=)", rf"\1{other}", inner)
        return f"`{inner}`"

    return _MARKED.sub(rename, message)


def _parse(source: str) -> list[tuple[str, ast.expr | None]] | None:
    """The names and values of marked arguments; None if ``source`` is something else."""
    try:
        call = ast.parse(f"_({source})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(call, ast.Call) or (call.args and call.keywords):
        return None
    found: list[tuple[str, ast.expr | None]] = []
    for argument in call.args:
        name = (
            argument.func
            if isinstance(argument, ast.Call) and not argument.args and not argument.keywords
            else argument
        )
        if not isinstance(name, ast.Name):
            return None
        found.append((name.id, None))
    for keyword in call.keywords:
        if keyword.arg is None:
            return None
        found.append((keyword.arg, keyword.value))
    return found
