"""Calls of a model, and pairs of outputs that should be equal: every property is a list of such pairs.

Step        arguments of one call of the model
Call        one step, or several that pass on a cache; its outputs are those of the steps, concatenated
Span        some positions in one row of the outputs of a call
Comparison  two spans whose outputs a property promises to be equal, and what differs between their inputs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, final


@final
@dataclass(frozen=True, eq=False)
class Step:
    """Arguments of one call of the model, whose outputs have ``length`` positions.

    ``change_cache`` makes the cache that the step gets from the one that the step before returned.
    """

    arguments: Mapping[str, Any]
    length: int
    change_cache: Callable[[Any], Any] | None = None


@final
@dataclass(frozen=True, eq=False)
class Call:
    """Steps of a model over ``batch`` rows.

    training   whether it runs in training mode
    seed       of the random numbers that the model itself draws
    is_random  whether a model that draws in eval mode does so here; else its draws are their means
    around     makes a context in which it runs, such as a hook or another implementation; None for none
    """

    steps: tuple[Step, ...]
    batch: int
    training: bool = False
    seed: int = 0
    is_random: bool = False
    around: Callable[[], AbstractContextManager[Any]] | None = None

    @property
    def length(self) -> int:
        """Number of positions of all steps."""
        return sum(step.length for step in self.steps)


@final
@dataclass(frozen=True, eq=False)
class Span:
    """Positions of one row of the outputs of a call, from ``start`` on.

    ``read`` is the length of another sequence that the call reads, and the start of the tokens in it that are visible.
    """

    call: Call
    row: int = 0
    start: int = 0
    read: tuple[int, int] = (0, 0)


@final
@dataclass(frozen=True, eq=False)
class Comparison:
    """Two spans of ``count`` positions that should be equal.

    change    what differs between their inputs, in words
    source    the position of the input that was changed, counted in ``base``; None if there is not a single one
    """

    base: Span
    other: Span
    count: int
    change: str
    source: int | None = None
    read: int = 0
    """Number of visible tokens of the other sequence that is read."""
