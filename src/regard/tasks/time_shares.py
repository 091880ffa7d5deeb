"""Shares of the time since the last report: what training spends waiting for data, or changing it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import final


@final
class TimeShares:
    """The shares of the time since the last report that each of ``names`` took."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._before = tuple(names), (0.0,) * len(names)
        self._since: float | None = None

    def begin(self) -> None:
        """Begin with the first step: what comes before is no training."""
        self._since = time.monotonic() if self._since is None else self._since

    def shares(self, seconds: Sequence[float]) -> dict[str, float]:
        """The shares since the last call, by name; ``seconds`` are those of each, counted since the beginning."""
        now, before = time.monotonic(), self._before
        passed = max(now - (self._since or now), 1e-9)
        self._since, self._before = now, tuple(seconds)
        return {
            name: min(1.0, (one - earlier) / passed)
            for name, one, earlier in zip(self._names, seconds, before, strict=True)
        }
