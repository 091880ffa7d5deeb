"""``regard train mlm``: train a masked language model, an encoder that fills in masked tokens."""

from __future__ import annotations

import typer

from regard.cli.option_group import expand_option_groups
from regard.cli.training_options import Training, print_next_command, training_options
from regard.cli.verb import Verb
from regard.tasks.masked_language_modelling import MaskedLanguageModelRecipe

NOTES = """
[bold]Data.[/bold] Files of plain text, FILE.jsonl, FILE.csv or FILE.tsv with the text in --field, or folders of \
these; several with --data before each; each may be gzipped. A plain text is one document, or with --lines each of \
its lines. One document is cut into blocks at random offsets; several are packed into blocks, and a token attends \
only to its own document.

[bold]Masks.[/bold] 15 % of the tokens (--mask-share) are predicted: of these 80 % are replaced by \\[MASK], 10 % by \
another token, and 10 % stay. They are drawn anew in each step.

[bold]Models.[/bold] A new BERT, RoBERTa or ModernBERT with random weights, or with --from a trained one to fine-tune: \
a folder that this command or `transformers` wrote.

[bold]Output.[/bold] The folder OUT is one for `transformers` (AutoModelForMaskedLM), for `regard embed` and `regard \
view`, and for `regard train classify --from`; it is rewritten whenever the loss on held-out text improves. The folder \
OUT.run has checkpoints, metrics.jsonl, tensorboard/ and samples.txt.

[bold]Duration.[/bold] Training stops when the loss on held-out text has not improved for --patience validations, or \
at the limit of --minutes, --epochs or --steps. Fine-tuning without a limit takes 3 epochs.

[bold]Interrupted?[/bold] Repeat the command with --resume: it continues from the last checkpoint and reaches the same \
weights as an uninterrupted run. To extend a finished run, raise the limit that ended it; a cosine schedule cannot \
be extended.

[bold]Several processes.[/bold] accelerate launch -m regard train mlm ... on GPUs; torchrun --nproc-per-node 2 \
-m regard train mlm ... on CPUs.

[bold]Examples[/bold]

  regard train mlm --data articles.txt --lines --out encoder/ --minutes 30

  regard train mlm --data articles.jsonl --field body --model modernbert --mask-share 0.3 --out encoder/

  regard train mlm --data letters/ --from google-bert/bert-base-uncased --out letters-bert/ --minutes 60

  regard train classify --data reviews.csv --from encoder/ --out reviews/
"""


def register(train: typer.Typer) -> None:
    """Add the command to its verb."""
    train.command("mlm", cls=Verb, epilog=NOTES)(mlm)


@expand_option_groups(**training_options(better="a better loss", is_schedule_by_steps=True))
def mlm(recipe: MaskedLanguageModelRecipe, training: Training) -> None:
    """Train a masked language model, an encoder that fills in masked tokens: a new one or one to fine-tune."""
    from regard.tasks.masked_language_modelling import MaskedLanguageModelTask

    done = training.run(MaskedLanguageModelTask(recipe))
    print_next_command(done, "regard train classify --from", "--data texts.csv --out classifier/")
