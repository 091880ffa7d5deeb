"""``run``: a complete training run of any task, started anew or resumed after an interruption.

    OUT        the best model so far, written by the task
    OUT.run    checkpoints, metrics, recipe and settings: ``run_folder``

A run decides once everything that its bits depend on: the precision, the numeric backends, the settings that were None,
and the task's recipe. All of that is written to run.json. When the run is resumed, it is read from there and compared
with the caller's arguments. Of several processes the main one decides, and the others read run.json.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from regard.arguments import explain_arguments
from regard.energy import EnergyMeter
from regard.errors import OptionError, OutputError, OutputExistsError, check_flag, check_kind, short_repr, write_error
from regard.language import count_noun
from regard.log import log, notes_to
from regard.models.checkpoint_writer import check_replaceable, to_folder_path
from regard.train.allocator import keep_freed_memory, limit_kernel_cache
from regard.train.progress import Progress
from regard.train.reports import (
    CombinedReport,
    FileReport,
    Report,
    TerminalReport,
    advise_longer_run,
    why_nothing_learned,
)
from regard.train.run_folder import RunFolder
from regard.train.settings import Settings
from regard.train.task import RunContext, Task

if TYPE_CHECKING:
    from regard.train.distributed import Processes

_RESERVED_NAMES = {"arithmetic", "files"}
"""Names in run.json that belong neither to the task nor to the settings."""


@final
@explain_arguments
@dataclass(frozen=True)
class RunResult:
    """The result of a run.

    ``out`` is the model folder; ``score`` is the model's validation score, None if no model was written. ``steps``,
    ``tokens`` and ``seconds`` include the runs that this one resumed. ``ended_by`` is the setting whose bound was met:
    "patience", "steps", "epochs" or "minutes". ``learned`` is False for a model that is no better than one that ignores
    its input (``Task.baseline``). ``is_main`` is True in the main process, which wrote and reported. ``joules`` is the
    energy of this run, without those that it resumed, where the machine tells (``regard.energy``).
    """

    out: Path
    score: float | None
    steps: int
    tokens: int
    seconds: float
    ended_by: str
    learned: bool
    is_main: bool
    joules: float | None = None


@explain_arguments
def run(
    task: Task,
    settings: Settings,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    device: str | None = None,
    report: Report | None = None,
) -> RunResult:
    """Train ``task`` with ``settings``, and write the best model to the folder ``out``.

    Checkpoints and metrics go to the folder ``out``.run beside it. After any interruption, the same call with
    ``resume=True`` continues from the last checkpoint, and ends with the same bits as an uninterrupted run. Under
    ``accelerate launch`` or ``torchrun``, make the same call in every process.

    Args:
        task: the task to learn.
        settings: schedule, precision, bounds and intervals.
        out: a new folder for the model.
        resume: continue the run in ``out``.run. A run that has ended continues if the bound that ended it is raised.
        overwrite: replace an existing model and run. Cannot be combined with ``resume``.
        device: "cpu", or the kind of accelerator of this machine; None and "auto" use the accelerator if there is one.
        report: receives metrics, samples and messages in the main process, and is closed at the end; None prints them
            to standard error.

    Raises OutputExistsError if ``out`` or a run exists, if another process trains there, or if the resumed run was
    started with another recipe or other settings; OptionError for invalid arguments, and if there is no run to resume;
    RefusedError for a precision that the device does not support; DataError for data that cannot be used, and if the
    loss becomes NaN or infinite; OutputError if the disk is full; MissingPackageError without the extra ``train``;
    KeyboardInterrupt, after writing a checkpoint, on SIGINT, SIGTERM and SIGHUP.
    """
    _check_arguments(task, settings, resume=resume, overwrite=overwrite, report=report)
    # Before the imports below load the libraries that read these settings:
    keep_freed_memory()
    limit_kernel_cache()
    from regard.train.distributed import Processes
    from regard.train.loop import Trainer

    out = _expand_home(to_folder_path(out))
    folder = RunFolder(_run_folder_path(out))
    _prepare_output(out, folder, resume=resume, overwrite=overwrite)
    processes = Processes(device=device)
    is_main = processes.is_main
    report = _choose_report(processes, report)
    with closing(report), notes_to(report.say), folder.lock() if is_main else nullcontext():
        settings = _begin_run(task, settings, processes, folder, resume=resume)
        after = folder.load_last() if resume else None
        files = FileReport(folder, after=0 if after is None else after.progress.step) if is_main else CombinedReport(())
        with _explain_early_end(folder), closing(files):
            both = CombinedReport((report, files))
            trainer = Trainer(task, settings, processes=processes, folder=folder, out=out, report=both, after=after)
            if after is not None:
                log.info(_resume_message(after.progress.step, trainer.ended_by(), settings))
            progress = trainer.run()
        result = _report_result(task, settings, out, progress, trainer.ended_by(), is_main=is_main)
        return _report_energy(result, trainer.meter, task.unit, 0 if after is None else after.progress.tokens)


def _report_result(
    task: Task, settings: Settings, out: Path, progress: Progress, ended_by: str | None, *, is_main: bool
) -> RunResult:
    """The result of a run that has ended, and notes of its score and of why nothing was learned."""
    assert ended_by is not None  # an interruption raises
    problem = why_nothing_learned(task, progress)
    if progress.kept is not None:
        log.info(f"{out}: {task.describe(progress.kept)}, after {count_noun(progress.step, 'step')}")
    if problem is not None:
        log.info(f"nothing learned yet, since {problem}: {advise_longer_run(settings, ended_by)}")
    return RunResult(
        out=out,
        score=progress.kept,
        steps=progress.step,
        tokens=progress.tokens,
        seconds=progress.seconds,
        ended_by=ended_by,
        learned=problem is None,
        is_main=is_main,
    )


def _report_energy(result: RunResult, meter: EnergyMeter, unit: str, tokens_before: int) -> RunResult:
    """Add the energy since the meter was made to a result, with a note of it, or of why it is missing."""
    joules, tokens = meter.read(), result.tokens - tokens_before
    if joules is None:
        log.debug(f"no energy is measured: {meter.missing_reason}")
    elif tokens:
        log.info(
            f"energy of the whole processor or GPU: {joules:,.0f} J, {joules / tokens:.3g} J for each of {tokens:,} "
            f"{unit}"
        )
    return replace(result, joules=joules)


def _check_arguments(task: Task, settings: Settings, *, resume: bool, overwrite: bool, report: Report | None) -> None:
    """Raise OptionError for arguments of the wrong type, and for ``resume`` together with ``overwrite``."""
    check_kind("task", task, Task, do="an instance of a subclass of regard.train.Task")
    check_kind("settings", settings, Settings, do="regard.train.Settings(steps=...)")
    check_flag("resume", resume)
    check_flag("overwrite", overwrite)
    if report is not None:
        check_kind("report", report, Report, do="an instance of a subclass of regard.train.Report")
    if resume and overwrite:
        raise OptionError(
            "`resume=True` and `overwrite=True` contradict each other",
            expected="at most one of them",
            got="both",
            do="leave out one",
        )


def _expand_home(out: Path) -> Path:
    """Expand ~, which a shell does not inside an option. Raises OptionError for an unknown home directory."""
    try:
        return out.expanduser()
    except RuntimeError as error:
        raise OptionError(
            "`out` is in a home directory that does not exist",
            expected="a new folder",
            got=str(out),
            do=str(error),
        ) from None


def _run_folder_path(out: Path) -> Path:
    """The folder of the run that writes ``out``. Raises OptionError for an ``out`` without a name, such as "..".

    The run folder stands beside ``out``, with .run after its name.
    """
    if out.name in ("", ".."):
        raise OptionError("`out` has no folder name", expected="a new folder", got=str(out), do="for example model/")
    return out.with_name(f"{out.name}.run")


def _prepare_output(out: Path, folder: RunFolder, *, resume: bool, overwrite: bool) -> None:
    """Check the output, and make its parent folder. Raises OutputError for one that cannot be written or replaced."""
    try:
        _check_output(out, folder, resume=resume, overwrite=overwrite)
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OutputError:
        raise
    except OSError as error:  # for example a name that is too long
        raise write_error(f"{short_repr(str(out))} cannot be written", error) from error


def _check_output(out: Path, folder: RunFolder, *, resume: bool, overwrite: bool) -> None:
    """Raise OutputExistsError for output that may not be replaced, OptionError if there is no run to resume."""
    if resume and not folder.has_run:
        raise OptionError(
            f"there is no run in {folder.path} to resume",
            expected="the folder of a run that was started",
            got="no such folder" if not folder.path.exists() else "a folder without run.json",
            do="check the folder (`out=...`); or leave out `resume=True` to start a new run",
        )
    if folder.has_run and not (resume or overwrite):
        raise OutputExistsError(
            f"{folder.path} already holds a run",
            expected="`resume=True` or `overwrite=True`",
            got="neither",
            do="`resume=True` continues it, `overwrite=True` starts again",
        )
    check_replaceable(out, overwrite=resume or overwrite, keep_others=resume)


def _choose_report(processes: Processes, report: Report | None) -> Report:
    """Return the caller's report, or one for the terminal; an empty one in all processes but the main one."""
    if not processes.is_main:
        return CombinedReport(())
    return TerminalReport() if report is None else report


