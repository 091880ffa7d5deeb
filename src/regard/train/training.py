"""``run``: a whole training run of any task, from an empty folder or from where an earlier process was cut off.

    OUT        the best model so far, as the task writes it
    OUT.run    checkpoints, metrics and what the run was begun with: ``run_folder``

A run decides once what its bits depend on: the precision, the numeric backends, the settings that were left open, and
what the task makes of its data. All of that is in run.json, is taken again when the run is resumed, and is compared
with what the caller asks for then. Of several processes the main one decides, and the others read run.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from regard.errors import OptionError, OutputError, OutputExistsError, check_flag, check_kind, short_repr, write_error
from regard.models.checkpoint_writer import check_replaceable, to_folder_path
from regard.train.allocator import keep_freed_memory, limit_kernel_cache
from regard.train.progress import Progress
from regard.train.reports import CombinedReport, FileReport, Report, TerminalReport
from regard.train.run_folder import RunFolder
from regard.train.settings import Settings
from regard.train.task import RunContext, Task

if TYPE_CHECKING:
    from regard.train.distributed import Processes

_OLD_RUN_DEFAULTS = {"floor": 0.0}
"""What runs of earlier versions were begun with, although their run.json does not say so."""
_RESERVED_NAMES = {"arithmetic", "files"}
"""Names of run.json that are neither the task's nor the settings'."""


@final
@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    ``out`` is the folder of the model; ``score`` is its validation score, None if no model was written. ``steps``,
    ``tokens`` and ``seconds`` are those of the run and of those it resumed. ``ended_by`` is the setting whose bound was
    met: "patience", "steps", "epochs" or "minutes". ``is_main`` is true in the process that wrote and reported.
    """

    out: Path
    score: float | None
    steps: int
    tokens: int
    seconds: float
    ended_by: str
    is_main: bool


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
    """Train ``task`` as ``settings`` say, and leave the best model in the folder ``out``.

    Beside it stands ``out``.run, with checkpoints and metrics. Whatever ends the process, the same call with
    ``resume=True`` goes on from the last checkpoint, to the same bits as a run that was never cut off. Under
    ``accelerate launch`` or ``torchrun`` every process makes the same call.

    Args:
        task: what is learned.
        settings: how: schedule, precision, bounds.
        out: a new folder for the model.
        resume: go on with the run in ``out``.run, also one that ended, with more of what ended it.
        overwrite: replace a model and a run that are there. Not together with ``resume``.
        device: "cpu", or the kind of accelerator of this machine; None takes the accelerator where there is one.
        report: hears numbers, samples and sentences in the main process, and is closed at the end; None shows them on
            standard error.

    Raises OutputExistsError where something is in the way, another process trains there, or a run is resumed that was
    begun with another recipe or other settings; OptionError for arguments that make no sense, and nothing to resume;
    RefusedError for a precision that the device does not have; DataError for data that cannot be used, and a loss that
    becomes NaN or infinite; OutputError where the disk is full; MissingPackageError without the extra ``train``;
    KeyboardInterrupt, after a checkpoint, on SIGINT and SIGTERM.
    """
    _check_arguments(task, settings, resume=resume, overwrite=overwrite, report=report)
    # Before anything is computed, and what they load with it:
    keep_freed_memory()
    limit_kernel_cache()
    from regard.train.distributed import Processes
    from regard.train.loop import Trainer

    out = _expand_home(to_folder_path(out))
    folder = RunFolder(_run_folder_path(out))
    try:
        _check_output(out, folder, resume=resume, overwrite=overwrite)
    except OutputError:
        raise
    except OSError as error:  # such as a name that is too long
        raise write_error(f"{short_repr(str(out))} cannot be written", error) from error
    processes = Processes(device=device)
    is_main = processes.is_main
    report = _choose_report(processes, report)
    with closing(report), folder.lock(report.say) if is_main else nullcontext():
        settings = _begin_run(task, settings, processes, folder, report, resume=resume)
        after = folder.load_last() if resume else None
        files = FileReport(folder, after=0 if after is None else after.progress.step) if is_main else CombinedReport(())
        with _explain_early_end(folder), closing(files):
            both = CombinedReport((report, files))
            trainer = Trainer(task, settings, processes=processes, folder=folder, out=out, report=both, after=after)
            if after is not None:
                report.say(_resume_message(after.progress.step, trainer.ended_by(), settings))
            progress = trainer.run()
        ended_by = trainer.ended_by()
        if progress.kept is not None:
            report.say(f"{out}: {task.describe(progress.kept)}, after {progress.step:,} steps")
    return _result(out, progress, ended_by, is_main=is_main)


