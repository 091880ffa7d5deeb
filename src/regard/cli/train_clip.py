"""``regard train clip``: train a CLIP from pictures and their captions."""

from __future__ import annotations

import typer

from regard.cli.option_group import expand_option_groups
from regard.cli.training_options import Training, print_next_command, training_options
from regard.cli.verb import Verb
from regard.tasks.clip import ClipRecipe

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


@expand_option_groups(**training_options(better="a better recall"))
def clip(recipe: ClipRecipe, training: Training) -> None:
    """Train a CLIP, which embeds pictures and texts in one space, from pictures and their captions."""
    from regard.tasks.clip import ClipTask

    done = training.run(ClipTask(recipe))
    print_next_command(done, "regard classify --model", 'PICTURE.jpg --labels "a cat,a dog"')
