"""Cross-attention block: queries attend to a memory of another width, then a feed-forward layer.

    a = x + MultiHead(norm_x(x), norm_y(y)),    x' = a + FFN(norm(a))

Jaegle et al. 2021, "Perceiver: general perception with iterative attention", section 3.2 and figure 1, and "Perceiver
IO", section 3.1. x (batch, queries, width), y (batch, keys, key_width) -> (batch, queries, width). Time and memory are
linear in the number of keys, and in the number of queries.
"""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import check_kind
from regard.layers.activation_checkpoint import CheckpointedBlock
from regard.layers.feed_forward import FeedForward
from regard.layers.multi_head import MultiHeadAttention
from regard.layers.residual import Residual
from regard.masks.base import Mask


@final
@explain_arguments
class CrossAttentionBlock(CheckpointedBlock):
    """Cross-attention to a memory, then feed-forward.

    ``memory_norm`` is a module on the memory (batch, keys, key_width), such as LayerNorm. Each residual is a
    ``PreNorm``, or ``NoResidual`` for an output that shall not contain its query.
    """

    def __init__(
        self,
        *,
        attention: MultiHeadAttention,
        feed_forward: FeedForward,
        attention_residual: Residual,
        feed_forward_residual: Residual,
        memory_norm: nn.Module,
    ) -> None:
        super().__init__()
        check_kind("memory_norm", memory_norm, nn.Module, do="for example torch.nn.LayerNorm(key_width)")
        self.attention, self.attention_residual = attention, attention_residual
        self.feed_forward, self.feed_forward_residual = feed_forward, feed_forward_residual
        self.memory_norm = memory_norm

    def forward(self, queries: Tensor, memory: Tensor, *, mask: Mask | None = None) -> Tensor:
        """Transform queries (batch, queries, width) to the same shape, from a memory (batch, keys, key_width).

        ``mask`` is over queries and keys.
        """

        def transform(queries: Tensor) -> Tensor:
            normed = self.memory_norm(memory)
            mixed = self.attention_residual(queries, lambda inner: self.attention(inner, normed, mask=mask))
            output: Tensor = self.feed_forward_residual(mixed, self.feed_forward)
            return output

        return self.run_checkpointed(transform, queries)
