"""``regard train``: train a model from data. One command per task."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.completion import choice_completer, complete_mechanism, model_completer
from regard.cli.shared_options import (
    PRECISIONS,
    Columns,
    Fields,
    Overwrite,
    Resume,
    check_resume,
    parse_columns,
    parse_fields,
)
from regard.cli.stderr import say
from regard.cli.verb import TaskGroup, Verb
from regard.errors import OptionError

NOTES = """
[bold]Data.[/bold] FILE.tsv, FILE.jsonl, FILE.tmx, FILE.po, FILE.mo, a folder of .po or .mo, or several of these with \
--data before each; or two text files, --data twice, the source first. Each may be gzipped. Unusable pairs are skipped \
and reported.

[bold]Output.[/bold] The folder OUT has all that `regard translate` needs; it is rewritten whenever the validation \
score improves. The folder OUT.run has checkpoints, metrics.jsonl, tensorboard/ and samples.txt.

[bold]Duration.[/bold] Training stops when BLEU on held-out pairs has not improved for --patience validations, or at \
the limit of --minutes, --epochs or --steps.

[bold]Interrupted?[/bold] Repeat the command with --resume: it continues from the last checkpoint and reaches the same \
weights as an uninterrupted run. To extend a finished run, raise the limit that ended it, such as --minutes or \
--patience.

[bold]Several processes.[/bold] On GPUs: accelerate launch --multi_gpu -m regard train translate ... with the settings \
of `accelerate config` (DDP or FSDP, one machine or several that share a disk). On CPUs: torchrun --nproc-per-node 2 \
-m regard train translate ...

[bold]Examples[/bold]

  regard train translate --data pairs.tsv --out model/

  regard train translate --data train.de.gz --data train.en.gz --out de-en/ --minutes 30

  regard train translate --data locale/fr/ --out fr/ --model gru --attention luong_general

  regard train translate --data new.tmx --source en --target fr --model old/ --out tuned/
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    train = typer.Typer(
        name="train", cls=TaskGroup, help="Train a model from your data.", no_args_is_help=True, rich_markup_mode="rich"
    )
    train.callback()(_group_callback)  # with a single command, typer would drop its name
    train.command("translate", cls=Verb, epilog=NOTES)(translate)
    app.add_typer(train)


def _group_callback() -> None:
    """Train a model from your data."""


