"""``State``: the decoding state that a mechanism carries from one step to the next.

Softmax attention carries the keys and values of all earlier tokens (``KeyValueCache``; ``PagedCache`` for sequences of
different lengths) or of the last ones (``WindowCache``), linear attention a sum of constant size. To decode, start with
``Mechanism.empty_state`` and pass the state that each ``Mechanism.step`` returns to the next, whatever its type.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from jaxtyping import Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import OptionError, short_repr


@final
@explain_arguments
@dataclass(frozen=True)
class StateBytes:
    """The memory of a decoding state for one sequence, in bytes.

    Args:
        per_token: what each further token takes, such as its keys and values; 0 in a state of constant size.
        constant: what does not depend on the length, such as a sum over tokens, or a window of keys once it is full.
    """

    per_token: int = 0
    constant: int = 0

    @classmethod
    def sum(cls, parts: Iterable[StateBytes]) -> StateBytes:
        """Return the memory of several states together."""
        listed = list(parts)
        return cls(sum(part.per_token for part in listed), sum(part.constant for part in listed))

    @classmethod
    def of_sums(cls, *tensors: Tensor | None) -> StateBytes:
        """Return the memory of tensors (batch, ..) whose sizes are independent of the length; None takes none."""
        return cls(constant=sum(tensor[:1].nbytes for tensor in tensors if tensor is not None))


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

    @property
    @abstractmethod
    def bytes(self) -> StateBytes:
        """The memory that the state takes for one sequence, whatever is allocated ahead; none before the first token,
        which decides the sizes.
        """

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
