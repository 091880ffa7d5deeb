"""``regard train``: models from data. One command a task."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.asked import PRECISIONS, Columns, Fields, Overwrite, Resume, check_resume, columns_of, fields_of
from regard.cli.completion import mechanism, model_or, one_of
from regard.cli.say import say
from regard.cli.verb import Tasks, Verb
from regard.errors import OptionError, OutputError, OutputExistsError, unwritable

if TYPE_CHECKING:
    from regard.train.plan import Plan
    from regard.train.processes import Processes
    from regard.train.reports import Report
    from regard.train.run_folder import RunFolder
    from regard.train.settings import Settings
    from regard.train.translation_job import Prepared
    from regard.translation.sizes import Size

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
        name="train", cls=Tasks, help="Train a model from your data.", no_args_is_help=True, rich_markup_mode="rich"
    )
    train.callback()(_of_tasks)  # with one command alone, typer would leave out its name
    train.command("translate", cls=Verb, epilog=NOTES)(translate)
    app.add_typer(train)


def _of_tasks() -> None:
    """Train a model from your data."""


def translate(
    data: Annotated[
        list[Path],
        typer.Option(
            "--data", help="Pairs: files and folders, --data for each; or two text files.", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the model.", show_default=False)],
    valid: Annotated[
        list[Path] | None,
        typer.Option("--valid", help="Pairs to measure with; else 5 % are held out.", show_default=False),
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
            autocompletion=model_or(("tiny", "small", "base", "big", "gru", "lstm")),
        ),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention",
            help="The attention mechanism, as `regard list` names them. Transformers: dot_product unless set; gru and "
            "lstm: additive, luong_dot, luong_general, luong_concat, local_p or none, additive unless set.",
            show_default=False,
            autocompletion=mechanism,
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
        int | None, typer.Option("--vocabulary", min=1, help="Subwords; else by the data.", show_default=False)
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--subwords",
            help="bpe or unigram; else bpe.",
            show_default=False,
            autocompletion=one_of(("bpe", "unigram")),
        ),
    ] = None,
    sharing: Annotated[
        str | None,
        typer.Option(
            "--sharing",
            help="Subwords of both languages: joint, separate or auto; else auto.",
            show_default=False,
            autocompletion=one_of(("joint", "separate", "auto")),
        ),
    ] = None,
    most_tokens: Annotated[
        int, typer.Option("--most-tokens", min=1, help="Pairs with a longer side are left out.")
    ] = 250,
    tokens: Annotated[
        int | None, typer.Option("--batch-tokens", min=1, help="Tokens a batch; else by the size.", show_default=False)
    ] = None,
    accumulate: Annotated[int, typer.Option("--accumulate", min=1, help="Batches a step.")] = 1,
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule",
            help="inverse_sqrt, cosine or constant.",
            autocompletion=one_of(("inverse_sqrt", "cosine", "constant")),
        ),
    ] = "inverse_sqrt",
    rate: Annotated[
        float | None, typer.Option("--rate", help="The highest learning rate; else by the size.", show_default=False)
    ] = None,
    warmup: Annotated[
        int | None, typer.Option("--warmup", min=0, help="Steps up to it; else by the size.", show_default=False)
    ] = None,
    smoothing: Annotated[float, typer.Option("--smoothing", min=0.0, max=0.99, help="Of labels.")] = 0.1,
    clip: Annotated[float, typer.Option("--clip", min=0.0, help="The longest gradient; 0 is any.")] = 1.0,
    weight_decay: Annotated[float, typer.Option("--weight-decay", min=0.0, help="Of AdamW.")] = 0.0,
    precision: Annotated[
        str,
        typer.Option(
            "--dtype",
            help="What to multiply in: float32, bfloat16, or auto, the faster one here.",
            autocompletion=one_of((*PRECISIONS, "auto")),
        ),
    ] = "auto",
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, help="Passes over the data at most.", show_default=False)
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Steps at most.", show_default=False)] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", min=0.0, help="Training time at most.", show_default=False)
    ] = None,
    patience: Annotated[
        int, typer.Option("--patience", min=0, help="Validations without a better BLEU, then stop; 0: never stop.")
    ] = 10,
    validate_every: Annotated[
        int | None,
        typer.Option("--validate-every", min=1, help="Steps; else an epoch, 200 to 2,000 steps.", show_default=False),
    ] = None,
    average: Annotated[int, typer.Option("--average", min=1, help="How many of the best weights to average.")] = 5,
    save_seconds: Annotated[float, typer.Option("--save-seconds", min=0.0, help="Between checkpoints.")] = 120.0,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu; else a GPU where there is one.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Decides order, dropout and first weights.")] = 1,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train a translator from pairs of sentences."""
    from regard.text.pairs import Where
    from regard.train.plan import Plan

    out = _expanded(out)
    plan = Plan(
        data=tuple(data),
        where=Where(source, target, columns=columns_of(columns), fields=fields_of(fields)),
        validation=tuple(valid or ()),
        model=model,
        numbers=_numbers(numbers or []),
        attention=attention,
        vocabulary=vocabulary,
        algorithm=algorithm,
        sharing=sharing,
        most_tokens=most_tokens,
        tokens=tokens,
        smoothing=smoothing,
        seed=seed,
    )
    options = {
        "schedule": schedule, "rate": rate, "warmup": warmup, "seed": seed, "accumulate": accumulate, "clip": clip,
        "weight_decay": weight_decay, "precision": precision, "average": average,
    }  # fmt: skip
    bounds = {
        "epochs": epochs, "steps": steps, "minutes": minutes, "patience": patience,
        "validate_every": validate_every, "save_seconds": save_seconds,
    }  # fmt: skip
    _check_numbers(options, bounds)
    _train(plan, options, bounds, out, device=device, resume=resume, overwrite=overwrite)


