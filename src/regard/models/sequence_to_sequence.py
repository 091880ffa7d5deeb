"""What all models share that write one sequence while they look at another.

    logits_t = model(y_1 .. y_t-1, memory of x)           the distribution of the token y_t

Training gives all targets at once; decoding goes a token at a time, with a state that is passed in and returned. So the
search for the best translation knows no model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.masks import Mask


@final
@dataclass(frozen=True, eq=False)
class SequenceOutput:
    """What such a model gives for a whole target.

    hidden  (batch, target length, width)         before the vocabulary
    logits  (batch, target length, vocabulary)    of the token that follows each
    """

    hidden: Float[Tensor, "batch length width"]
    logits: Float[Tensor, "batch length vocabulary"]

    def __repr__(self) -> str:
        return f"SequenceOutput(hidden {tuple(self.hidden.shape)}, logits {tuple(self.logits.shape)})"


class State(Protocol):
    """What a model remembers between two steps of decoding, one row for each sequence that is being written."""

    def reordered(self, entries: Int[Tensor, " rows"]) -> State:
        """The state of the given rows, in that order; a row may come more than once."""
        ...


class SequenceToSequence(nn.Module, ABC):
    """A model of (source ids, target ids), with a state for decoding.

    ``vocabularies`` are the sizes of source and target; ``start_id`` begins a target, ``end_id`` ends it.
    """

    vocabularies: tuple[int, int]
    start_id: int
    end_id: int

    @abstractmethod
    def forward(self, source: Tensor, target: Tensor, *, mask: Mask | None = None) -> SequenceOutput:
        """Logits for every place of a target that is known.

        Args:
            source: ids (batch, source length).
            target: ids (batch, target length), the first of them ``start_id``.
            mask: who may attend in the source: for padded ids ``masks.padding(lengths)``.

        Raises ShapeError, DtypeError or OptionError for ids that do not fit.
        """

    @abstractmethod
    def start(self, source: Tensor, *, lengths: Tensor | None = None) -> Any:
        """The state after reading ``source`` (batch, source length), before the first token is written.

        ``lengths`` (batch,) are those of the sources, where some are padded on the right.
        """

    @abstractmethod
    def step(self, tokens: Tensor, state: Any) -> tuple[Float[Tensor, "rows vocabulary"], Any]:
        """The logits of what follows ``tokens`` (rows), and the next state. The first tokens are ``start_id``."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device