def _result(out: Path, progress: Progress, ended_by: str | None, *, is_main: bool) -> RunResult:
    assert ended_by is not None  # an interruption raises
    return RunResult(
        out=out,
        score=progress.kept,
        steps=progress.step,
        tokens=progress.tokens,
        seconds=progress.seconds,
        ended_by=ended_by,
        is_main=is_main,
    )


def _check_arguments(task: Task, settings: Settings, *, resume: bool, overwrite: bool, report: Report | None) -> None:
    """Raise OptionError for arguments of other kinds, and for a run that is to be resumed and replaced."""
    check_kind("task", task, Task, do="an instance of a subclass of regard.train.Task")
    check_kind("settings", settings, Settings, do="regard.train.Settings(steps=...)")
    check_flag("resume", resume)
    check_flag("overwrite", overwrite)
    if report is not None:
        check_kind("report", report, Report, do="an instance of a subclass of regard.train.Report")
    if resume and overwrite:
        raise OptionError(
            "--resume and --overwrite contradict each other", expected="one of them", got="both", do="leave out one"
        )


def _expand_home(out: Path) -> Path:
    """A shell leaves --out=~/model as it is. Raises OptionError for a home that does not exist."""
    try:
        return out.expanduser()
    except RuntimeError as error:
        raise OptionError("--out is in no home", expected="a new folder", got=str(out), do=str(error)) from None


def _run_folder_path(out: Path) -> Path:
    """The folder of the run that writes ``out``. Raises OptionError where nothing can stand beside it."""
    if out.name in ("", ".."):
        raise OptionError("--out is no folder of its own", expected="a new folder", got=str(out), do="such as model/")
    return out.with_name(f"{out.name}.run")


def _check_output(out: Path, folder: RunFolder, *, resume: bool, overwrite: bool) -> None:
    """Raise OutputExistsError where something is in the way, OptionError where there is no run to resume."""
    if resume and not folder.has_run:
        raise OptionError(
            f"there is no run in {folder.path} to go on with",
            expected="the folder of a run that was begun",
            got="none" if not folder.path.exists() else "a folder without run.json",
            do="check --out, or leave out --resume to begin one",
        )
    if folder.has_run and not (resume or overwrite):
        raise OutputExistsError(
            f"{folder.path} holds a run already",
            expected="--resume or --overwrite",
            got="neither",
            do="add --resume to go on with it, or --overwrite to begin anew",
        )
    check_replaceable(out, overwrite=resume or overwrite, keep_others=resume)
    out.absolute().parent.mkdir(parents=True, exist_ok=True)


def _choose_report(processes: Processes, report: Report | None) -> Report:
    """The caller's report, or the terminal; in processes other than the main one nobody's."""
    if not processes.is_main:
        return CombinedReport(())
    return TerminalReport() if report is None else report


