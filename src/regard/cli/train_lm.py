"""``regard train lm``: train a language model to predict the next token of documents."""

from __future__ import annotations

import typer

from regard.cli.option_group import expand_option_groups
from regard.cli.training_options import Training, print_next_command, training_options
from regard.cli.verb import Verb
from regard.tasks.language_modelling import LanguageModelRecipe

NOTES = """
[bold]Data.[/bold] Files of plain text, FILE.jsonl, FILE.csv or FILE.tsv with the text in --field, or folders of \
these; several with --data before each; each may be gzipped. A plain text is one document, or with --lines each of \
its lines. One document is cut into blocks at random offsets; several are packed into blocks, and a token attends \
only to its own document.

[bold]Models.[/bold] A new GPT-2 or Llama with random weights, or with --from a trained one to fine-tune: a folder \
that this command or `transformers` wrote.

[bold]Output.[/bold] The folder OUT has all that `regard generate` needs, and `transformers` loads it; it is rewritten \
whenever the loss on held-out text improves. The folder OUT.run has checkpoints, metrics.jsonl, tensorboard/ and \
samples.txt.

[bold]Duration.[/bold] Training stops when the loss on held-out text has not improved for --patience validations, or \
at the limit of --minutes, --epochs or --steps. Fine-tuning without a limit takes 3 epochs.

[bold]Interrupted?[/bold] Repeat the command with --resume: it continues from the last checkpoint and reaches the same \
weights as an uninterrupted run. To extend a finished run, raise the limit that ended it; a cosine schedule cannot \
be extended.

[bold]Several processes.[/bold] accelerate launch -m regard train lm ... on GPUs; torchrun --nproc-per-node 2 \
-m regard train lm ... on CPUs.

[bold]Examples[/bold]

  regard train lm --data book.txt --out model/ --minutes 10

  regard train lm --data articles.jsonl --field body --model llama --size small --out model/

  regard train lm --data letters/ --from gpt2/ --out letters-model/ --minutes 30

  regard train lm --data letters/ --from meta-llama/Llama-3.2-1B --lora 8 --out letters-llama/
"""


def register(train: typer.Typer) -> None:
    """Add the command to its verb."""
    train.command("lm", cls=Verb, epilog=NOTES)(lm)


@expand_option_groups(**training_options(better="a better loss", is_schedule_by_steps=True))
def lm(recipe: LanguageModelRecipe, training: Training) -> None:
    """Train a language model that continues texts, a new one or one to fine-tune."""
    from regard.tasks.language_modelling import LanguageModelTask

    done = training.run(LanguageModelTask(recipe))
    print_next_command(done, "regard generate --model", '"..."')
