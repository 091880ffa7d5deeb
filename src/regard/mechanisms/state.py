"""``State``: the decoding state that a mechanism carries from one step to the next.

Softmax attention carries the keys and values of all earlier tokens (``KeyValueCache``; ``PagedCache`` for sequences of
different lengths) or of the last ones (``WindowCache``), linear attention a sum of constant size. To decode, start with
``Mechanism.empty_state`` and pass the state that each ``Mechanism.step`` returns to the next, whatever its type.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Int
from torch import Tensor

from regard.errors import OptionError, short_repr


class State(ABC):
    """Decoding state after ``length`` tokens. States are immutable: a step returns a new one."""

    length: int
    """Number of tokens in the state; of the longest sequence if they differ."""

    @property
    def next_positions(self) -> tuple[int, ...] | Int[Tensor, " tokens"]:
        """Position of the next token of each sequence, a single number if it is the same for all; or, as a tensor, the
        position of each new token, where several sequences are concatenated.
        """
        return (self.length,)

    def visible_keys(self, new: int) -> int:
        """The number of keys that the next ``new`` queries are shown: of all tokens, or of those that are kept."""
        return self.length + new

    def reserved(self, new: int) -> State | None:
        """Return a state with ``new`` more tokens, whose keys and values are not written yet.

        A kernel writes them, to the last rows of ``key`` and ``value``, before anything reads the state. None if the
        state has no such tensors, or none yet, or holds more than keys and values, and with gradients enabled.
        """
        del new
        return None

    @abstractmethod
    def reordered(self, entries: Int[Tensor, " batch"]) -> State:
        """Select batch entries by index, in that order, as beam search does. Raises OptionError for invalid indices."""


def wrong_state_error(state: object, expected: type[State], mechanism: str) -> OptionError:
    """Build the error for a state of another kind than the mechanism's."""
    return OptionError(
        f"this is not a state of {mechanism}",
        expected=f"a {expected.__name__}: mechanism.empty_state(), or what an earlier step returned",
        got=type(state).__name__ if isinstance(state, State) else short_repr(state),
        do="start with the empty state of the same mechanism or layer",
    )
