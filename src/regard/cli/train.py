"""``regard train``: train a model from data. One command per task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

import typer

from regard.cli import train_classify, train_clip, train_gato, train_lm, train_mlm, train_transcribe
from regard.cli.column_options import Columns, Fields, parse_columns, parse_fields
from regard.cli.completion import choice_completer, complete_mechanism, model_completer
from regard.cli.next_command import say_next
from regard.cli.option_group import expand_option_group
from regard.cli.shared_options import Prefix
from regard.cli.training_options import (
    Hyperparameters,
    Out,
    ScheduleName,
    Smoothing,
    TrainingOptions,
    WeightDecay,
    parse_hyperparameters,
)
from regard.cli.verb import TaskGroup, Verb
from regard.errors import OptionError

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


@final
@dataclass(frozen=True)
class TranslationTrainingOptions(TrainingOptions):
    """How a translator is trained."""

    schedule: ScheduleName = "inverse_sqrt"
    smoothing: Smoothing = 0.1
    weight_decay: WeightDecay = 0.0
    patience: Annotated[
        int,
        typer.Option("--patience", min=0, help="Early stopping: validations without a better BLEU; 0 disables it."),
    ] = 10


@expand_option_group
def translate(
    data: Annotated[
        list[Path],
        typer.Option(
            "--data",
            metavar="PATH",
            help="Training pairs: a file or folder; repeat for more. Two text files: the source first.",
            show_default=False,
        ),
    ],
    out: Out,
    valid: Annotated[
        list[Path] | None,
        typer.Option(
            "--valid",
            metavar="PATH",
            help="Validation pairs. Default: 5 % of the data are held out.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="LANGUAGE", help="Source language, such as en.", show_default=False),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="LANGUAGE",
            help="Target language, such as fr; gettext files in other languages are skipped.",
            show_default=False,
        ),
    ] = None,
    columns: Columns = None,
    fields: Fields = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="tiny, small, base or big (Transformers), gru or lstm, or t5; the folder of a model means --from. "
            "Default: chosen by the size of the data.",
            show_default=False,
            autocompletion=model_completer(("tiny", "small", "base", "big", "gru", "lstm", "t5")),
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="MODEL",
            help="Fine-tune this model: the folder of a translator or of a T5, or its name on the Hub.",
            show_default=False,
            autocompletion=model_completer(),
        ),
    ] = None,
    prefix: Prefix = None,
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention",
            metavar="NAME",
            help="Attention mechanism. Transformers: a name from `regard list`, default dot_product. gru and lstm: "
            "additive (default), luong_dot, luong_general, luong_concat, local_p or none.",
            show_default=False,
            autocompletion=complete_mechanism,
        ),
    ] = None,
    numbers: Hyperparameters = None,
    vocabulary: Annotated[
        int | None,
        typer.Option(
            "--vocabulary",
            min=1,
            help="Number of subwords. Default: chosen by the size of the data.",
            show_default=False,
        ),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--subwords",
            metavar="NAME",
            help="Subword algorithm: bpe or unigram. Default: bpe.",
            show_default=False,
            autocompletion=choice_completer(("bpe", "unigram")),
        ),
    ] = None,
    sharing: Annotated[
        str | None,
        typer.Option(
            "--sharing",
            metavar="NAME",
            help="Vocabulary of both languages: joint, separate, or auto (by their letters). Default: auto.",
            show_default=False,
            autocompletion=choice_completer(("joint", "separate", "auto")),
        ),
    ] = None,
    most_tokens: Annotated[
        int, typer.Option("--most-tokens", min=1, help="Maximum tokens per side; longer pairs are skipped.")
    ] = 250,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--batch-tokens", min=1, help="Tokens per batch. Default: chosen by the model size.", show_default=False
        ),
    ] = None,
    *,
    training: TranslationTrainingOptions,
) -> None:
    """Train a translator from sentence pairs."""
    from regard.tasks.translation import TranslationRecipe, TranslationTask
    from regard.text.pairs import PairFormat

    recipe = TranslationRecipe(
        data=tuple(data),
        where=PairFormat(source, target, columns=parse_columns(columns), fields=parse_fields(fields)),
        validation=tuple(valid or ()),
        model=_choose_model(model, start),
        hyperparameters=parse_hyperparameters(numbers or []),
        attention=attention,
        vocabulary=vocabulary,
        algorithm=algorithm,
        sharing=sharing,
        most_tokens=most_tokens,
        batch_tokens=tokens,
        smoothing=training.smoothing,
        prefix=prefix,
    )
    done = training.run(TranslationTask(recipe), out)
    say_next(done, "regard translate --model", '"..."')


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