def translate(
    data: Annotated[
        list[Path],
        typer.Option(
            "--data",
            metavar="PATH",
            help="Training pairs: a file or folder; repeat for more. Two text files: the source first.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder to write the model to.", show_default=False)
    ],
    valid: Annotated[
        list[Path] | None,
        typer.Option(
            "--valid",
            metavar="PATH",
            help="Validation pairs. Default: 5 % of the data are held out.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="LANGUAGE", help="Source language, such as en.", show_default=False),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="LANGUAGE",
            help="Target language, such as fr; gettext files in other languages are skipped.",
            show_default=False,
        ),
    ] = None,
    columns: Columns = None,
    fields: Fields = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="tiny, small, base or big (Transformers), gru or lstm, or the folder of a model to fine-tune. "
            "Default: chosen by the size of the data.",
            show_default=False,
            autocompletion=model_completer(("tiny", "small", "base", "big", "gru", "lstm")),
        ),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention",
            metavar="NAME",
            help="Attention mechanism. Transformers: a name from `regard list`, default dot_product. gru and lstm: "
            "additive (default), luong_dot, luong_general, luong_concat, local_p or none.",
            show_default=False,
            autocompletion=complete_mechanism,
        ),
    ] = None,
    numbers: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Override a model setting, for example layers=4, norm=pre or "
            "mechanism_options.projected=64; repeat for more.",
            show_default=False,
        ),
    ] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option(
            "--vocabulary",
            min=1,
            help="Number of subwords. Default: chosen by the size of the data.",
            show_default=False,
        ),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--subwords",
            metavar="NAME",
            help="Subword algorithm: bpe or unigram. Default: bpe.",
            show_default=False,
            autocompletion=choice_completer(("bpe", "unigram")),
        ),
    ] = None,
    sharing: Annotated[
        str | None,
        typer.Option(
            "--sharing",
            metavar="NAME",
            help="Vocabulary of both languages: joint, separate, or auto (by their letters). Default: auto.",
            show_default=False,
            autocompletion=choice_completer(("joint", "separate", "auto")),
        ),
    ] = None,
    most_tokens: Annotated[
        int, typer.Option("--most-tokens", min=1, help="Maximum tokens per side; longer pairs are skipped.")
    ] = 250,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--batch-tokens", min=1, help="Tokens per batch. Default: chosen by the model size.", show_default=False
        ),
    ] = None,
    accumulate: Annotated[
        int, typer.Option("--accumulate", min=1, help="Gradient accumulation: batches per step.")
    ] = 1,
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule",
            metavar="NAME",
            help="Learning rate schedule: inverse_sqrt, cosine or constant.",
            autocompletion=choice_completer(("inverse_sqrt", "cosine", "constant")),
        ),
    ] = "inverse_sqrt",
    rate: Annotated[
        float | None,
        typer.Option("--rate", help="Peak learning rate. Default: chosen by the model size.", show_default=False),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option("--warmup", min=0, help="Warm-up steps. Default: chosen by the model size.", show_default=False),
    ] = None,
    smoothing: Annotated[float, typer.Option("--smoothing", min=0.0, max=0.99, help="Label smoothing factor.")] = 0.1,
    clip: Annotated[float, typer.Option("--clip", min=0.0, help="Maximum gradient norm; 0 disables clipping.")] = 1.0,
    weight_decay: Annotated[float, typer.Option("--weight-decay", min=0.0, help="Weight decay of AdamW.")] = 0.0,
    precision: Annotated[
        str,
        typer.Option(
            "--dtype",
            metavar="DTYPE",
            help="Precision to compute in: float32, bfloat16, or auto (the faster one on this machine).",
            autocompletion=choice_completer((*PRECISIONS, "auto")),
        ),
    ] = "auto",
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="Maximum epochs.", show_default=False)] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Maximum steps.", show_default=False)] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", min=0.0, help="Maximum training time, in minutes.", show_default=False)
    ] = None,
    patience: Annotated[
        int, typer.Option("--patience", min=0, help="Early stopping: validations without a better BLEU; 0 disables it.")
    ] = 10,
    validate_every: Annotated[
        int | None,
        typer.Option(
            "--validate-every",
            min=1,
            help="Steps between validations. Default: one epoch, but at least 200 and at most 2,000.",
            show_default=False,
        ),
    ] = None,
    average: Annotated[
        int, typer.Option("--average", min=1, help="Number of best checkpoints to average at the end.")
    ] = 5,
    save_seconds: Annotated[
        float, typer.Option("--save-seconds", min=0.0, help="Seconds between checkpoints.")
    ] = 120.0,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="cpu to train on the CPU. Default: a GPU if there is one.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Random seed of data order, dropout and initial weights.")
    ] = 1,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train a translator from sentence pairs."""
    from regard.tasks.translation import TranslationRecipe, TranslationTask
    from regard.text.pairs import PairFormat
    from regard.train import Schedule, Settings, run

    check_resume(resume=resume, overwrite=overwrite)
    recipe = TranslationRecipe(
        data=tuple(data),
        where=PairFormat(source, target, columns=parse_columns(columns), fields=parse_fields(fields)),
        validation=tuple(valid or ()),
        model=model,
        hyperparameters=_parse_hyperparameters(numbers or []),
        attention=attention,
        vocabulary=vocabulary,
        algorithm=algorithm,
        sharing=sharing,
        most_tokens=most_tokens,
        batch_tokens=tokens,
        smoothing=smoothing,
    )
    settings = Settings(
        seed=seed,
        schedule=Schedule(schedule, peak=rate, warmup=warmup, steps=steps if schedule == "cosine" else None),
        accumulate=accumulate,
        clip=clip,
        weight_decay=weight_decay,
        precision=precision,
        epochs=epochs,
        steps=steps,
        minutes=minutes,
        patience=patience,
        validate_every=validate_every,
        save_seconds=save_seconds,
        average=average,
    )
    try:
        done = run(TranslationTask(recipe), settings, out, resume=resume, overwrite=overwrite, device=device)
    except KeyboardInterrupt as interruption:
        if not interruption.args:
            raise
        say(f"regard: {interruption}")
        sys.exit(130)
    if done.is_main and done.score is not None:
        say(f'try: regard translate --model {done.out} "..."')


def _parse_hyperparameters(assignments: list[str]) -> dict[str, Any]:
    """Parse the name=value of each --set; a value that is not JSON is a string."""
    hyperparameters: dict[str, Any] = {}
    for one in assignments:
        name, equals, value = one.partition("=")
        if not (name and equals and value):
            raise OptionError("wrong --set", expected="name=value", got=one, do="for example --set layers=4")
        try:
            hyperparameters[name] = json.loads(value)
        except ValueError:
            hyperparameters[name] = value
    return hyperparameters
