"""Options that name columns of tables or fields of JSON lines, and the parsers of their values."""

from __future__ import annotations

from typing import Annotated

import typer

from regard.errors import OptionError

Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="SOURCE,TARGET",
        help="For tables: columns of source and target, by name or by number from 1, such as en,fr or 2,1. "
        "Default: by the header, else the only two of texts.",
        show_default=False,
    ),
]
Fields = Annotated[
    str | None,
    typer.Option(
        "--fields",
        metavar="NAME,NAME",
        help="For JSON lines: names of the source and target fields, such as de,en. Default: detected.",
        show_default=False,
    ),
]

LabelColumns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="TEXT,LABEL",
        help="Columns or JSON fields of text and label, by name or by number from 1, such as review,stars or 2,1. "
        "Default: text,label or similar names, else 1,2.",
        show_default=False,
    ),
]
TextColumns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="PATH,TEXT",
        help="Columns or JSON fields of path and text, by name or by number from 1, such as clip,sentence or 2,1. "
        "Default: path,text or similar names, else 1,2.",
        show_default=False,
    ),
]


def parse_fields(text: str | None) -> tuple[str, str] | None:
    """Parse two field names. Raises OptionError for anything else."""
    return None if text is None else _split_two("fields", text)


def parse_columns(text: str | None) -> tuple[str | int, str | int] | None:
    """Parse two columns, each a name or a number. Raises OptionError for anything else."""
    if text is None:
        return None
    first, second = (int(part) if part.isdecimal() and len(part) < 10 else part for part in _split_two("columns", text))
    return first, second


def _split_two(name: str, text: str) -> tuple[str, str]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts):
        raise OptionError(
            f"wrong --{name}", expected="two, separated by a comma", got=text, do=f"for example --{name} a,b"
        )
    return parts[0], parts[1]
