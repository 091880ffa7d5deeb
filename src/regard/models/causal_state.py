"""The output of a causal language model, and its state between two steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard import masks
from regard.arguments import explain_arguments
from regard.fields import repr_of_fields, repr_of_shapes
from regard.layers import DecoderCache
from regard.masks import Mask
from regard.mechanisms.key_value_cache import take_rows
from regard.mechanisms.state import StateBytes
from regard.models.base import Decoder


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class CausalOutput:
    """The output of a causal language model.

    hidden  (batch, length, width)           hidden states after the last norm
    logits  (batch, length, vocabulary)      of the token after each position
    layers  layers + 1 of hidden's shape     the embedding, then each layer's output, the last one normalised and so
                                             equal to ``hidden``; None without ``keep_layers``
    """

    __repr__ = repr_of_shapes

    hidden: Float[Tensor, "batch length width"]
    logits: Float[Tensor, "batch length vocabulary"]
    layers: tuple[Float[Tensor, "batch length width"], ...] | None = None


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class CausalState:
    """The state of a causal language model between two steps.

    ``caches`` hold the keys and values of ``length`` tokens in each layer. ``padding`` (rows,) counts the padded tokens
    at the left of each row; None if there are none. ``model`` is the one that computed them; None is unknown. ``ids``
    (rows, length) are the tokens that a model reads again when its rotation becomes another one; None: it never does.
    """

    __repr__ = repr_of_fields

    caches: tuple[DecoderCache, ...]
    rows: int
    padding: Int[Tensor, " rows"] | None = None
    model: Decoder | None = field(default=None, repr=False)
    ids: Int[Tensor, "rows length"] | None = field(default=None, repr=False)

    @property
    def length(self) -> int:
        """The number of tokens in the state, padding included."""
        return self.caches[0].length

    @property
    def bytes(self) -> StateBytes:
        """The memory of one text in all layers."""
        return StateBytes.sum(cache.bytes for cache in self.caches)

    def reordered(self, entries: Int[Tensor, " rows"]) -> CausalState:
        """Select the rows ``entries`` of the state, in that order; a row may be selected more than once."""
        padding = None if self.padding is None else take_rows(self.padding, entries)
        ids = None if self.ids is None else take_rows(self.ids, entries)
        caches = tuple(cache.reordered(entries) for cache in self.caches)
        return CausalState(caches, len(entries), padding, self.model, ids)

    def next_positions(self, new: int) -> Int[Tensor, "#rows new"]:
        """The positions of the next ``new`` tokens in their texts; 0 for padding."""
        slots = torch.arange(self.length, self.length + new)
        if self.padding is None:
            return slots[None]
        return (slots.to(self.padding) - self.padding[:, None]).clamp(min=0)

    def next_masks(self, new: int) -> list[Mask | None]:
        """The mask of the padding for the next ``new`` tokens in each layer; None where a cache holds no padding."""
        if self.padding is None:
            return [None] * len(self.caches)
        length = self.length + new
        unpadded = length - int(self.padding.max()) if self.rows else 0
        by_keys: dict[int, Mask | None] = {}
        for keys in {cache.visible_keys(new) for cache in self.caches}:
            own = (length - self.padding).clamp(min=0, max=keys)
            by_keys[keys] = None if keys <= unpadded else masks.padding(own, side="left")
        return [by_keys[cache.visible_keys(new)] for cache in self.caches]
