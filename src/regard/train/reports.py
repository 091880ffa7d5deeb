"""Reports of a run: metrics as JSON lines and for TensorBoard, samples as text, a progress bar on a terminal.

The message at the end of a run that learned nothing: why, and how to continue it.

A model has learned something if its score is better than the score of a model that ignores its input
(``Task.baseline``), such as one that always answers the most frequent label.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from regard.language import language_in_use, translate, translate_label, translate_message
from regard.marked_arguments import without_marks
from regard.train.progress import Progress
from regard.train.run_folder import RunFolder
from regard.train.settings import Settings
from regard.train.task import Task

_MINUTES = 30
"""Minutes that are advised for a run that had fewer: small models learn something in that time."""
_FACTOR = 10
"""How much longer a run is advised that was bounded by its steps or epochs."""


def why_nothing_learned(task: Task, progress: Progress) -> str | None:
    """Return why the run learned nothing, one clause; None if it learned something, or if that is unknown."""
    baseline = None if progress.kept is None else task.baseline()
    if baseline is None or progress.kept is None or progress.kept > baseline:
        return None
    return f"a model that ignores its input has {task.describe(baseline)}"


def advise_longer_run(settings: Settings, ended_by: str) -> str:
    """Say how to train for longer: by resuming, or from the start if the schedule of the learning rate has ended."""
    bound = f"{ended_by}={_larger_bound(settings, ended_by)}"
    if settings.schedule.ends_by(ended_by):
        return f"train again for longer: `overwrite=True, {bound}`"
    return f"continue with `resume=True, {bound}`"


def _larger_bound(settings: Settings, name: str) -> str:
    """A larger value of the bound that ended the run."""
    value = getattr(settings, name)
    return f"{max(_MINUTES, 2 * value):g}" if name == "minutes" else str(_FACTOR * value)


_SPEED = "_per_second"
"""End of the name of a speed among the metrics; its beginning is the task's unit."""


