"""Mixture of block attention, MoBA: causal attention to the own block and to the blocks with the best mean keys.

    o_i = softmax(scale * q_i . k_j) v_j      over j <= i in the own block of query i, and in the ``chosen_blocks`` - 1
                                              earlier blocks with the largest q_i . (mean key of the block)

Lu et al. 2025, "MoBA: mixture of block attention for long-context LLMs", equations 2 to 8; scale = 1/sqrt(head_dim).
The keys that a query may see, up to its own position, are counted from 0 and divided into blocks of ``block``; the last
of these is its own block. So padding on either side changes nothing, and each of several packed documents has the
output that it has alone. The own block is unfinished, and its mean takes no part; all earlier blocks are complete, so
no later key has any influence. Of blocks with equal scores the first are chosen.

Time is n (n / block + chosen_blocks * block) d and memory linear in length, if the mask of the call is padding, causal
or both; on a CPU, for blocks that are a multiple of 64 and padding on the right, by kernels over the queries that chose
a block (``kernels.implementations.chosen_blocks``). With other masks, such as windows and documents, each query has
other means: they are computed from all n^2 scores, a few rows at a time. Gradients flow through the chosen keys only.
It has no bidirectional form, and it cannot take a bias.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim). Queries are the last of the keys
(``contract.Frame``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard import masks
from regard.arguments import explain_arguments
from regard.errors import check_sizes
from regard.kernels.request import Request
from regard.masks.causal_parts import causal_parts
from regard.mechanisms.chosen_keys import (
    ChosenKeysMechanism,
    attend_exactly,
    attend_to_blocks,
    split_rows,
    visible_keys,
)
from regard.mechanisms.highest_scores import mark_highest
from regard.mechanisms.key_prefix import KeyPrefix
from regard.mechanisms.mean_key_scores import BlockSums, score_blocks_of_rows
from regard.tensors import is_traced

_NUMBERS_AT_ONCE = 1 << 20
"""Numbers of queries or scores that are compared at once: more would not stay in a cache."""


@final
@explain_arguments
class MixtureOfBlocks(ChosenKeysMechanism):
    """Mixture of block attention: causal, over the own block and the best ``chosen_blocks`` - 1 earlier ones.

    ``block`` is the number of tokens in a block; ``chosen_blocks`` counts the own block.
    """

    traits = replace(ChosenKeysMechanism.traits, hides_later_keys=True, ignores_hidden_keys=False)

    def __init__(
        self, *, heads: int, head_dim: int, block: int = 512, chosen_blocks: int = 3, dropout: float = 0.0
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        check_sizes(block=block, chosen_blocks=chosen_blocks)
        self.block, self.chosen_blocks = int(block), int(chosen_blocks)

    def visible(self, request: Request, rows: Int[Tensor, " rows"]) -> Bool[Tensor, "#batch #heads rows keys"]:
        """Return the keys up to the position of each query that the mask of the call allows."""
        frame = request.frame
        causal = masks.causal().dense(frame.queries, frame.keys, device=request.device, rows=rows)
        return visible_keys(request, rows) & causal

    def choose(self, request: Request, rows: Int[Tensor, " rows"]) -> Bool[Tensor, "batch heads rows keys"]:
        """Choose the keys of the own block and of the best earlier blocks."""
        visible = self.visible(request, rows)
        number = ((visible.cumsum(-1) - 1) // self.block).clamp(min=0)
        own = (visible.sum(-1, keepdim=True) - 1) // self.block
        parts = causal_parts(request.mask, request.frame)
        if parts is not None and (parts.high is None or parts.high >= request.frame.offset):
            visible_keys = parts.visible_keys(request.frame, request.device)
            scores = BlockSums.of(request.repeated_key, visible_keys, self.block).score(request.query[:, :, rows])
        else:
            scores = score_blocks_of_rows(request, rows, visible, number, self.block)
        at = torch.arange(scores.shape[3], device=request.device)
        blocks = mark_highest(scores, at < own, self.chosen_blocks - 1) | (at == own)
        return visible & blocks.gather(3, number.expand(*blocks.shape[:3], -1))

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output; block by block if blocks are the same for all queries and begin with the first key.

        A text that has no more blocks than are chosen is computed as causal attention.
        """
        if not is_traced() and request.frame.keys <= self.block * self.chosen_blocks:  # every block is chosen
            mask = masks.causal() if request.mask is None else masks.causal() & request.mask
            return attend_exactly(request.replace(mask=mask, inputs={}))
        prefix = KeyPrefix.of(request)
        if prefix is None or request.frame.queries == 0 or request.frame.keys == 0:
            return self.attend_under_mask(request)
        sums = BlockSums.of(request.key, None, self.block)
        number = torch.arange(sums.broken.shape[2], device=request.device)
        chosen = [
            mark_highest(
                sums.score(request.query[:, :, rows]),
                number < (prefix.visible_counts(request, rows)[..., None] - 1) // self.block,
                self.chosen_blocks - 1,
            )
            for rows in split_rows(request, max(len(number), self.head_dim), cells=_NUMBERS_AT_ONCE)
        ]
        return attend_to_blocks(request, torch.cat(chosen, dim=2), self.block, prefix.lengths)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"{super().extra_repr()}, block={self.block}, chosen_blocks={self.chosen_blocks}"
