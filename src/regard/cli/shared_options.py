"""Options shared by several verbs, each declared once, and the checks and parsers of their values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.completion import choice_completer, model_completer
from regard.cli.stderr import say
from regard.errors import OptionError, check_choice

if TYPE_CHECKING:
    from regard.classification import Classifier
    from regard.models import CausalLanguageModel, EncoderDecoder
    from regard.search import Search

DEFAULT_MODEL = "minilm"
"""Text encoder used without ``--model``."""
PRECISIONS = ("float32", "bfloat16")
WEIGHT_FORMATS = ("int8",)

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
    typer.Option("--field", metavar="NAME", help="Read JSON lines, with the text in this field.", show_default=False),
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

Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="I,J",
        help="For TSV: numbers of the source and target columns, from 1. Default: by the header, else 1,2.",
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
Labels = Annotated[
    str,
    typer.Option(
        "--labels",
        metavar="NAME",
        help="Labels per text: one, several, or auto (several if a text has a|b, a list, or none).",
        autocompletion=choice_completer(("auto", "one", "several")),
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

Prefix = Annotated[
    str | None,
    typer.Option(
        "--prefix",
        metavar="TEXT",
        help="Text before each source that names the task of a T5, such as 'translate English to German: '. Default: "
        "the one that the model was fine-tuned with, if any.",
        show_default=False,
    ),
]
BeamWidth = Annotated[
    int | None, typer.Option("--beam", min=1, help="Beam width; 1 is greedy search. Default: 5.", show_default=False)
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        "--length-penalty",
        help="Length penalty: alpha of Wu et al. 2016; higher favours longer translations. Default: 0.6.",
        show_default=False,
    ),
]
ScoreFormat = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="Output format: text or json.",
        autocompletion=choice_completer(("text", "json")),
    ),
]
MaskShare = Annotated[
    float, typer.Option("--mask-share", help="Share of the tokens that are masked, above 0 and at most 1.")
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


def convert_loaded_model(model: CausalLanguageModel | EncoderDecoder, dtype: str, weights: str | None) -> None:
    """Convert the weights of a model to ``--weights``, and report a ``--dtype`` that is slower on this machine."""
    from regard.layers.precision import say_if_slower
    from regard.models.int8_weights import convert_weights

    if weights is not None:
        convert_weights(model, weights)
    say_if_slower(dtype, model.device, say)


def load_classifier(folder: str, device: str | None, tokens: int | None, threshold: float | None) -> Classifier:
    """Load a classifier. Raises OptionError without a folder, and for a threshold that has no effect."""
    if not folder:
        raise OptionError(
            "no model was given",
            expected="--model FOLDER",
            got="no --model",
            do="train one: regard train classify --data texts.csv --out model/",
        )
    from regard.classification import Classifier

    classifier = Classifier.load(folder, device=device, **drop_none({"tokens": tokens, "threshold": threshold}))
    if threshold is not None and not classifier.model.config.several:
        raise OptionError(
            "--threshold has no effect: this model gives each text its most probable label",
            expected="a model with several labels per text",
            got=f"--threshold {threshold}",
            do="leave out --threshold",
        )
    return classifier


def drop_none(options: dict[str, Any]) -> dict[str, Any]:
    """Keep the options that were set."""
    return {name: value for name, value in options.items() if value is not None}


def report_prefix(prefix: str, asked: str | None) -> None:
    """Report a model's own prefix, which nobody asked for."""
    if prefix and asked is None:
        say(f"the model's prefix is put before each source: {prefix!r} (--prefix '' leaves it out)")


def make_search(options: dict[str, Any], *, best: int = 1) -> Search:
    """Make a search from options of ``Beam``, at least ``best`` wide. Raises OptionError as ``Beam`` does."""
    from regard.search import Beam, Greedy

    if options == {"width": 1} and best == 1:
        return Greedy()
    return Beam(best=best, **{**options, "width": max(options.get("width", 5), best)})


def parse_columns(text: str | None) -> tuple[int, int] | None:
    """Parse two column numbers. Raises OptionError for anything else."""
    if text is None:
        return None
    first, second = _split_two("columns", text)
    if not (first.isdecimal() and second.isdecimal() and int(first) and int(second)):
        raise OptionError("wrong --columns", expected="two numbers from 1", got=text, do="for example --columns 1,2")
    return int(first), int(second)


def parse_fields(text: str | None) -> tuple[str, str] | None:
    """Parse two field names. Raises OptionError for anything else."""
    return None if text is None else _split_two("fields", text)


def parse_label_columns(text: str | None) -> tuple[str | int, str | int] | None:
    """Parse two columns, each a name or a number. Raises OptionError for anything else."""
    if text is None:
        return None
    first, second = (int(part) if part.isdecimal() else part for part in _split_two("columns", text))
    return first, second


def _split_two(name: str, text: str) -> tuple[str, str]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts):
        raise OptionError(
            f"wrong --{name}", expected="two, separated by a comma", got=text, do=f"for example --{name} a,b"
        )
    return parts[0], parts[1]
