"""How a command decides between texts, pictures and sounds, and refuses the options of the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.completion import choice_completer
from regard.errors import OptionError, check_choice

KINDS = ("texts", "pictures", "sounds")

Kind = Annotated[
    str | None,
    typer.Option(
        "--kind",
        metavar="NAME",
        help="What the data is: texts, pictures or sounds. Default: recognised by the names of the files.",
        show_default=False,
        autocompletion=choice_completer(KINDS),
    ),
]


def find_kind(kind: str | None, data: Sequence[Path]) -> str:
    """The kind of the data: as ``--kind`` says, or by the files. Raises OptionError for another kind."""
    if kind is not None:
        check_choice("kind of data", kind, KINDS)
        return kind
    from regard.audio.sound_file import SOUNDS
    from regard.media import describe_source
    from regard.vision.picture_file import PICTURES

    media = [one for one in (SOUNDS, PICTURES) if data and describe_source(data[0], one) is not None]
    return media[0].several if media else "texts"


def refuse_options(names: Sequence[str], what: str, other: str, *, kind: str | None = None) -> None:
    """Raise OptionError for options that have no effect on ``what``, such as "pictures", but on ``other``.

    ``kind`` is that of the data if the options were meant.
    """
    if names:
        raise OptionError(
            f"options of {other} have no effect on {what}",
            expected=f"options of {what}",
            got=", ".join(names),
            do=f"leave {', '.join(names)} out" + (f", or say what the data is: --kind {kind}" if kind else ""),
        )
