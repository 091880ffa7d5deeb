"""Decisions by the clock and the signals of the main process, shared with every process.

To share a decision is a collective operation, for which each process waits for its device. So several processes share
decisions at reports, where they wait for their devices anyway, and in between only if steps are long: a decision is
due about ``_MAX_SECONDS`` after the last one, or at the next step, whichever comes later. All processes compute the
same step from the shared times. A single process decides after every step.
"""

from __future__ import annotations

from typing import NamedTuple, final

from regard.train.distributed import Processes

_MAX_SECONDS = 1.0
"""How long a signal may wait while steps are shorter."""


@final
class Decision(NamedTuple):
    """Whether to stop (a signal came), whether to write a checkpoint, and the seconds of training so far."""

    stop: bool
    save: bool
    seconds: float


@final
class Decisions:
    """The decisions of a run; ``every`` is the number of steps between reports, ``step`` and ``seconds`` its start."""

    def __init__(self, processes: Processes, *, every: int, step: int, seconds: float) -> None:
        self._processes, self._every = processes, every
        self._last_step, self._next_step = step, step
        self.seconds = seconds
        """The seconds of training at the last decision, the same in every process."""

    def is_due(self, step: int) -> bool:
        """Whether all processes decide after this step."""
        return self._processes.shard.of == 1 or step >= self._next_step

    def share(self, step: int, opinion: Decision) -> Decision:
        """Return the main process's ``opinion`` after ``step`` in every process."""
        stop, save, seconds = self._processes.broadcast_all(*map(float, opinion))
        self._next_step = step + self._count_steps(step - self._last_step, seconds - self.seconds)
        self._last_step, self.seconds = step, seconds
        return Decision(bool(stop), bool(save), seconds)

    def _count_steps(self, steps: int, seconds: float) -> int:
        """Return how many steps to take before the next decision, after ``steps`` that took ``seconds``."""
        to_report = self._every - (self._last_step + steps) % self._every
        if steps == 0:  # at the start, where no step was measured, and again after a checkpoint was written
            return 1
        return max(1, min(to_report, int(_MAX_SECONDS * steps / max(seconds, 1e-9))))
