"""Options that several verbs share, each declared once, and the checks and parsers of their values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.completion import choice_completer, model_completer
from regard.errors import OptionError

if TYPE_CHECKING:
    from regard.search import Search

DEFAULT_MODEL = "minilm"
"""The model that reads texts where none is named."""
PRECISIONS = ("float32", "bfloat16")

Texts = Annotated[
    list[str] | None,
    typer.Argument(metavar="TEXT", help="One or more texts; quote each.", show_default=False),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="A file, one text a line, also gzipped; - is standard input, which is also read where it is a pipe.",
        show_default=False,
    ),
]
Field = Annotated[
    str | None,
    typer.Option("--field", metavar="NAME", help="Lines are JSON; the text is in this field.", show_default=False),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="A model's folder or name; else minilm.",
        show_default=False,
        autocompletion=model_completer(["minilm"]),
    ),
]
Truncate = Annotated[
    bool, typer.Option("--truncate", help="Cut texts at the model's limit, and say so; else a longer text is refused.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output if it exists.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")]

Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        help="Precision to compute in: float32, or bfloat16, faster on processors that multiply it.",
        autocompletion=choice_completer(PRECISIONS),
    ),
]

Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        help="Of a table: source,target, counted from 1; else as its heading says, or 1,2.",
        show_default=False,
    ),
]
Fields = Annotated[str | None, typer.Option("--fields", help="Of JSON: source,target.", show_default=False)]

BeamWidth = Annotated[
    int | None, typer.Option("--beam", min=1, help="Width of the search, else 5; 1 is greedy.", show_default=False)
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        "--length-penalty", help="alpha of Wu et al. 2016, else 0.6; more favours longer ones.", show_default=False
    ),
]
Device = Annotated[str | None, typer.Option("--device", help="Such as cuda; else the CPU.", show_default=False)]
BatchTokens = Annotated[
    int | None,
    typer.Option(
        "--batch-tokens",
        min=1,
        help="Subwords of sources that are read together, else 2048; fewer take less memory.",
        show_default=False,
    ),
]


def check_resume(*, resume: bool, overwrite: bool) -> None:
    """Raise OptionError where a run is to go on and to begin anew."""
    if resume and overwrite:
        raise OptionError(
            "--resume and --overwrite contradict each other", expected="one of them", got="both", do="leave out one"
        )


def drop_none(options: dict[str, Any]) -> dict[str, Any]:
    """Those that were said."""
    return {name: value for name, value in options.items() if value is not None}


def make_search(options: dict[str, Any], *, best: int = 1) -> Search:
    """The search that options of ``Beam`` describe, as wide as ``best`` at least. Raises OptionError as it does."""
    from regard.search import Beam, Greedy

    if options == {"width": 1} and best == 1:
        return Greedy()
    return Beam(best=best, **{**options, "width": max(options.get("width", 5), best)})


def parse_columns(text: str | None) -> tuple[int, int] | None:
    """Two columns of a table. Raises OptionError for anything else."""
    if text is None:
        return None
    first, second = _split_two("columns", text)
    if not (first.isdecimal() and second.isdecimal() and int(first) and int(second)):
        raise OptionError("wrong --columns", expected="two numbers from 1", got=text, do="such as --columns 1,2")
    return int(first), int(second)


def parse_fields(text: str | None) -> tuple[str, str] | None:
    """Two fields of JSON. Raises OptionError for anything else."""
    return None if text is None else _split_two("fields", text)


def _split_two(name: str, text: str) -> tuple[str, str]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts):
        raise OptionError(f"wrong --{name}", expected="two, with a comma between", got=text, do=f"such as --{name} a,b")
    return parts[0], parts[1]
