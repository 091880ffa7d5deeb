"""``regard train clip``: train a CLIP from pictures and their captions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

import typer

from regard.cli.column_options import TextColumns, parse_columns
from regard.cli.completion import choice_completer, model_completer
from regard.cli.media_options import Memory, SkipBad
from regard.cli.next_command import say_next
from regard.cli.option_group import expand_option_group
from regard.cli.shared_options import drop_none
from regard.cli.training_options import Out, ScheduleName, TrainingOptions, parse_hyperparameters, setting_option
from regard.cli.verb import Verb

NOTES = """
[bold]Data.[/bold] A folder in which the text of NAME.jpg is in NAME.txt beside it; or FILE.csv, FILE.tsv or \
FILE.jsonl with columns path and text (--columns names others), paths relative to the file; several with --data \
before each. A picture may have several texts, in rows of their own. Pictures without a text are skipped and \
reported. Broken pictures are an error, or left out with --skip-bad. It needs the extra vision.

[bold]What is learned.[/bold] Of all texts of a batch, each picture is nearest to its own, and each text to its \
picture (Radford et al. 2021). So the larger the batch, the harder the task. Pairs with the same text or the same \
picture are not compared with each other. Texts are read in lower case.

[bold]Models.[/bold] A text tower and a vision tower, new or, with --from, those of a trained CLIP. --set \
vision.layers=8 and --set text.layers=4 change a new one.

[bold]Output.[/bold] The folder OUT is a CLIP for `regard embed`, `regard classify --labels` and `regard view`, and \
for transformers; it is rewritten whenever recall@1 on held-out pairs improves: the share of pictures whose text is \
the nearest of all, and of texts whose picture is. The folder OUT.run has checkpoints, metrics.jsonl, tensorboard/ \
and samples.txt.

[bold]Duration.[/bold] Training stops when recall has not improved for --patience validations, or at the limit of \
--minutes, --epochs or --steps. Fine-tuning without a limit takes 10 epochs.

[bold]Interrupted?[/bold] Repeat the command with --resume: it continues from the last checkpoint and reaches the \
same weights as an uninterrupted run. To extend a finished run, raise the limit that ended it.

[bold]Several processes.[/bold] accelerate launch -m regard train clip ... on GPUs; torchrun --nproc-per-node 2 -m \
regard train clip ... on CPUs. They share each batch, and compare all its pairs.

[bold]Examples[/bold]

  regard train clip --data photos/ --out clip/

  regard train clip --data captions.csv --valid dev.csv --columns image,caption --skip-bad --out clip/

  regard train clip --data captions.tsv --model small --batch 256 --minutes 60 --out clip/

  regard train clip --data mine.csv --from clip/ --epochs 5 --out mine/
"""


def register(train: typer.Typer) -> None:
    """Add the command to its verb."""
    train.command("clip", cls=Verb, epilog=NOTES)(clip)


@final
@dataclass(frozen=True)
class ClipTrainingOptions(TrainingOptions):
    """How a CLIP is trained."""

    schedule: ScheduleName = "inverse_sqrt"
    patience: Annotated[
        int,
        typer.Option("--patience", min=0, help="Early stopping: validations without a better recall; 0 disables it."),
    ] = 10


@expand_option_group
def clip(
    data: Annotated[
        list[Path],
        typer.Option(
            "--data",
            metavar="PATH",
            help="Pictures with their texts: a folder, a table or JSON lines; repeat for more.",
            show_default=False,
        ),
    ],
    out: Out,
    valid: Annotated[
        list[Path] | None,
        typer.Option(
            "--valid",
            metavar="PATH",
            help="Validation data. Default: 10 % of the pictures are held out, with all their texts.",
            show_default=False,
        ),
    ] = None,
    columns: TextColumns = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="MODEL",
            help="CLIP to start from: a folder, or a name on the Hub, such as openai/clip-vit-base-patch32. Default: "
            "random weights.",
            show_default=False,
            autocompletion=model_completer(),
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="SIZE",
            help="Size of a new CLIP: tiny, small or base. Default: chosen by the number of pairs.",
            show_default=False,
            autocompletion=choice_completer(("tiny", "small", "base")),
        ),
    ] = None,
    numbers: Annotated[list[str] | None, setting_option("text.layers=4 or vision.width=192")] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option(
            "--vocabulary",
            min=1,
            help="Number of subwords of a new CLIP. Default: chosen by its size.",
            show_default=False,
        ),
    ] = None,
    most_tokens: Annotated[
        int | None,
        typer.Option(
            "--most-tokens",
            min=1,
            help="Maximum tokens of a text; longer texts are cut. Default: 77.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=2, help="Pairs per batch.")] = 128,
    picture_size: Annotated[
        int | None,
        typer.Option(
            "--picture-size",
            min=1,
            help="Height and width of a new CLIP's pictures. Default: chosen by the data, at most 128.",
            show_default=False,
            rich_help_panel="Pictures",
        ),
    ] = None,
    crop: Annotated[
        int | None,
        typer.Option(
            "--crop",
            min=0,
            help="Augmentation: pixels that may be cut off on each side. Default: an eighth of the edge.",
            show_default=False,
            rich_help_panel="Pictures",
        ),
    ] = None,
    flip: Annotated[
        bool,
        typer.Option(
            "--flip/--no-flip",
            help="Augmentation: mirror half of the pictures. Texts that tell left from right are wrong then.",
            rich_help_panel="Pictures",
        ),
    ] = False,
    *,
    training: ClipTrainingOptions,
    memory: Memory = None,
    skip_bad: SkipBad = False,
) -> None:
    """Train a CLIP, which embeds pictures and texts in one space, from pictures and their captions."""
    from regard.tasks.clip import ClipRecipe, ClipTask

    recipe = ClipRecipe(
        data=tuple(data),
        validation=tuple(valid or ()),
        columns=parse_columns(columns),
        skip_bad=skip_bad,
        model=model,
        start=start,
        picture_size=picture_size,
        hyperparameters=parse_hyperparameters(numbers or []),
        vocabulary=vocabulary,
        most_tokens=most_tokens,
        crop=crop,
        flip=flip,
        batch=batch,
        **drop_none({"memory": memory}),
    )
    done = training.run(ClipTask(recipe), out)
    say_next(done, "regard classify --model", 'PICTURE.jpg --labels "a cat,a dog"')
