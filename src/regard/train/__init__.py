"""Training: ``run`` trains any ``Task`` as ``Settings`` say, and nothing here knows which."""

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
