"""``regard train``: train a model from data. One command per task."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from regard.cli import train_classify, train_clip, train_gato, train_lm, train_mlm, train_transcribe
from regard.cli.completion import model_completer
from regard.cli.option_group import Before, expand_option_groups
from regard.cli.training_options import Training, print_next_command, training_options
from regard.cli.verb import TaskGroup, Verb
from regard.errors import OptionError
from regard.tasks.translation import TranslationRecipe

NOTES = """
[bold]Data.[/bold] FILE.tsv, FILE.csv, FILE.jsonl, FILE.tmx, FILE.po, FILE.mo, a folder of .po or .mo, or several of \
these with --data before each; or two text files, --data twice, the source first. Each may be gzipped. Unusable pairs \
are skipped and reported.

[bold]Output.[/bold] The folder OUT has all that `regard translate` needs; it is rewritten whenever the validation \
score improves. The folder OUT.run has checkpoints, metrics.jsonl, tensorboard/ and samples.txt.

[bold]Duration.[/bold] Training stops when BLEU on held-out pairs has not improved for --patience validations, or at \
the limit of --minutes, --epochs or --steps.

[bold]Interrupted?[/bold] Repeat the command with --resume: it continues from the last checkpoint and reaches the same \
weights as an uninterrupted run. To extend a finished run, raise the limit that ended it, such as --minutes or \
--patience.

[bold]Several processes.[/bold] On GPUs: accelerate launch --multi_gpu -m regard train translate ... with the settings \
of `accelerate config` (DDP or FSDP, one machine or several that share a disk). On CPUs: torchrun --nproc-per-node 2 \
-m regard train translate ...

[bold]Examples[/bold]

  regard train translate --data pairs.tsv --out model/

  regard train translate --data train.de.gz --data train.en.gz --out de-en/ --minutes 30

  regard train translate --data locale/fr/ --out fr/ --model gru --attention luong_general

  regard train translate --data new.tmx --source en --target fr --from old/ --out tuned/

  regard train translate --data pairs.tsv --from t5/ --prefix "translate English to German: " --out tuned/

  regard train translate --data pairs.tsv --model t5 --set layers=3 --out model/
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    train = typer.Typer(
        name="train", cls=TaskGroup, help="Train a model from your data.", no_args_is_help=True, rich_markup_mode="rich"
    )
    train.callback()(_group_callback)
    train.command("translate", cls=Verb, epilog=NOTES)(translate)
    train_classify.register(train)
    train_clip.register(train)
    train_gato.register(train)
    train_lm.register(train)
    train_mlm.register(train)
    train_transcribe.register(train)
    app.add_typer(train)


def _group_callback() -> None:
    """Train a model from your data."""


@expand_option_groups(**training_options(better="a better BLEU", weight_decay=0.0))
def translate(
    recipe: TranslationRecipe,
    training: Training,
    *,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="MODEL",
            help="Fine-tune this model: the folder of a translator or of a T5, or its name on the Hub.",
            show_default=False,
            autocompletion=model_completer(),
        ),
        Before("prefix"),
    ] = None,
) -> None:
    """Train a translator from sentence pairs."""
    from regard.tasks.translation import TranslationTask

    recipe = replace(recipe, model=_choose_model(recipe.model, start))
    done = training.run(TranslationTask(recipe))
    print_next_command(done, "regard translate --model", '"..."')


def _choose_model(model: str | None, start: str | None) -> str | None:
    """The new model to train, or the one to fine-tune. Raises OptionError for both."""
    from regard.tasks.translation.recipe import KINDS

    if start is None:
        return model
    if model is not None:
        raise OptionError(
            "--model and --from contradict each other",
            expected="--model for a new model, or --from for one to fine-tune",
            got="both",
            do="leave out one",
        )
    return f"./{start}" if start in KINDS else start
