"""``regard train mlm``: train a masked language model, an encoder that fills in masked tokens."""

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
from regard.cli.shared_options import MaskShare
from regard.cli.training_options import Out, Vocabulary, parse_hyperparameters
from regard.cli.verb import Verb

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


@expand_option_group
def mlm(
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
            help="Trained encoder to fine-tune: the folder of a BERT, RoBERTa or ModernBERT, or its name on the Hub. "
            "Default: random weights.",
            show_default=False,
            autocompletion=model_completer(()),
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Architecture of a new model: bert (default), roberta or modernbert.",
            show_default=False,
            autocompletion=choice_completer(("bert", "roberta", "modernbert")),
        ),
    ] = None,
    size: ModelSize = None,
    numbers: DocumentHyperparameters = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="NAME",
            help="Tokenizer of a new model: wordpiece, bpe (subwords), bytes or characters. Default: wordpiece.",
            show_default=False,
            autocompletion=choice_completer(("wordpiece", "bpe", "bytes", "characters")),
        ),
    ] = None,
    vocabulary: Vocabulary = None,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="A new tokenizer makes no difference between upper and lower case.")
    ] = False,
    mask_share: MaskShare = 0.15,
    block: Annotated[
        int | None,
        typer.Option(
            "--block",
            min=1,
            help="Tokens of a training example, and the longest text of a new model. Default: that of its size.",
            show_default=False,
        ),
    ] = None,
    batch: BlocksPerBatch = None,
    *,
    training: DocumentTrainingOptions,
) -> None:
    """Train a masked language model, an encoder that fills in masked tokens: a new one or one to fine-tune."""
    from regard.tasks.masked_language_modelling import MaskedLanguageModelRecipe, MaskedLanguageModelTask

    recipe = MaskedLanguageModelRecipe(
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
        lowercase=lowercase,
        mask_share=mask_share,
        block=block,
        batch=batch,
        lora=training.lora,
        lora_alpha=training.lora_alpha,
    )
    done = training.run(MaskedLanguageModelTask(recipe), out)
    say_next(done, "regard train classify --from", "--data texts.csv --out classifier/")
