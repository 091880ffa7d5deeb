"""``regard train lm``: train a language model to predict the next token of documents."""

from __future__ import annotations

from typing import Annotated

import typer

from regard.cli.completion import choice_completer, model_completer
from regard.cli.document_options import (
    BlocksPerBatch,
    DocumentHyperparameters,
    Documents,
    DocumentTrainingOptions,
    Lines,
    ModelSize,
    TextField,
    ValidationDocuments,
)
from regard.cli.next_command import say_next
from regard.cli.option_group import expand_option_group
from regard.cli.training_options import Out, Vocabulary, parse_hyperparameters
from regard.cli.verb import Verb

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


@expand_option_group
def lm(
    data: Documents,
    out: Out,
    valid: ValidationDocuments = None,
    field: TextField = "text",
    lines: Lines = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="MODEL",
            help="Trained language model to fine-tune: a folder, or a name on the Hub. Default: random weights.",
            show_default=False,
            autocompletion=model_completer(()),
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Architecture of a new model: gpt2 (default) or llama.",
            show_default=False,
            autocompletion=choice_completer(("gpt2", "llama")),
        ),
    ] = None,
    size: ModelSize = None,
    numbers: DocumentHyperparameters = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="NAME",
            help="Tokenizer of a new model: bpe (subwords), bytes or characters. Default: bpe.",
            show_default=False,
            autocompletion=choice_completer(("bpe", "bytes", "characters")),
        ),
    ] = None,
    vocabulary: Vocabulary = None,
    block: Annotated[
        int | None,
        typer.Option(
            "--block",
            min=1,
            help="Tokens of a training example, and the context of a new model. Default: that of its size.",
            show_default=False,
        ),
    ] = None,
    batch: BlocksPerBatch = None,
    keep_adapters: Annotated[
        bool,
        typer.Option(
            "--keep-adapters",
            help="With --lora: save the adapters alone, in the layout of peft, instead of the whole model.",
        ),
    ] = False,
    *,
    training: DocumentTrainingOptions,
) -> None:
    """Train a language model that continues texts, a new one or one to fine-tune."""
    from regard.tasks.language_modelling import LanguageModelRecipe, LanguageModelTask

    recipe = LanguageModelRecipe(
        data=tuple(data),
        validation=tuple(valid or ()),
        text_field=field,
        lines=lines,
        model=model,
        size=size,
        start=start,
        hyperparameters=parse_hyperparameters(numbers or []),
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        block=block,
        batch=batch,
        lora=training.lora,
        lora_alpha=training.lora_alpha,
        keep_adapters=keep_adapters,
    )
    done = training.run(LanguageModelTask(recipe), out)
    say_next(done, "regard generate --model", '"..."')
