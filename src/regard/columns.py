"""Where texts are in a table or in JSON lines: columns by name or by number, or fields, as a user names them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

from regard.errors import OptionError, short_repr
from regard.fields import check_fields, declare, option_field

Columns: TypeAlias = tuple[str | int, str | int]
"""Two columns: names, or numbers from 1."""
LABELS = ("auto", "one", "several")
"""How many labels a text has: "auto" is several if any text has not exactly one."""


def is_column(column: object) -> bool:
    """Whether a value can name a column: a name, or a number from 1."""
    if isinstance(column, str):
        return bool(column.strip())
    return isinstance(column, int) and not isinstance(column, bool) and column >= 1


def _are_two_columns(columns: object) -> bool:
    """Whether a value names two different columns: a tuple of two names or numbers from 1."""
    listed = columns if isinstance(columns, tuple) else ()
    return len(listed) == 2 and listed[0] != listed[1] and all(map(is_column, listed))


def check_columns(columns: object, names: tuple[str, str]) -> None:
    """Raise OptionError unless ``columns`` are None, or two different ones; ``names`` are their usual names."""
    if columns is not None and not _are_two_columns(columns):
        first, second = names
        raise OptionError(
            f"wrong columns of {first} and {second}",
            expected="two different columns, by name or by number from 1",
            got=short_repr(columns),
            do=f'for example `columns=("{first}", "{second}")` or `columns=(2, 1)`',
        )


def _check_pair_columns(columns: object) -> None:
    """Raise OptionError unless ``columns`` are None, or two different names or numbers from 1."""
    if columns is not None and not _are_two_columns(columns):
        raise OptionError(
            "columns must be two different names, or two different numbers, counted from 1",
            expected="for example 1,2, or 2,1 for the other direction",
            got=short_repr(columns),
            do="look at the first line of the file",
        )


def parse_columns(text: str | None) -> Columns | None:
    """Parse two columns, each a name or a number. Raises OptionError for anything else."""
    if text is None:
        return None
    first, second = (int(part) if part.isdecimal() and len(part) < 10 else part for part in _split_two("columns", text))
    return first, second


def parse_fields(text: str | None) -> tuple[str, str] | None:
    """Parse two field names. Raises OptionError for anything else."""
    return None if text is None else _split_two("fields", text)


def _split_two(name: str, text: str) -> tuple[str, str]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts):
        raise OptionError(
            f"wrong --{name}", expected="two, separated by a comma", got=text, do=f"for example --{name} a,b"
        )
    return parts[0], parts[1]


def columns_option(metavar: str, text: str, check: Any) -> dict[str, Any]:
    """Build the metadata of a field that names two columns."""
    return declare(text, option="--columns", metavar=metavar, parse=parse_columns, check=check)


def text_columns_option() -> dict[str, Any]:
    """Build the metadata of a field that names the columns of a file's path and of its text."""
    return columns_option(
        "PATH,TEXT",
        "Columns or JSON fields of path and text, by name or by number from 1, such as clip,sentence or 2,1. "
        "Default: path,text or similar names, else 1,2.",
        lambda name, columns: check_columns(columns, ("path", "text")),
    )


@final
@dataclass(frozen=True)
class PairFormat:
    """Location of source and target in a file, for the formats that do not define it.

    ``source`` and ``target`` are languages, such as "en"; ``columns`` are the columns of a table, by name or by number
    from 1 (None: by its header, else the only two that hold texts); ``fields`` are the fields of JSON lines (None:
    detected). Raises OptionError for other columns.
    """

    source: str | None = option_field(None, "Source language, such as en.", metavar="LANGUAGE")
    target: str | None = option_field(
        None, "Target language, such as fr; gettext files in other languages are skipped.", metavar="LANGUAGE"
    )
    columns: Columns | None = field(
        default=None,
        metadata=columns_option(
            "SOURCE,TARGET",
            "For tables: columns of source and target, by name or by number from 1, such as en,fr or 2,1. Default: by "
            "the header, else the only two of texts.",
            lambda name, columns: _check_pair_columns(columns),
        ),
    )
    fields: tuple[str, str] | None = option_field(
        None,
        "For JSON lines: names of the source and target fields, such as de,en. Default: detected.",
        metavar="NAME,NAME",
        parse=parse_fields,
    )

    def __post_init__(self) -> None:
        check_fields(self)


@final
@dataclass(frozen=True)
class LabelFormat:
    """Location of text and label in a file, and how many labels a text has.

    ``columns`` are the columns or JSON fields of text and label, by name or by number from 1; None finds them by usual
    names such as "text" and "label". ``labels`` is one of ``LABELS``: with "one", "a|b" is the name of one label.
    Raises OptionError for other values.
    """

    columns: Columns | None = field(
        default=None,
        metadata=columns_option(
            "TEXT,LABEL",
            "Columns or JSON fields of text and label, by name or by number from 1, such as review,stars or 2,1. "
            "Default: text,label or similar names, else 1,2.",
            lambda name, columns: check_columns(columns, ("text", "label")),
        ),
    )
    labels: str = option_field(
        "auto",
        "Labels per text: one, several, or auto (several if a text has a|b, a list, or none).",
        choices=LABELS,
        noun="number of labels",
    )

    def __post_init__(self) -> None:
        check_fields(self)
