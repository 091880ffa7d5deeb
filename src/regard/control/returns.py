"""Returns of episodes: their statistics, and how much of an expert's skill they are.

    mean       = sum_i R_i / n
    deviation  = sqrt(sum_i (R_i - mean)^2 / (n - 1)), the standard deviation of single episodes
    share      = (mean - random) / (expert - random)         1 as good as the expert, 0 as bad as random actions

Reed et al. 2022, "A generalist agent", section 4.1 and figure 5: scores as a percentage of the expert's, where 0 % is a
random agent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from regard.arguments import explain_arguments
from regard.control import Episode
from regard.errors import DataError, check_number


@final
@explain_arguments
@dataclass(frozen=True)
class Returns:
    """The returns of an agent's episodes. Raises DataError without episodes."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise DataError("there are no returns", expected="1 or more", got="none", do="play an episode")

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> Returns:
        """The returns of episodes, each the sum of its rewards."""
        return cls(tuple(float(sum(episode.rewards)) for episode in episodes))

    @property
    def mean(self) -> float:
        """The mean of all episodes."""
        return math.fsum(self.values) / len(self.values)

    @property
    def deviation(self) -> float:
        """The standard deviation of single episodes; 0 of one episode."""
        if len(self.values) == 1:
            return 0.0
        return math.sqrt(math.fsum((value - self.mean) ** 2 for value in self.values) / (len(self.values) - 1))


@explain_arguments
def expert_share(mean: float, *, expert: float, random: float) -> float | None:
    """How much of the expert's skill a mean return is; None if the expert is not better than random actions."""
    for name, value in (("mean", mean), ("expert", expert), ("random", random)):
        check_number(name, value)
    return (mean - random) / (expert - random) if expert > random else None
