"""``regard train transcribe``: train a model that writes the texts of sounds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

import typer

from regard.cli.column_options import TextColumns, parse_columns
from regard.cli.completion import choice_completer, complete_mechanism, model_completer
from regard.cli.media_options import Memory, SkipBad, SoundTrainingOptions, recipe_fields
from regard.cli.next_command import say_next
from regard.cli.option_group import expand_option_group
from regard.cli.shared_options import drop_none
from regard.cli.training_options import Out, ScheduleName, TrainingOptions, parse_hyperparameters, setting_option
from regard.cli.verb import Verb

NOTES = """
[bold]Data.[/bold] A folder in which the text of NAME.wav or NAME.flac is in NAME.txt beside it; or FILE.csv, FILE.tsv \
or FILE.jsonl with columns path and text (--columns names others), paths relative to the file; several with --data \
before each. Sounds without a text are skipped and reported. Broken sounds, and sounds that are too short for their \
text, are an error, or left out with --skip-bad. It needs the extra audio.

[bold]Texts[/bold] are learned as they are, character by character: upper and lower case and punctuation are different \
characters. White space is read as single spaces. A text needs no alignment with its sound.

[bold]Models.[/bold] A Conformer with a ctc head, new or, with --from, a trained one: it keeps its characters, and \
learns those that are new.

[bold]Output.[/bold] The folder OUT has all that `regard transcribe` needs; it is rewritten whenever the error rate on \
held-out sounds improves. The folder OUT.run has checkpoints, metrics.jsonl, tensorboard/ and samples.txt.

[bold]Duration.[/bold] Training stops when the error rate has not improved for --patience validations, or at the limit \
of --minutes, --epochs or --steps. At first a model writes nothing, with an error rate of 1, while its loss falls. \
Fine-tuning without a limit takes 10 epochs.

[bold]Interrupted?[/bold] Repeat the command with --resume: it continues from the last checkpoint and reaches the same \
weights as an uninterrupted run. To extend a finished run, raise the limit that ended it.

[bold]Several processes.[/bold] accelerate launch -m regard train transcribe ... on GPUs; torchrun --nproc-per-node 2 \
-m regard train transcribe ... on CPUs.

[bold]Examples[/bold]

  regard train transcribe --data speech/ --out model/

  regard train transcribe --data train.csv --valid dev.csv --columns clip,sentence --skip-bad --out model/

  regard train transcribe --data commands.tsv --tokenizer words --model tiny --minutes 30 --out commands/

  regard train transcribe --data mine.csv --from model/ --epochs 5 --out mine/
"""


def register(train: typer.Typer) -> None:
    """Add the command to its verb."""
    train.command("transcribe", cls=Verb, epilog=NOTES)(transcribe)


@final
@dataclass(frozen=True)
class TranscriptionTrainingOptions(TrainingOptions):
    """How a transcriber is trained."""

    schedule: ScheduleName = "inverse_sqrt"
    patience: Annotated[
        int,
        typer.Option(
            "--patience", min=0, help="Early stopping: validations without a better error rate; 0 disables it."
        ),
    ] = 10


@expand_option_group
def transcribe(
    data: Annotated[
        list[Path],
        typer.Option(
            "--data",
            metavar="PATH",
            help="Sounds with their texts: a folder, a table or JSON lines; repeat for more.",
            show_default=False,
        ),
    ],
    out: Out,
    valid: Annotated[
        list[Path] | None,
        typer.Option(
            "--valid",
            metavar="PATH",
            help="Validation data. Default: 10 % of the sounds are held out.",
            show_default=False,
        ),
    ] = None,
    columns: TextColumns = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="MODEL",
            help="Trained model to start from: the folder of a Conformer, such as `regard train transcribe` or "
            "`regard train classify` writes. Default: random weights.",
            show_default=False,
            autocompletion=model_completer(),
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="SIZE",
            help="Size of a new Conformer: tiny, small or base. Default: chosen by the number of sounds.",
            show_default=False,
            autocompletion=choice_completer(("tiny", "small", "base")),
        ),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention",
            metavar="NAME",
            help="Attention mechanism of a new Conformer: a name from `regard list`. Default: dot_product.",
            show_default=False,
            autocompletion=complete_mechanism,
        ),
    ] = None,
    position: Annotated[
        str | None,
        typer.Option(
            "--position",
            metavar="NAME",
            help="Position of a new Conformer: relative, rotary or none. Default: relative.",
            show_default=False,
            autocompletion=choice_completer(("relative", "rotary", "none")),
        ),
    ] = None,
    numbers: Annotated[list[str] | None, setting_option("layers=4 or kernel=15")] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="NAME",
            help="What the model writes a text in: characters, or words (by white space; it can write no others). "
            "Default: characters.",
            show_default=False,
            autocompletion=choice_completer(("characters", "words")),
        ),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sounds per batch.")] = 32,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Validation metric that decides which weights are best: cer (character error rate), wer (word error "
            "rate) or loss. Default: cer, or wer with --tokenizer words.",
            show_default=False,
            autocompletion=choice_completer(("cer", "wer", "loss")),
        ),
    ] = None,
    augment: Annotated[
        str | None,
        typer.Option(
            "--augment",
            metavar="NAME",
            help="Random changes of training data: none; light (stripes of bands and frames are hidden); or strong "
            "(also tempo, warp). Default: light.",
            show_default=False,
            autocompletion=choice_completer(("none", "light", "strong")),
            rich_help_panel="Sounds",
        ),
    ] = None,
    *,
    training: TranscriptionTrainingOptions,
    memory: Memory = None,
    skip_bad: SkipBad = False,
    sounds: SoundTrainingOptions,
) -> None:
    """Train a model that writes the texts of sounds, such as speech."""
    from regard.tasks.transcription import TranscriptionRecipe, TranscriptionTask

    recipe = TranscriptionRecipe(
        data=tuple(data),
        validation=tuple(valid or ()),
        columns=parse_columns(columns),
        skip_bad=skip_bad,
        model=model,
        start=start,
        hyperparameters=parse_hyperparameters(numbers or []),
        attention=attention,
        position=position,
        tokenizer=tokenizer,
        batch=batch,
        metric=metric,
        **drop_none({"augment": augment, "memory": memory}),
        **recipe_fields(sounds),
    )
    done = training.run(TranscriptionTask(recipe), out)
    say_next(done, "regard transcribe --model", "SOUND.wav")