class Report(ABC):
    """Receives the metrics, samples and messages of a run, in the main process. Subclass it to log them elsewhere."""

    @abstractmethod
    def numbers(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Receive the metrics of a step by name; ``kind`` is "train", "validation" or "attention"."""

    @abstractmethod
    def samples(self, step: int, lines: Sequence[str]) -> None:
        """Receive ``Validation.samples`` at ``step``: lines that show the model's output for some validation data."""

    @abstractmethod
    def say(self, message: str) -> None:
        """Receive a message for the user, one sentence."""

    @abstractmethod
    def close(self) -> None:
        """Release files and the terminal; called once, at the end of the run."""


@final
class FileReport(Report):
    """Writes to the run's folder: metrics.jsonl, samples.txt, and tensorboard/ if that package is installed."""

    def __init__(self, folder: RunFolder, *, after: int = 0) -> None:
        self._folder = folder
        folder.remove_reports_after(after)
        self._metrics = folder.metrics.open("a", encoding="utf-8", buffering=1)
        self._board = _open_tensorboard(folder, after)

    def numbers(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Write one JSON line, and one TensorBoard scalar for each value."""
        numbers = {name: value if math.isfinite(value) else None for name, value in values.items()}  # JSON has no NaN
        line = {"step": step, "kind": kind, "time": round(time.time(), 3), **numbers}
        self._metrics.write(json.dumps(line) + "\n")
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def samples(self, step: int, lines: Sequence[str]) -> None:
        """Append the samples. Text after a line break is indented, so that it cannot look like the next step."""
        shown = "".join(line.replace("\n", "\n  ") + "\n" for line in lines)
        with self._folder.samples.open("a", encoding="utf-8") as file:
            file.write(f"step {step}\n{shown}\n")

    def say(self, message: str) -> None:
        """Ignore the message; messages are not written to files."""

    def close(self) -> None:
        """Flush and close metrics.jsonl and the TensorBoard writer."""
        self._metrics.close()
        if self._board is not None:
            self._board.close()


@final
class TerminalReport(Report):
    """A progress bar on standard error: loss, speed, time left. Without a terminal, a line per minute.

    ``spell`` writes the marked arguments of messages for the reader: as Python arguments by default.
    """

    def __init__(self, spell: Callable[[str], str] = without_marks) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        columns = (
            TextColumn(spell("step") + " {task.fields[step]:,}"),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
        )
        self._progress_bar = Progress(
            *columns, TimeElapsedColumn(), console=self._console, transient=True, disable=not self._console.is_terminal
        )
        self._task = self._progress_bar.add_task("", total=1.0, step=0)
        self._spell = spell
        self._last_line = time.monotonic()

    def numbers(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Update the progress bar, or print a line with the metrics of a validation."""
        if kind == "validation":
            self.say(_format_validation(step, values))
        if kind != "train":
            return
        left = values.get("seconds_left")
        speeds = {name.removesuffix(_SPEED): value for name, value in values.items() if name.endswith(_SPEED)}
        parts = [translate("loss {loss}", loss=f"{values['loss']:.3f}")]
        parts += [
            translate("{count}/s", count=translate_message(f"{value:,.0f} {unit}")) for unit, value in speeds.items()
        ]
        description = " · ".join(parts if left is None else [*parts, self._spell(f"{_format_duration(left)} left")])
        self._progress_bar.start()  # here, since only one of several processes gets metrics
        self._progress_bar.update(self._task, completed=values.get("done", 0.0), description=description, step=step)
        if not self._console.is_terminal and time.monotonic() - self._last_line > 60:
            self._last_line = time.monotonic()
            self.say(translate("step {step}: {metrics}", step=f"{step:,}", metrics=description))

    def samples(self, step: int, lines: Sequence[str]) -> None:
        """Print the lines literally; markup in a user's text is not interpreted."""
        from regard.escape_text import escape_text

        for line in lines:
            self._console.print(
                "  " + escape_text(_translate_sample(line)), style="dim" if sys.stderr.isatty() else None
            )

    def say(self, message: str) -> None:
        """Print a line above the progress bar."""
        from regard.escape_text import escape_text

        self._console.print(self._spell(escape_text(message)))

    def close(self) -> None:
        """Remove the progress bar from the terminal."""
        self._progress_bar.stop()


@final
class CombinedReport(Report):
    """Passes everything on to each of several reports."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self._reports = tuple(reports)

    def numbers(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Pass the metrics to each report."""
        for report in self._reports:
            report.numbers(step, kind, values)

    def samples(self, step: int, lines: Sequence[str]) -> None:
        """Pass the samples to each report."""
        for report in self._reports:
            report.samples(step, lines)

    def say(self, message: str) -> None:
        """Pass the message to each report."""
        for report in self._reports:
            report.say(message)

    def close(self) -> None:
        """Close each of the reports."""
        for report in self._reports:
            report.close()


def _open_tensorboard(folder: RunFolder, after: int) -> Any:
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder.tensorboard), purge_step=after + 1)


def _format_validation(step: int, values: Mapping[str, float]) -> str:
    """Format the metrics of a validation; the metric "averaged" is the number of checkpoints that were averaged."""
    metrics = dict(values)
    count = metrics.pop("averaged", None)
    listed = [f"{_translate_metric(name)} {_format_number(value)}" for name, value in metrics.items()]
    shown = {"step": f"{step:,}", "count": f"{count or 0:.0f}", "metrics": translate(", ").join(listed)}
    if count is None:
        return translate("step {step}: {metrics}", **shown)
    return translate("average of {count} checkpoints: {metrics}", **shown)


def _translate_metric(name: str) -> str:
    """The name of a metric in the language in use: the key in files, with the source before it if it is of one."""
    source, dot, metric = name.rpartition(".")
    return source + dot + translate_message(metric)


SAMPLE_LABELS = (
    *("text", "picture", "sound", "source", "reference", "translation", "label", "prediction", "model"),
    *("found", "continued", "masked", "filled in"),
)
"""The words before the texts of samples."""


def _translate_sample(line: str) -> str:
    """A line of a sample with its label in the language in use. The text is the user's, and stays."""
    label, colon, text = line.partition(":")
    if language_in_use() == "en" or not colon or line.startswith(" "):
        return line
    if label not in SAMPLE_LABELS:
        return translate_message(line)
    return translate_label(label, text.strip())


def _format_number(value: float) -> str:
    return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
