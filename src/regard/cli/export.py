"""``regard export``: write a trained model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.completion import model_completer
from regard.cli.shared_options import format_option, option
from regard.cli.stderr import say
from regard.cli.verb import Verb
from regard.errors import check_choice

FORMATS = ("transformers", "onnx", "ctranslate2", "marian", "pegasus")

NOTES = """
[bold]Formats.[/bold] transformers: a folder that the Auto classes of transformers open, with tokenizer or image \
processor. Of the text classifiers it has a class for a BERT or a RoBERTa that reads the first token (trained with \
--pooling cls). onnx: model.onnx for ONNX Runtime, for encoders and classifiers of texts and pictures, compared with \
ONNX Runtime while it is written. ctranslate2: a translator for CTranslate2, a fast inference engine for CPUs and \
GPUs. marian and pegasus: a translator for transformers, with norm=post (small, base and big) or norm=pre (tiny); \
transformers picks one of the two. A model that the format cannot represent is refused.

[bold]Examples[/bold]

  regard export topics/ --format onnx --out topics-onnx/

  regard export pictures/ --format transformers --out pictures-hf/

  regard export minilm --format onnx --out minilm-onnx/

  regard export de-en/ --format ctranslate2 --out de-en-ct2/
"""
_TRANSLATOR_FORMATS = ("ctranslate2", "marian", "pegasus")


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("export", cls=Verb, epilog=NOTES)(export)


def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Model folder, such as `regard train` writes, or a name on the Hub.",
            autocompletion=model_completer(),
        ),
    ],
    form: Annotated[
        str,
        format_option(
            "Target format: transformers, onnx, ctranslate2, marian or pegasus.", FORMATS, show_default=False
        ),
    ],
    out: Annotated[Path, option("--out -o", "New folder to write.", metavar="FOLDER")],
) -> None:
    """Export a trained model to the format of another program, which then gives the same outputs."""
    check_choice("format", form, FORMATS)
    from regard.export import export as exported
    from regard.models import EncoderDecoder
    from regard.models.checkpoint_writer import check_not_exists
    from regard.models.load import load

    check_not_exists(out.expanduser())  # before loading the model, which may take long
    exported(EncoderDecoder.load(model) if form in _TRANSLATOR_FORMATS else load(model), out, form=form)
    say(f"{out}: exported for {form}")
    if form == "onnx":
        from regard.export.onnx_form import TOLERANCE

        say(f"ONNX Runtime computes the same numbers, within {TOLERANCE:g} of the largest")
