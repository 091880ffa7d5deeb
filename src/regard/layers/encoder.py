"""Encoder block: self-attention, then a feed-forward layer, each with a residual connection (``Residual``).

Vaswani et al. 2017, section 3.1 and figure 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from torch import Tensor

from regard.arguments import explain_arguments
from regard.kernels.request import Bias
from regard.layers.activation_checkpoint import CheckpointedBlock
from regard.layers.feed_forward import FeedForward
from regard.layers.multi_head import MultiHeadAttention
from regard.layers.residual import Residual, make_residual
from regard.layers.sublayer_step import can_read_text, feed_forward_step, self_attention_step
from regard.masks.base import Mask
from regard.mechanisms.base import Mechanism
from regard.positions.base import PairBias, Rotation


@final
@explain_arguments
class EncoderBlock(CheckpointedBlock):
    """Encoder block: self-attention, then feed-forward. Each has a ``Residual`` around it, such as ``PreNorm``."""

    def __init__(
        self,
        *,
        attention: MultiHeadAttention,
        feed_forward: FeedForward,
        attention_residual: Residual,
        feed_forward_residual: Residual,
    ) -> None:
        super().__init__()
        self.attention, self.attention_residual = attention, attention_residual
        self.feed_forward, self.feed_forward_residual = feed_forward, feed_forward_residual

    def forward(self, tokens: Tensor, *, mask: Mask | None = None, bias: Bias | None = None) -> Tensor:
        """Transform tokens (batch, length, width) to the same shape.

        ``bias`` is added to the scores of self-attention, which then has no position that is a bias.
        """
        steps = can_read_text(tokens)

        def transform(tokens: Tensor) -> Tensor:
            return self._feed_forward(self._attend(tokens, mask, bias, steps=steps), steps=steps)

        return self.run_checkpointed(transform, tokens)

    def _attend(self, tokens: Tensor, mask: Mask | None, bias: Bias | None, *, steps: bool) -> Tensor:
        """Compute self-attention with its residual connection, in one native call if ``steps`` allows that."""
        attention, residual = self.attention, self.attention_residual
        output = self_attention_step(attention, residual, tokens, mask, bias) if steps else None
        return residual(tokens, lambda inner: attention(inner, mask=mask, bias=bias)) if output is None else output

    def _feed_forward(self, tokens: Tensor, *, steps: bool) -> Tensor:
        """Compute the feed-forward layer with its residual connection, in one native call if ``steps`` allows that."""
        layer, residual = self.feed_forward, self.feed_forward_residual
        output = feed_forward_step(layer, residual, tokens) if steps else None
        return residual(tokens, layer) if output is None else output


@explain_arguments
def encoder_block(
    width: int,
    heads: int,
    inner: int,
    *,
    norm: str = "post",
    activation: str = "relu",
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    inner_dropout: float = 0.0,
    epsilon: float = 1e-5,
    key_value_heads: int | None = None,
    mechanism: str | Mechanism = "dot_product",
    mechanism_options: Mapping[str, Any] | None = None,
    position: Rotation | PairBias | None = None,
) -> EncoderBlock:
    """Build an encoder block for tokens of ``width`` with ``heads`` heads.

    ``norm`` is "post" (as published in 2017) or "pre"; ``inner`` is the size of the feed-forward layer. ``dropout``
    applies to the output of each sublayer, as published; ``attention_dropout`` to the attention weights,
    ``inner_dropout`` to the inner layer of the feed-forward.
    """
    return EncoderBlock(
        attention=MultiHeadAttention(
            width,
            heads,
            key_value_heads=key_value_heads,
            mechanism=mechanism,
            mechanism_options=mechanism_options,
            position=position,
            dropout=attention_dropout,
        ),
        feed_forward=FeedForward(width, inner, activation=activation, dropout=inner_dropout),
        attention_residual=make_residual(norm, width, epsilon, dropout),
        feed_forward_residual=make_residual(norm, width, epsilon, dropout),
    )