def _train(
    plan: Plan,
    options: dict[str, Any],
    bounds: dict[str, Any],
    out: Path,
    *,
    device: str | None,
    resume: bool,
    overwrite: bool,
) -> None:
    """Prepare, learn, and say what came of it."""
    from regard.train.allocator import keep_few_kernels, keep_memory
    from regard.train.loop import Trainer
    from regard.train.processes import Processes
    from regard.train.run_folder import RunFolder

    keep_memory()
    keep_few_kernels()
    folder = RunFolder(_beside(out))
    _check_output(out, folder, resume=resume, overwrite=overwrite)
    processes = Processes(device=device)
    with closing(_terminal(processes)) as report, folder.held(report.say) if processes.is_main else nullcontext():
        found, settings = _prepared(plan, options, bounds, processes, folder, report, resume=resume)
        after = folder.last() if resume else None
        listeners = _with_files(report, folder, processes, 0 if after is None else after.progress.step)
        with _explained(folder, listeners):
            trainer = Trainer(
                found.task,
                settings,
                processes=processes,
                folder=folder,
                out=out,
                report=listeners,
                about=found.about,
                after=after,
            )
            if after is not None:
                report.say(_going_on(after.progress.step, trainer.ended_by(), settings))
            progress = trainer.run()
    if progress.kept is not None and processes.is_main:
        measure = found.task.compares_by
        say(f"{out}: {measure} {progress.kept:.2f} on held-out pairs, after {progress.step:,} steps")
        say(f'try: regard translate --model {out} "..."')


def _expanded(out: Path) -> Path:
    """A shell leaves --out=~/model as it is. Raises OptionError for the home of nobody."""
    try:
        return out.expanduser()
    except RuntimeError as error:
        raise OptionError("--out is in no home", expected="a new folder", got=str(out), do=str(error)) from None


def _beside(out: Path) -> Path:
    """The folder of the run that writes ``out``. Raises OptionError where nothing can stand beside it."""
    if out.name in ("", ".."):
        raise OptionError("--out is no folder of its own", expected="a new folder", got=str(out), do="such as model/")
    return out.with_name(f"{out.name}.run")


def _going_on(step: int, ended_by: str | None, settings: Settings) -> str:
    """Where a run goes on, or why there is nothing left of it."""
    if ended_by is None:
        return f"going on after step {step:,}"
    if ended_by == "steps" and settings.schedule.steps is not None:
        return f"the run ended after step {step:,}, where its schedule does: begin another from its model (--model)"
    return f"the run ended after step {step:,}, by --{ended_by}: give more of it to go on from there"


def _prepared(
    plan: Plan,
    options: dict[str, Any],
    bounds: dict[str, Any],
    processes: Processes,
    folder: RunFolder,
    report: Report,
    *,
    resume: bool,
) -> tuple[Prepared, Settings]:
    """The task and how to learn it. The main process makes the subwords and begins the run, if no option is wrong.

    The others take what it wrote.
    """
    import torch

    from regard.train import arithmetic
    from regard.train.translation_job import prepared, subwords_of

    on_cpu = processes.device.type == "cpu"
    torch.manual_seed(plan.seed)  # the first weights are drawn here, the same in all processes
    if processes.is_main:
        if on_cpu and resume:
            arithmetic.take(folder.asked("arithmetic"), report.say)
        used = arithmetic.in_use() if on_cpu else {}
        options = {**options, "precision": _precision(plan, options["precision"], processes, folder, report, resume)}
        found = prepared(plan, report.say, subwords=subwords_of(folder) if resume else None)
        settings = _settings(options, bounds, found.size)
        asked = {**plan.asked(), **options, **_chosen(found, settings), "pairs": found.task.digest}
        if resume:
            folder.check_same(asked)
        else:
            folder.begin({**asked, "arithmetic": used}, found.files)
    processes.wait()
    if not processes.is_main:
        if on_cpu:
            arithmetic.take(folder.asked("arithmetic"), report.say)
        found = prepared(plan, report.say, subwords=subwords_of(folder))
        options = {**options, "precision": folder.asked("precision")}
        settings = _settings(options, bounds, found.size)
    return found, settings