def _begin_run(task: Task, settings: Settings, processes: Processes, folder: RunFolder, *, resume: bool) -> Settings:
    """Prepare the task, create the run folder or check that it is of the same run, and return the completed settings.

    The main process goes first and reports its choices. The others read what it wrote.
    """
    import torch

    from regard.train import numeric_backends

    task.check()
    on_cpu = processes.device.type == "cpu"
    torch.manual_seed(settings.seed)  # the initial weights are drawn below, the same in all processes
    if processes.is_main:
        if on_cpu and resume:
            numeric_backends.restore_backends(folder.read_setting("arithmetic"))
        used = numeric_backends.current_backends() if on_cpu else {}
        remarks: list[str] = []
        with notes_to(remarks.append):
            precision = _choose_precision(task.layer, settings.precision, processes, folder, resume=resume)
        context = RunContext(replace(settings, precision=precision), processes.device)
        settings = _prepare_task(task, replace(context, folder=folder.path if resume else None), folder)
        for remark in remarks:  # after the task's remarks: the data and the model matter more
            log.info(remark)
        run_settings = _run_settings(task, settings)
        processes.check_on_main(task.model)  # before an earlier run is replaced
        if resume:
            defaults = {**task.recipe_defaults(), **Settings().lasting()}
            folder.check_same(run_settings, defaults, argument_of=task.recipe_argument)
        else:
            folder.begin({**run_settings, "arithmetic": used}, task.files())
    else:
        processes.check_on_main(None)
    processes.wait()
    if not processes.is_main:
        if on_cpu:
            numeric_backends.restore_backends(folder.read_setting("arithmetic"))
        settings = replace(settings, precision=folder.read_setting("precision"))
        settings = _prepare_task(task, RunContext(settings, processes.device, folder.path), folder)
    return settings


