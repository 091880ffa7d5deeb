"""``regard train``: models from data. One command a task."""

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
[bold]Data.[/bold] FILE.tsv, FILE.jsonl, FILE.tmx, FILE.po, FILE.mo, a folder of .po or .mo, and several of these; or \
two text files with --data twice, the source first. Each may be gzipped. What cannot be used is left out, and said.

[bold]What comes out.[/bold] OUT, a folder with all that `regard translate` needs, written whenever the model is the \
best so far; and OUT.run with checkpoints, metrics.jsonl, tensorboard/ and samples.txt.

[bold]How long.[/bold] Until BLEU on held-out pairs has not risen in --patience validations, or --minutes, --epochs or \
--steps are over.

[bold]Interrupted?[/bold] The same command with --resume goes on from the last checkpoint, to the same weights that a \
run without a break would have. With more --minutes, or more of what ended it (--patience), it goes on from a run that \
ended.

[bold]Many processes:[/bold] accelerate launch --multi_gpu -m regard train translate ... on GPUs, as `accelerate \
config` says (DDP or FSDP, one machine or many that share a disk); torchrun --nproc-per-node 2 -m regard train \
translate ... on CPUs.

[bold]Examples[/bold]

  regard train translate --data pairs.tsv --out model/

  regard train translate --data train.de.gz --data train.en.gz --out de-en/ --minutes 30

  regard train translate --data locale/fr/ --out fr/ --model gru --attention luong_general

  regard train translate --data new.tmx --source en --target fr --model old/ --out tuned/
"""


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    train = typer.Typer(
        name="train", cls=TaskGroup, help="Train a model from your data.", no_args_is_help=True, rich_markup_mode="rich"
    )
    train.callback()(_group_callback)  # with one command alone, typer would leave out its name
    train.command("translate", cls=Verb, epilog=NOTES)(translate)
    app.add_typer(train)


def _group_callback() -> None:
    """Train a model from your data."""


def translate(
    data: Annotated[
        list[Path],
        typer.Option(
            "--data", help="Pairs: files and folders, --data for each; or two text files.", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write the model to.", show_default=False)],
    valid: Annotated[
        list[Path] | None,
        typer.Option("--valid", help="Validation pairs; else 5 % of the data are held out.", show_default=False),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", help="Language of the source, such as en.", show_default=False)
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", help="Language of the target; catalogues in others are left out.", show_default=False),
    ] = None,
    columns: Columns = None,
    fields: Fields = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="tiny, small, base or big (Transformers), gru or lstm, or a model's folder to go on from; else what "
            "suits the data.",
            show_default=False,
            autocompletion=model_completer(("tiny", "small", "base", "big", "gru", "lstm")),
        ),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention",
            help="The attention mechanism, as `regard list` names them. Transformers: dot_product unless set; gru and "
            "lstm: additive, luong_dot, luong_general, luong_concat, local_p or none, additive unless set.",
            show_default=False,
            autocompletion=complete_mechanism,
        ),
    ] = None,
    numbers: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Override a model setting, for example layers=4, norm=pre or "
            "mechanism_options.projected=64; repeat for more.",
            show_default=False,
        ),
    ] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option("--vocabulary", min=1, help="Number of subwords; else chosen by the data.", show_default=False),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--subwords",
            help="Subword algorithm: bpe or unigram; else bpe.",
            show_default=False,
            autocompletion=choice_completer(("bpe", "unigram")),
        ),
    ] = None,
    sharing: Annotated[
        str | None,
        typer.Option(
            "--sharing",
            help="Vocabulary of both languages: joint, separate or auto; else auto.",
            show_default=False,
            autocompletion=choice_completer(("joint", "separate", "auto")),
        ),
    ] = None,
    most_tokens: Annotated[
        int, typer.Option("--most-tokens", min=1, help="Maximum tokens of a side; longer pairs are left out.")
    ] = 250,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--batch-tokens", min=1, help="Tokens in a batch; else chosen by the model size.", show_default=False
        ),
    ] = None,
    accumulate: Annotated[
        int, typer.Option("--accumulate", min=1, help="Gradient accumulation: batches in a step.")
    ] = 1,
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule",
            help="Learning rate schedule: inverse_sqrt, cosine or constant.",
            autocompletion=choice_completer(("inverse_sqrt", "cosine", "constant")),
        ),
    ] = "inverse_sqrt",
    rate: Annotated[
        float | None,
        typer.Option("--rate", help="Peak learning rate; else chosen by the model size.", show_default=False),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option("--warmup", min=0, help="Warm-up steps; else chosen by the model size.", show_default=False),
    ] = None,
    smoothing: Annotated[float, typer.Option("--smoothing", min=0.0, max=0.99, help="Label smoothing factor.")] = 0.1,
    clip: Annotated[float, typer.Option("--clip", min=0.0, help="Maximum gradient norm; 0 disables clipping.")] = 1.0,
    weight_decay: Annotated[float, typer.Option("--weight-decay", min=0.0, help="Weight decay of AdamW.")] = 0.0,
    precision: Annotated[
        str,
        typer.Option(
            "--dtype",
            help="Precision to compute in: float32, bfloat16, or auto, the one that is faster here.",
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
            help="Steps between validations; else an epoch, but 200 to 2,000.",
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
        str | None, typer.Option("--device", help="cpu; else a GPU where there is one.", show_default=False)
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Random seed of data order, dropout and first weights.")
    ] = 1,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train a translator from pairs of sentences."""
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


def _parse_hyperparameters(given: list[str]) -> dict[str, Any]:
    """What --set says: name=value, as JSON where that can be read, else as text."""
    found: dict[str, Any] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not (name and equals and value):
            raise OptionError("wrong --set", expected="name=value", got=one, do="such as --set layers=4")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
