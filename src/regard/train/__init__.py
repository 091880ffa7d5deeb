"""Training: ``run`` trains any ``Task`` with the given ``Settings``. Nothing in this package depends on a task."""

from regard.train.reports import Report
from regard.train.schedule import Schedule
from regard.train.settings import Settings
from regard.train.task import RankShard, RunContext, Task, Validation
from regard.train.training import RunResult, run

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
