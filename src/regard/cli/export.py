"""``regard export``: a trained translator for programs that are not regard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.completion import choice_completer, model_completer
from regard.cli.stderr import say
from regard.cli.verb import Verb
from regard.errors import check_choice

NOTES = """
[bold]Formats.[/bold] ctranslate2: for CTranslate2, which translates fast on CPUs and GPUs. marian: MarianMTModel of \
transformers, for models with norms after the sublayers, as small, base and big are. pegasus: its \
PegasusForConditionalGeneration, for those with norm=pre, as tiny is. What a format has no place for is refused.

[bold]Examples[/bold]

  regard export de-en/ --format ctranslate2 --out de-en-ct2/

  regard export de-en/ --format marian --out de-en-marian/
"""


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("export", cls=Verb, epilog=NOTES)(export)


def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A folder that `regard train translate` wrote.", autocompletion=model_completer()
        ),
    ],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="ctranslate2, marian or pegasus.",
            show_default=False,
            autocompletion=choice_completer(("ctranslate2", "marian", "pegasus")),
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="The folder to write, a new one.", show_default=False)
    ],
) -> None:
    """Write a trained translator in the form that another program reads, to compute what it did."""
    from regard.models.checkpoint_writer import check_not_exists
    from regard.translation import Translator
    from regard.translation.export import FORMS
    from regard.translation.export import export as exported

    check_choice("form of export", form, FORMS)
    check_not_exists(out.expanduser())  # before a model is loaded, which may take long
    translator = Translator.load(model)
    exported(translator.model, (translator.source, translator.target), out, form=form)
    say(f"{out}: written for {form}")
