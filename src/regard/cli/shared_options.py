"""Options shared by several verbs, each declared once, and the checks of their values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.completion import choice_completer, model_completer
from regard.cli.option_group import option_of
from regard.columns import LabelFormat
from regard.errors import OptionError, check_choice
from regard.tasks.clip import ClipRecipe
from regard.tasks.language_modelling import LanguageModelRecipe
from regard.tasks.masked_language_modelling import MaskedLanguageModelRecipe
from regard.tasks.translation import TranslationRecipe

DEFAULT_MODEL = "minilm"
"""Text encoder used without ``--model``."""
PRECISIONS = ("float32", "bfloat16")
WEIGHT_FORMATS = ("int8",)
SCORE_FORMATS = ("text", "json")


def model_option(text: str, *, metavar: str = "FOLDER") -> Any:
    """The option ``--model`` of a command whose model has no default; ``text`` is its help."""
    return typer.Option("--model", metavar=metavar, help=text, show_default=False, autocompletion=model_completer())


def format_option(text: str, formats: Sequence[str], *, show_default: bool = True) -> Any:
    """The option ``--format`` of a command that writes one of ``formats``; ``text`` is its help."""
    return typer.Option(
        "--format", metavar="FORMAT", help=text, show_default=show_default, autocompletion=choice_completer(formats)
    )


Texts = Annotated[
    list[str] | None,
    typer.Argument(metavar="TEXT", help="One or more texts, each in quotes.", show_default=False),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="Input file, one text per line, plain or gzip; - is standard input. A pipe is read without --data.",
        show_default=False,
    ),
]
Field = Annotated[
    str | None,
    typer.Option(
        "--field",
        metavar="NAME",
        help="Field with the text, for JSON lines; or its column, for a table (.csv, .tsv).",
        show_default=False,
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="Folder or name of the model. Default: minilm.",
        show_default=False,
        autocompletion=model_completer(["minilm"]),
    ),
]
OutputFile = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FILE", help="Output file. Default: standard output.", show_default=False),
]
Truncate = Annotated[
    bool,
    typer.Option(
        "--truncate", help="Truncate texts at the model's limit and report it. Without it, longer texts are refused."
    ),
]
Documents = Annotated[list[Path], option_of(LanguageModelRecipe, "data")]
TextField = Annotated[str, option_of(LanguageModelRecipe, "text_field")]
Lines = Annotated[bool, option_of(LanguageModelRecipe, "lines")]
MaskShare = Annotated[float, option_of(MaskedLanguageModelRecipe, "mask_share")]
Prefix = Annotated[str | None, option_of(TranslationRecipe, "prefix")]
LabelColumns = Annotated[str | None, option_of(LabelFormat, "columns")]
Labels = Annotated[str, option_of(LabelFormat, "labels")]
TextColumns = Annotated[str | None, option_of(ClipRecipe, "columns")]
SkipBad = Annotated[bool, option_of(ClipRecipe, "skip_bad")]
TokensPerBatch = Annotated[
    int, typer.Option("--batch-tokens", min=1, help="Tokens per batch; lower it to save memory.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output if it exists.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")]

Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        help="Precision to compute in: float32 or bfloat16 (faster on processors with bfloat16 instructions).",
        autocompletion=choice_completer(PRECISIONS),
    ),
]

Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="FORMAT",
        help="Format of the weights of linear layers: int8 (rounded; less memory, faster generation). "
        "Default: that of --dtype.",
        show_default=False,
        autocompletion=choice_completer(WEIGHT_FORMATS),
    ),
]

Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        min=0.0,
        max=1.0,
        help="Least probability of a label, for models with several labels per text. Default: 0.5.",
        show_default=False,
    ),
]
ClassifierBatchTokens = Annotated[
    int | None,
    typer.Option(
        "--batch-tokens",
        min=1,
        help="Tokens per batch; lower it to save memory. Default: 8192.",
        show_default=False,
    ),
]

ScoreFormat = Annotated[
    str,
    format_option("Output format: text or json.", SCORE_FORMATS),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="DEVICE", help="Device to compute on, such as cuda. Default: cpu.", show_default=False
    ),
]
BatchTokens = Annotated[
    int | None,
    typer.Option(
        "--batch-tokens",
        min=1,
        help="Source subwords per batch; lower it to save memory. Default: 2048.",
        show_default=False,
    ),
]


def check_resume(*, resume: bool, overwrite: bool) -> None:
    """Raise OptionError for ``--resume`` with ``--overwrite``."""
    if resume and overwrite:
        raise OptionError(
            "--resume and --overwrite contradict each other", expected="one of them", got="both", do="leave out one"
        )


def check_number_formats(dtype: str, weights: str | None) -> None:
    """Raise OptionError for an unknown ``--dtype`` or ``--weights``, before a model is loaded."""
    check_choice("precision", dtype, PRECISIONS)
    if weights is not None:
        check_choice("format of weights", weights, WEIGHT_FORMATS)


def check_score_format(form: str) -> None:
    """Raise OptionError for an unknown ``--format`` of scores."""
    check_choice("format", form, SCORE_FORMATS)


def drop_none(options: dict[str, Any]) -> dict[str, Any]:
    """Keep the options that were set."""
    return {name: value for name, value in options.items() if value is not None}
