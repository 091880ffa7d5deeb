"""Conformer block: attention and a convolution between two half feed-forward layers.

    x_1 = x + 1/2 FFN_1(norm(x))
    x_2 = x_1 + attention(norm(x_1))
    x_3 = x_2 + conv(norm(x_2))
    y   = norm(x_3 + 1/2 FFN_2(norm(x_3)))

    conv(x) = W_2 silu(batch_norm(depthwise(a * sigmoid(g)))),   (a, g) = W_1 x

Gulati et al. 2020, "Conformer: convolution-augmented Transformer for speech recognition", equation 1 and figure 2.
The projections of the convolution module have no biases, as in published code. Tokens (batch, length, width) -> the
same shape. Hidden tokens have no influence on visible ones, whatever they are: they are set to 0 first, the mask hides
them from attention, they are 0 again before the depthwise convolution, and the batch norm does not count them.
"""

from __future__ import annotations

from typing import final

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_kind, check_number, check_sizes, check_weights
from regard.kernels.operators.activation_op import activate
from regard.layers.activation_checkpoint import CheckpointedBlock
from regard.layers.feed_forward import FeedForward
from regard.layers.input_checks import check_visible_tokens
from regard.layers.masked_batch_norm import MaskedBatchNorm
from regard.layers.multi_head import MultiHeadAttention
from regard.layers.projection import linear_activation
from regard.layers.residual import PreNorm
from regard.masks.dense_mask import keep


@final
@explain_arguments
class ConvolutionModule(nn.Module):
    """The convolution module of a Conformer: each token sees ``kernel`` tokens around it, an odd number."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        check_sizes(width=width, kernel=kernel)
        check_weights(width=width, others=max(2 * width, kernel))
        if kernel % 2 == 0:
            raise OptionError(
                "the kernel of a convolution module is even",
                expected="an odd number of tokens, as many before a token as after it",
                got=str(kernel),
                do=f"use {kernel + 1}",
            )
        self.expansion = nn.Linear(width, 2 * width, bias=False)
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width, bias=False)
        self.norm = MaskedBatchNorm(width)
        self.projection = nn.Linear(width, width, bias=False)

    def forward(
        self, tokens: Float[Tensor, "batch length width"], visible: Bool[Tensor, "batch length"] | None = None
    ) -> Float[Tensor, "batch length width"]:
        """Convolve tokens; ``visible`` says which are not padding, None is all.

        Raises ShapeError, DtypeError or DeviceError for tokens that do not fit.
        """
        check_visible_tokens(tokens, visible, self.projection.in_features, self.depthwise.weight)
        gated = nn.functional.glu(linear_activation(tokens, self.expansion), dim=-1)
        if visible is not None:
            gated = gated.masked_fill(~visible[..., None], 0.0)
        mixed = self.depthwise(gated.transpose(1, 2)).transpose(1, 2) if tokens.shape[1] else gated
        return linear_activation(activate(self.norm(mixed, visible), "silu"), self.projection)


@final
@explain_arguments
class ConformerBlock(CheckpointedBlock):
    """Conformer block around an ``attention`` layer.

    Args:
        attention: the attention layer; its width is the width of the block.
        inner: hidden size of the feed-forward layers.
        kernel: number of tokens that the depthwise convolution sees, odd.
        dropout: dropout of the output of each module, and of the feed-forward layers' hidden units.
        epsilon: epsilon of the layer norms.
    """

    def __init__(
        self, attention: MultiHeadAttention, inner: int, kernel: int, *, dropout: float = 0.0, epsilon: float = 1e-5
    ) -> None:
        super().__init__()
        check_kind("attention", attention, MultiHeadAttention, do="pass layers.MultiHeadAttention(width, heads)")
        check_number("epsilon", epsilon, above=0.0)
        width = attention.width
        self.attention = attention
        self.convolution = ConvolutionModule(width, kernel)
        self.first_feed_forward, self.last_feed_forward = (
            FeedForward(width, inner, activation="silu", dropout=dropout) for _ in range(2)
        )
        self.first_residual, self.attention_residual, self.convolution_residual, self.last_residual = (
            PreNorm(nn.LayerNorm(width, eps=epsilon), dropout=dropout) for _ in range(4)
        )
        self.norm = nn.LayerNorm(width, eps=epsilon)

    def forward(
        self, tokens: Float[Tensor, "batch length width"], visible: Bool[Tensor, "batch length"] | None = None
    ) -> Float[Tensor, "batch length width"]:
        """Transform tokens; ``visible`` says which are not padding, None is all.

        Raises ShapeError, DtypeError or DeviceError for tokens that do not fit.
        """
        check_visible_tokens(tokens, visible, self.attention.width, self.norm.weight)
        mask = None
        if visible is not None:
            mask = keep(visible[:, None, None, :])
            tokens = tokens.masked_fill(~visible[..., None], 0.0)

        def transform(tokens: Tensor) -> Tensor:
            tokens = self.first_residual(tokens, lambda inner: self.first_feed_forward(inner) / 2)
            tokens = self.attention_residual(tokens, lambda inner: self.attention(inner, mask=mask))
            tokens = self.convolution_residual(tokens, lambda inner: self.convolution(inner, visible))
            tokens = self.last_residual(tokens, lambda inner: self.last_feed_forward(inner) / 2)
            output: Tensor = self.norm(tokens)
            return output

        return self.run_checkpointed(transform, tokens)
