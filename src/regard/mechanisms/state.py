"""``State``: what a mechanism carries from one step of decoding to the next.

Softmax attention carries the keys and values of all earlier tokens (``KeyValueCache``; ``PagedCache`` for sequences of
different lengths), linear attention a sum of constant size. Whoever decodes asks the mechanism for an empty one
(``Mechanism.empty_state``) and passes on what each ``Mechanism.step`` returns, without looking at its type.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Int
from torch import Tensor

from regard.errors import OptionError, short_repr


class State(ABC):
    """What is known of ``length`` earlier tokens. A state never changes: a step gives a new one."""

    length: int
    """How many tokens it holds; where sequences differ, of the longest."""

    @property
    def next_positions(self) -> tuple[int, ...]:
        """Where the next token of each sequence stands; one number where that is the same for all."""
        return (self.length,)

    @abstractmethod
    def reordered(self, entries: Int[Tensor, " batch"]) -> State:
        """A state of the given batch entries, in that order: what beam search keeps. OptionError for others."""


def wrong_state_error(state: object, wanted: type[State], mechanism: str) -> OptionError:
    """The error for a state that is not of this mechanism's kind."""
    return OptionError(
        f"this is no state of {mechanism}",
        expected=f"a {wanted.__name__}: mechanism.empty_state(), or what an earlier step returned",
        got=type(state).__name__ if isinstance(state, State) else short_repr(state),
        do="start with the empty state of the mechanism or layer that takes the steps",
    )
