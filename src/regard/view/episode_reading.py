"""All data that the page of episodes shows: what a Gato observed, did, and attended to when it chose each action.

An action is written token by token. Each is predicted at the token before it: the first at the separator behind the
observation, the others at the token of the action before. A row of weights belongs to the predicting token:

    [ tokens of this step's observation, separator, earlier tokens of this action | earlier steps: observed, acted ]

The weights of an earlier step are sums: over the tokens of its observation with the separator, and over the tokens of
its action. Steps that lie behind the reach of the model's attention are left out; together a row adds up to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float32, UInt8

from regard.arguments import explain_arguments
from regard.errors import DataError, ShapeError
from regard.fields import repr_of_fields


@final
@dataclass(frozen=True, eq=False)
class ObservedPart:
    """One part of an observation: the name and the value of each of its tokens, as texts.

    Args:
        key: its name, such as "image".
        names: of each token; () for a text, whose tokens have values only.
        values: of each token.
        grid: the rows and columns on which the tokens lie; None for a list.
        cells: the cell of each token on the grid, row by row; several tokens may lie in one cell.
        picture: what is drawn under the grid; None draws the cells alone.
    """

    __repr__ = repr_of_fields

    key: str
    names: tuple[str, ...]
    values: tuple[str, ...]
    grid: tuple[int, int] | None = None
    cells: tuple[int, ...] = ()
    picture: UInt8[np.ndarray, "height width channels"] | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.values)} | ({len(self.names)} if self.names else set())
        lengths |= {len(self.cells)} if self.grid is not None else set()
        if len(lengths) > 1:
            raise ShapeError(
                f"the tokens of {self.key!r} do not belong together",
                expected="one name, value and cell for each token",
                got=f"{len(self.names)} names, {len(self.values)} values, {len(self.cells)} cells",
                do="name each token, and give its cell if there is a grid",
            )


@final
@dataclass(frozen=True, eq=False)
class ChosenToken:
    """One token of an action: what could be chosen, what was, and the attention by which it was.

    Args:
        name: what it is, such as "torque".
        choice: what was chosen, as a text.
        probability: of the choice.
        alternatives: the choices with their probabilities, in order; of real numbers, intervals of them.
        chosen: the alternative that was chosen, or in which the chosen number lies.
        first: the earliest step that the predicting token could attend to.
        weights: (layers, heads, own tokens + 2 for each step from ``first`` to the one before).
    """

    __repr__ = repr_of_fields

    name: str
    choice: str
    probability: float
    alternatives: tuple[tuple[str, float], ...]
    chosen: int
    first: int
    weights: Float32[np.ndarray, "layers heads sources"]


@final
@dataclass(frozen=True, eq=False)
class ReadStep:
    """One time step: the parts of the observation in the order of their tokens, the action, the reward, a frame.

    ``frame`` is a PNG file of the environment before the action; None for one that is not rendered.
    """

    __repr__ = repr_of_fields

    parts: tuple[ObservedPart, ...]
    action: tuple[ChosenToken, ...]
    reward: float
    frame: bytes | None = None


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class EpisodeReading:
    """One episode of one model, ``last_frame`` is the environment after the last action."""

    __repr__ = repr_of_fields

    environment: str
    seed: int
    steps: tuple[ReadStep, ...]
    last_frame: bytes | None = None

    def __post_init__(self) -> None:
        if not self.steps:
            raise DataError(
                "an episode has no time steps", expected="1 or more", got="none", do="play the episode to its end"
            )

    @property
    def title(self) -> str:
        """The environment, as the title of the page."""
        return self.environment

    @property
    def is_empty(self) -> bool:
        """Whether there is no layer to show."""
        return not (self.steps[0].action and self.steps[0].action[0].weights.size)

    @property
    def total(self) -> float:
        """The return: the sum of all rewards."""
        return float(sum(step.reward for step in self.steps))

    @property
    def frames(self) -> tuple[bytes, ...]:
        """The frames of all steps and the last one; () if the environment was not rendered."""
        rendered = [*(step.frame for step in self.steps), self.last_frame]
        return tuple(frame for frame in rendered if frame is not None)
