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

        if can_read_text(tokens):
            return self._step(tokens, mask, bias)

        def transform(tokens: Tensor) -> Tensor:
            return self._feed_forward(self._attend(tokens, mask, bias))

        return self.run_checkpointed(transform, tokens)

    def _attend(self, tokens: Tensor, mask: Mask | None, bias: Bias | None) -> Tensor:
        return self.attention_residual(tokens, lambda inner: self.attention(inner, mask=mask, bias=bias))

    def _feed_forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.feed_forward_residual(tokens, self.feed_forward)
        return output

    def _step(self, tokens: Tensor, mask: Mask | None, bias: Bias | None) -> Tensor:
        """Compute few tokens without gradients: each sublayer is one native call where that computes it."""
        found = self_attention_step(self.attention, self.attention_residual, tokens, mask, bias)
        attended = self._attend(tokens, mask, bias) if found is None else found
        output = feed_forward_step(self.feed_forward, self.feed_forward_residual, attended)
        return self._feed_forward(attended) if output is None else output


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