def _begin_run(
    task: Task, settings: Settings, processes: Processes, folder: RunFolder, report: Report, *, resume: bool
) -> Settings:
    """Prepare the task, begin the folder or check that it is of the same run; the settings, completed.

    The main process is the first, and says what it chooses. The others take what it wrote.
    """
    import torch

    from regard.train import numeric_backends

    on_cpu = processes.device.type == "cpu"
    torch.manual_seed(settings.seed)  # the first weights are drawn here, the same in all processes
    if processes.is_main:
        if on_cpu and resume:
            numeric_backends.restore_backends(folder.read_setting("arithmetic"), report.say)
        used = numeric_backends.current_backends() if on_cpu else {}
        precision = _choose_precision(task.layer, settings.precision, processes, folder, report, resume=resume)
        context = RunContext(replace(settings, precision=precision), report.say, processes.device)
        settings = _prepare_task(task, replace(context, folder=folder.path if resume else None))
        asked = _run_settings(task, settings)
        if resume:
            folder.check_same(asked, _OLD_RUN_DEFAULTS)
        else:
            folder.begin({**asked, "arithmetic": used}, task.files())
    processes.wait()
    if not processes.is_main:
        if on_cpu:
            numeric_backends.restore_backends(folder.read_setting("arithmetic"), report.say)
        settings = replace(settings, precision=folder.read_setting("precision"))
        settings = _prepare_task(task, RunContext(settings, report.say, processes.device, folder.path))
    return settings


def _prepare_task(task: Task, context: RunContext) -> Settings:
    """Prepare the task; the settings, as it completes them."""
    task.prepare(context)
    settings = task.complete(context.settings)
    return replace(settings, schedule=settings.schedule.complete())


def _choose_precision(
    layer: str, asked: str, processes: Processes, folder: RunFolder, report: Report, *, resume: bool
) -> str:
    """What to multiply in; a run that is resumed with "auto" keeps its own, since the bits depend on it."""
    from regard.train.precision import choose_precision, say_if_unsupported

    if not resume or asked != "auto":
        return choose_precision(asked, processes.device, report.say, layer=layer)
    kept = str(folder.read_setting("precision"))
    say_if_unsupported(kept, processes.device, report.say, layer=layer)
    return kept


def _run_settings(task: Task, settings: Settings) -> dict[str, Any]:
    """All that a resumed run must have in common with this one. Raises OptionError for a name that two of them use."""
    recipe, lasting = dict(task.recipe()), settings.lasting()
    both = recipe.keys() & (lasting.keys() | _RESERVED_NAMES)
    if both:
        raise OptionError(
            f"the recipe of {type(task).__name__} uses a name of the run's own",
            expected=f"none of {', '.join(sorted(lasting.keys() | _RESERVED_NAMES))}",
            got=", ".join(sorted(both)),
            do="give it another name",
        )
    try:
        json.dumps(recipe)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"the recipe of {type(task).__name__} cannot be written as JSON",
            expected="numbers, strings, truth values, None, and lists and dicts of them",
            got=str(error),
            do="put str(path) in place of a path",
        ) from error
    return {**recipe, **lasting}


def _resume_message(step: int, ended_by: str | None, settings: Settings) -> str:
    """Where a run goes on, or why there is nothing left of it."""
    if ended_by is None:
        return f"going on after step {step:,}"
    if ended_by == "steps" and settings.schedule.steps is not None:
        return f"the run ended after step {step:,}, where its schedule does: begin another from its model (--model)"
    return f"the run ended after step {step:,}, by --{ended_by}: give more of it to go on from there"


@contextmanager
def _explain_early_end(folder: RunFolder) -> Iterator[None]:
    """Whatever ends the run early says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        kept = f"; a checkpoint is in {folder.path}: the same command with --resume goes on from there"
        raise KeyboardInterrupt("interrupted" + (kept if folder.has_checkpoint else "")) from None
    except OutputExistsError:
        raise
    except OSError as error:
        then = "then the same command with --resume goes on from the last checkpoint"
        if isinstance(error, OutputError):
            do = f"{error.do}; {then}"
            raise OutputError(error.what, expected=error.expected, got=error.got, do=do) from error
        raise write_error(f"{error.filename or folder.path} cannot be written", error, then=then) from error
