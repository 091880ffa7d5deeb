"""``regard train mlm``: train a masked language model, an encoder that fills in masked tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.completion import choice_completer, model_completer
from regard.cli.shared_options import MaskShare, Overwrite, Resume, check_resume
from regard.cli.stderr import say
from regard.cli.training_options import (
    Accumulate,
    Average,
    Clip,
    Epochs,
    Hyperparameters,
    LoraAlpha,
    LoraRank,
    Minutes,
    Out,
    Precision,
    Rate,
    SaveSeconds,
    Seed,
    Steps,
    TrainingDevice,
    ValidateEvery,
    Warmup,
    WeightDecay,
    make_settings,
    parse_hyperparameters,
    run_task,
)
from regard.cli.verb import Verb

NOTES = """
[bold]Data.[/bold] Files of plain text, FILE.jsonl with the text in a field, or folders of these; several with --data \
before each; each may be gzipped. A plain text is one document, or with --lines each of its lines. One document is cut \
into blocks at random offsets; several are packed into blocks, and a token attends only to its own document.

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


def mlm(
    data: Annotated[
        list[Path],
        typer.Option(
            "--data",
            metavar="PATH",
            help="Texts: a file of plain text, JSON lines, or a folder of these; repeat for more.",
            show_default=False,
        ),
    ],
    out: Out,
    valid: Annotated[
        list[Path] | None,
        typer.Option(
            "--valid",
            metavar="PATH",
            help="Validation texts. Default: a tenth is held out, of one text its end, of several some documents.",
            show_default=False,
        ),
    ] = None,
    field: Annotated[str, typer.Option("--field", metavar="NAME", help="For JSON lines: the field of the text.")] = (
        "text"
    ),
    lines: Annotated[bool, typer.Option("--lines", help="Each line of a plain text is a document.")] = False,
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
    size: Annotated[
        str | None,
        typer.Option(
            "--size",
            metavar="SIZE",
            help="Size of a new model: tiny, small or base. Default: chosen by the size of the data.",
            show_default=False,
            autocompletion=choice_completer(("tiny", "small", "base")),
        ),
    ] = None,
    numbers: Hyperparameters = None,
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
    vocabulary: Annotated[
        int | None,
        typer.Option(
            "--vocabulary", min=1, help="Size of its vocabulary. Default: chosen by the data.", show_default=False
        ),
    ] = None,
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
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Blocks per batch. Default: chosen by the model size.", show_default=False),
    ] = None,
    accumulate: Accumulate = 1,
    schedule: Annotated[
        str | None,
        typer.Option(
            "--schedule",
            metavar="NAME",
            help="Learning rate schedule: inverse_sqrt, cosine or constant. Default: cosine with --steps, else "
            "inverse_sqrt.",
            show_default=False,
            autocompletion=choice_completer(("inverse_sqrt", "cosine", "constant")),
        ),
    ] = None,
    rate: Rate = None,
    warmup: Warmup = None,
    clip: Clip = 1.0,
    weight_decay: WeightDecay = 0.01,
    lora: LoraRank = None,
    lora_alpha: LoraAlpha = None,
    precision: Precision = "auto",
    epochs: Epochs = None,
    steps: Steps = None,
    minutes: Minutes = None,
    patience: Annotated[
        int,
        typer.Option("--patience", min=0, help="Early stopping: validations without a better loss; 0 disables it."),
    ] = 10,
    validate_every: ValidateEvery = None,
    average: Average = 5,
    save_seconds: SaveSeconds = 120.0,
    device: TrainingDevice = None,
    seed: Seed = 1,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train a masked language model, an encoder that fills in masked tokens: a new one or one to fine-tune."""
    check_resume(resume=resume, overwrite=overwrite)
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
        lora=lora,
        lora_alpha=lora_alpha,
    )
    settings = make_settings(
        schedule=schedule or ("inverse_sqrt" if steps is None else "cosine"),
        rate=rate,
        warmup=warmup,
        steps=steps,
        seed=seed,
        accumulate=accumulate,
        clip=clip,
        weight_decay=weight_decay,
        precision=precision,
        epochs=epochs,
        minutes=minutes,
        patience=patience,
        validate_every=validate_every,
        save_seconds=save_seconds,
        average=average,
    )
    done = run_task(MaskedLanguageModelTask(recipe), settings, out, resume=resume, overwrite=overwrite, device=device)
    if done.is_main and done.score is not None:
        say(f"try: regard train classify --from {done.out} --data texts.csv --out classifier/")
