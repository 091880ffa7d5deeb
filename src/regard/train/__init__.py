"""Training: ``run`` trains any ``Task`` with the given ``Settings``. Nothing in this package depends on a task."""

from typing import TYPE_CHECKING

from regard.import_when_used import import_when_used
from regard.train.schedule import Schedule
from regard.train.settings import Settings

if TYPE_CHECKING:
    from regard.train.reports import Report
    from regard.train.task import RankShard, RunContext, Task, Validation
    from regard.train.training import RunResult, run
else:
    __getattr__ = import_when_used(
        __name__,
        reports=("Report",),
        task=("RankShard", "RunContext", "Task", "Validation"),
        training=("RunResult", "run"),
    )

__all__ = [
    "RankShard",
    "Report",
    "RunContext",
    "RunResult",
    "Schedule",
    "Settings",
    "Task",
    "Validation",
    "run",
]