def _precision(plan: Plan, asked: str, processes: Processes, folder: RunFolder, report: Report, resume: bool) -> str:
    """What to multiply in; a run that goes on without a word of it keeps its own, since the bits depend on it."""
    from regard.train.precision import say_if_unsupported, settled
    from regard.train.translation_job import layer_of

    layer = layer_of(plan)
    if not resume or asked != "auto":
        return settled(asked, processes.device, report.say, layer=layer)
    kept = str(folder.asked("precision"))
    say_if_unsupported(kept, processes.device, report.say, layer=layer)
    return kept


def _chosen(found: Prepared, settings: Settings) -> dict[str, Any]:
    """What was left open, as the data or this version of regard decided it."""
    schedule, model = settings.schedule, found.task.model
    return {
        "rate": schedule.peak,
        "warmup": schedule.warmup,
        "steps": schedule.steps,
        "tokens": found.task.batches.tokens,
        "model": {"type": model.model_type, **asdict(model.config)},
    }


def _check_output(out: Path, folder: RunFolder, *, resume: bool, overwrite: bool) -> None:
    """Raise OutputExistsError where something is there that nobody said to replace, or nothing to go on from."""
    from regard.models.checkpoint_writer import check_free

    check_resume(resume=resume, overwrite=overwrite)
    if resume and not folder.begun:
        raise OptionError(
            f"there is no run in {folder.path} to go on with",
            expected="the folder of a run that was begun",
            got="none" if not folder.path.exists() else "a folder without run.json",
            do="check --out, or leave out --resume to begin one",
        )
    if folder.begun and not (resume or overwrite):
        raise OutputExistsError(
            f"{folder.path} holds a run already",
            expected="--resume or --overwrite",
            got="neither",
            do="add --resume to go on with it, or --overwrite to begin anew",
        )
    check_free(out, overwrite=resume or overwrite, keep_others=resume)
    out.absolute().parent.mkdir(parents=True, exist_ok=True)


def _check_numbers(options: dict[str, Any], bounds: dict[str, Any]) -> None:
    """Raise OptionError for numbers that no size could make right, before data is read for minutes."""
    from regard.layers.precision import PRECISIONS
    from regard.translation.sizes import SIZES

    _settings({**options, "precision": PRECISIONS[0]}, bounds, SIZES["tiny"])  # of the shortest warm-up


def _settings(options: dict[str, Any], bounds: dict[str, Any], size: Size) -> Settings:
    """The run's numbers; what was left open is the size's."""
    from regard.train.schedule import Schedule
    from regard.train.settings import Settings

    rest = dict(options)
    name, peak, warmup = rest.pop("schedule"), rest.pop("rate"), rest.pop("warmup")
    schedule = Schedule(
        name=name,
        peak=size.peak if peak is None else peak,
        warmup=size.warmup if warmup is None else warmup,
        steps=bounds["steps"] if name == "cosine" else None,
    )
    return Settings(schedule=schedule, **rest, **bounds)


def _terminal(processes: Processes) -> Report:
    """Who tells the user: in the main process alone."""
    from regard.train.reports import Reports, Terminal

    return Terminal() if processes.is_main else Reports(())


def _with_files(report: Report, folder: RunFolder, processes: Processes, after: int) -> Report:
    from regard.train.reports import Files, Reports

    return Reports((report, Files(folder, after=after))) if processes.is_main else report


@contextmanager
def _explained(folder: RunFolder, report: Report) -> Iterator[None]:
    """Whatever ends the run early: say how to go on."""
    try:
        with closing(report):
            yield
    except KeyboardInterrupt:
        kept = f"; a checkpoint is in {folder.path}: the same command with --resume goes on from there"
        say("regard: interrupted" + (kept if folder.saved else ""))
        sys.exit(130)
    except OutputExistsError:
        raise
    except OSError as error:
        then = "then the same command with --resume goes on from the last checkpoint"
        if isinstance(error, OutputError):
            do = f"{error.do}; {then}"
            raise OutputError(error.what, expected=error.expected, got=error.got, do=do) from error
        raise unwritable(f"{error.filename or folder.path} cannot be written", error, then=then) from error


def _numbers(given: list[str]) -> dict[str, Any]:
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
