"""Options shared by several verbs, each declared once, and the checks of their values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.completion import choice_completer, model_completer
from regard.cli.option_group import option_of
from regard.columns import LabelFormat
from regard.device_names import AUTO, DEVICE_NAMES
from regard.errors import OptionError, check_choice
from regard.language import LANGUAGES
from regard.number_formats import CACHE_FORMATS, PRECISIONS, WEIGHT_FORMATS
from regard.tasks.clip import ClipRecipe
from regard.tasks.language_modelling import LanguageModelRecipe
from regard.tasks.masked_language_modelling import MaskedLanguageModelRecipe
from regard.tasks.translation import TranslationRecipe

DEFAULT_MODEL = "minilm"
"""Text encoder used without ``--model``."""
SCORE_FORMATS = ("text", "json")


def option(names: str, text: str, *, show_default: bool = False, **facts: Any) -> Any:
    """An option of a command, with its names in the shell, separated by a space, and its help."""
    return typer.Option(*names.split(), help=text, show_default=show_default, **facts)


def model_option(text: str, *, metavar: str = "FOLDER") -> Any:
    """The option ``--model`` of a command whose model has no default; ``text`` is its help."""
    return option("--model", text, metavar=metavar, autocompletion=model_completer())


def format_option(text: str, formats: Sequence[str], *, show_default: bool = True) -> Any:
    """The option ``--format`` of a command that writes one of ``formats``; ``text`` is its help."""
    return option(
        "--format", text, metavar="FORMAT", autocompletion=choice_completer(formats), show_default=show_default
    )


Texts = Annotated[
    list[str] | None, typer.Argument(metavar="TEXT", help="One or more texts, each in quotes.", show_default=False)
]
Data = Annotated[
    str | None,
    option(
        "--data",
        "Input file, one text per line, plain or gzip; - is standard input. A pipe is read without --data.",
        metavar="FILE",
    ),
]
Field = Annotated[
    str | None,
    option("--field", "Field with the text, for JSON lines; or its column, for a table (.csv, .tsv).", metavar="NAME"),
]
ModelName = Annotated[
    str | None,
    option(
        "--model",
        "Folder or name of the model. Default: minilm.",
        metavar="MODEL",
        autocompletion=model_completer(["minilm"]),
    ),
]
OutputFile = Annotated[Path | None, option("--out -o", "Output file. Default: standard output.", metavar="FILE")]
Truncate = Annotated[
    bool,
    option(
        "--truncate",
        "Truncate texts at the model's limit and report it. Without it, longer texts are refused.",
        show_default=True,
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
    int, option("--batch-tokens", "Tokens per batch; lower it to save memory.", min=1, show_default=True)
]
Overwrite = Annotated[bool, option("--overwrite", "Replace the output if it exists.", show_default=True)]
Resume = Annotated[bool, option("--resume", "Continue an interrupted run.", show_default=True)]


def _check_dtype(name: str) -> str:
    check_choice("numeric precision", name, (AUTO, *PRECISIONS))
    return name


def _check_weights(name: str | None) -> str | None:
    if name is not None:
        check_choice("format of weights", name, WEIGHT_FORMATS)
    return name


def _check_cache_format(name: str | None) -> str | None:
    if name is not None:
        check_choice("cache format", name, CACHE_FORMATS)
    return name


Dtype = Annotated[
    str,
    option(
        "--dtype",
        "Precision to compute in: float32, bfloat16 (faster on processors with bfloat16 instructions), or auto: "
        "bfloat16 on a GPU that has it, else float32.",
        metavar="DTYPE",
        autocompletion=choice_completer((AUTO, *PRECISIONS)),
        callback=_check_dtype,
        show_default=True,
    ),
]

Weights = Annotated[
    str | None,
    option(
        "--weights",
        "Format of the weights of linear layers: int8 (rounded, a quarter of the memory; answers differ little) or "
        "int4 (an eighth; answers differ more). Default: floating point.",
        metavar="FORMAT",
        autocompletion=choice_completer(WEIGHT_FORMATS),
        callback=_check_weights,
    ),
]

CacheFormat = Annotated[
    str | None,
    option(
        "--cache-format",
        "Format of cached keys and values: int8 (rounded, half the memory of bfloat16; answers differ little). "
        "Default: that of --dtype.",
        metavar="FORMAT",
        autocompletion=choice_completer(CACHE_FORMATS),
        callback=_check_cache_format,
    ),
]

Threshold = Annotated[
    float | None,
    option(
        "--threshold",
        "Least probability of a label, for models with several labels per text. Default: 0.5.",
        min=0.0,
        max=1.0,
    ),
]
ClassifierBatchTokens = Annotated[
    int | None, option("--batch-tokens", "Tokens per batch; lower it to save memory. Default: 8192.", min=1)
]

ScoreFormat = Annotated[str, format_option("Output format: text or json.", SCORE_FORMATS)]
Device = Annotated[
    str,
    option(
        "--device",
        "Device to compute on: auto (a GPU or another accelerator if there is one, else the CPU), cpu, cuda (NVIDIA "
        "and AMD), xpu (Intel) or mps (Apple); cuda:1 is the second of several.",
        metavar="DEVICE",
        autocompletion=choice_completer(DEVICE_NAMES),
        show_default=True,
    ),
]
BatchTokens = Annotated[
    int | None, option("--batch-tokens", "Source subwords per batch; lower it to save memory. Default: 2048.", min=1)
]


def _check_language(name: str | None) -> str | None:
    if name is not None:
        check_choice("language", name, LANGUAGES)
    return name


_Language = Annotated[
    str | None,
    option(
        "--lang",
        "Language of pages, help and messages: en or zh. Default: that of the environment.",
        metavar="LANGUAGE",
        autocompletion=choice_completer(LANGUAGES),
        callback=_check_language,
        expose_value=False,
    ),
]


def make_language_option() -> Any:
    """``--lang``, which all commands have. ``main`` reads its value first, since it holds for errors and help, too."""
    declaring = typer.Typer(add_completion=False)

    @declaring.command()
    def declare(lang: _Language = None) -> None: ...

    (made,) = typer.main.get_command(declaring).params
    return made


def check_resume(*, resume: bool, overwrite: bool) -> None:
    """Raise OptionError for ``--resume`` with ``--overwrite``."""
    if resume and overwrite:
        raise OptionError(
            "--resume and --overwrite contradict each other", expected="one of them", got="both", do="leave out one"
        )


def check_score_format(form: str) -> None:
    """Raise OptionError for an unknown ``--format`` of scores."""
    check_choice("format", form, SCORE_FORMATS)


def drop_none(options: dict[str, Any]) -> dict[str, Any]:
    """Keep the options that were set."""
    return {name: value for name, value in options.items() if value is not None}
