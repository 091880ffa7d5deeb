"""``regard export``: write a trained translator for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.completion import choice_completer, model_completer
from regard.cli.stderr import say
from regard.cli.verb import Verb
from regard.errors import check_choice

NOTES = """
[bold]Formats.[/bold] ctranslate2: CTranslate2, a fast inference engine for CPUs and GPUs. marian: MarianMTModel of \
transformers, for models with norm=post (small, base and big). pegasus: PegasusForConditionalGeneration of \
transformers, for models with norm=pre (tiny). A model that the format cannot represent is refused.

[bold]Examples[/bold]

  regard export de-en/ --format ctranslate2 --out de-en-ct2/

  regard export de-en/ --format marian --out de-en-marian/
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("export", cls=Verb, epilog=NOTES)(export)


def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Folder that `regard train translate` wrote.", autocompletion=model_completer()
        ),
    ],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Target format: ctranslate2, marian or pegasus.",
            show_default=False,
            autocompletion=choice_completer(("ctranslate2", "marian", "pegasus")),
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="New folder to write.", show_default=False)
    ],
) -> None:
    """Export a trained translator to the format of another program, which then gives the same outputs."""
    from regard.models.checkpoint_writer import check_not_exists
    from regard.translation import Translator
    from regard.translation.export import FORMS
    from regard.translation.export import export as exported

    check_choice("form of export", form, FORMS)
    check_not_exists(out.expanduser())  # before loading the model, which may take long
    translator = Translator.load(model)
    exported(translator.model, (translator.source, translator.target), out, form=form)
    say(f"{out}: exported for {form}")