def _prepare_task(task: Task, context: RunContext, folder: RunFolder) -> Settings:
    """Prepare the task, and return the settings with its values for those that were None.

    The warm-up of a run that was started is what it was then, also if its bound was raised since.
    """
    from regard.layers import checkpoint_activations
    from regard.train.optimizers import check_optimizer

    task.prepare(context)
    if context.settings.checkpoint_activations:
        checkpoint_activations(task.model)
    check_optimizer(context.settings.optimizer, task.model)
    settings = task.complete(context.settings)
    schedule = settings.schedule.complete()
    if context.settings.schedule.warmup is None:
        if context.folder is not None:
            schedule = replace(schedule, warmup=folder.read_setting("warmup"))
        else:
            schedule = schedule.limit_warmup(_count_steps(task, settings))
    return replace(settings, schedule=schedule)


def _count_steps(task: Task, settings: Settings) -> int | None:
    """The most steps of a run; None if only its time or its scores end it."""
    bounds = [] if settings.steps is None else [settings.steps]
    if settings.epochs is not None:
        bounds.append(settings.epochs * math.ceil(len(task.epoch(0)) / settings.accumulate))
    return min(bounds, default=None)


def _choose_precision(layer: str, requested: str, processes: Processes, folder: RunFolder, *, resume: bool) -> str:
    """Choose the precision. A run resumed with "auto" keeps its precision, since the bits depend on it."""
    from regard.train.numeric_backends import choose_precision, note_if_unsupported

    if not resume or requested != "auto":
        return choose_precision(requested, processes.device, layer=layer)
    precision = str(folder.read_setting("precision"))
    note_if_unsupported(precision, processes.device, layer=layer)
    return precision


def _run_settings(task: Task, settings: Settings) -> dict[str, Any]:
    """All that must be the same on resume. Raises OptionError for reserved names and for values that are not JSON."""
    recipe, lasting = dict(task.recipe()), settings.lasting()
    reserved = recipe.keys() & (lasting.keys() | _RESERVED_NAMES)
    if reserved:
        raise OptionError(
            f"the recipe of {type(task).__name__} uses a reserved name",
            expected=f"none of {', '.join(sorted(lasting.keys() | _RESERVED_NAMES))}",
            got=", ".join(sorted(reserved)),
            do="choose another name",
        )
    try:
        json.dumps(recipe)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"the recipe of {type(task).__name__} cannot be written as JSON",
            expected="numbers, strings, bools, None, and lists and dicts of them",
            got=str(error),
            do="write a path as str(path)",
        ) from error
    return {**recipe, **lasting}


def _resume_message(step: int, ended_by: str | None, settings: Settings) -> str:
    """Say where the run resumes, or why it has already ended."""
    if ended_by is None:
        return f"resuming after step {step:,}"
    if settings.schedule.ends_by(ended_by):
        return f"the run ended after step {step:,}, the end of its schedule: start a new run from its model"
    return f"the run ended after step {step:,}, by `{ended_by}=...`: raise that bound to continue it"


@contextmanager
def _explain_early_end(folder: RunFolder) -> Iterator[None]:
    """Add how to resume to the messages of errors and interrupts."""
    try:
        yield
    except KeyboardInterrupt:
        advice = f"; a checkpoint is in {folder.path}: `resume=True` continues from there"
        raise KeyboardInterrupt("interrupted" + (advice if folder.has_checkpoint else "")) from None
    except OutputExistsError:
        raise
    except OSError as error:
        then = "then `resume=True` continues from the last checkpoint"
        if isinstance(error, OutputError):
            do = f"{error.do}; {then}"
            raise OutputError(error.what, expected=error.expected, got=error.got, do=do) from error
        raise write_error(f"{error.filename or folder.path} cannot be written", error, then=then) from error
