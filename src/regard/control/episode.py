"""An episode, observation and action in turns, as one sequence of tokens.

    s = observation_1 | action_1  observation_2 | action_2 .. observation_T | action_T

Reed et al. 2022, "A generalist agent", section 2.1: time steps in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from regard.arguments import explain_arguments
from regard.control.step_tokens import StepTokenizer
from regard.control.token_sequence import TokenSequence
from regard.errors import DataError


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class Episode:
    """The observations, actions and rewards of an agent: three lists of one length."""

    observations: Sequence[Mapping[str, Any]]
    actions: Sequence[Any]
    rewards: Sequence[float]

    def __post_init__(self) -> None:
        counts = {len(self.observations), len(self.actions), len(self.rewards)}
        if len(counts) > 1 or counts == {0}:
            raise DataError(
                "an episode has one observation, action and reward for each time step",
                expected="three lists of one length, 1 or more",
                got=f"{len(self.observations)}, {len(self.actions)} and {len(self.rewards)}",
                do="leave out the observation after the last action",
            )

    def __len__(self) -> int:
        return len(self.actions)


@explain_arguments
def tokenize_episode(episode: Episode, tokenizer: StepTokenizer) -> TokenSequence:
    """The tokens of all time steps, in their order. Raises DataError for steps that do not fit their spaces."""
    steps = []
    for observation, action in zip(episode.observations, episode.actions, strict=True):
        steps += [tokenizer.tokenize_observation(observation), tokenizer.tokenize_action(action)]
    return TokenSequence.joined(steps)
