"""The message at the end of a run that learned nothing: why, and how to continue it.

A model has learned something if its score is better than that of a model that ignores its input (``Task.baseline``),
such as one that always answers the most frequent label.
"""

from __future__ import annotations

from regard.train.progress import Progress
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
    option = f"--{bound.replace('=', ' ')}"
    if settings.schedule.ends_by(ended_by):
        return f"train again for longer: overwrite=True, {bound} (--overwrite {option})"
    return f"continue with resume=True, {bound} (--resume {option})"


def _larger_bound(settings: Settings, name: str) -> str:
    """A larger value of the bound that ended the run."""
    value = getattr(settings, name)
    return f"{max(_MINUTES, 2 * value):g}" if name == "minutes" else str(_FACTOR * value)
