"""The strings of all commands' help: what the catalogue's part ``help`` must have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from regard.cli.app import app
from regard.cli.help_language import FIXED_STRINGS, help_paragraphs


def help_strings() -> set[str]:
    """All paragraphs and captions of the help of the command and its verbs."""
    return {text for command in _commands(typer.main.get_command(app)) for text in _texts(command)} | set(FIXED_STRINGS)


def _commands(command: Any) -> Iterator[Any]:
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from _commands(inner)


def _texts(command: Any) -> Iterator[str]:
    yield from help_paragraphs(command.help)
    yield from help_paragraphs(command.epilog)
    for parameter in command.params:
        yield from help_paragraphs(getattr(parameter, "help", None))
        yield from help_paragraphs(getattr(parameter, "rich_help_panel", None))
