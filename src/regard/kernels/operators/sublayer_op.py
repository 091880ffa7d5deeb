"""Sublayers of a decoder for few tokens by the native kernel, each in one call, as in a decoding step.

    y = after(x + of_output(f(before(x))))                  x, y (batch, length, width); each norm may be absent

    feed-forward    f(x) = (act(x W_u + b_u)) W_d + b_d,  or  (act(x W_g + b_g) * (x W_u + b_u)) W_d + b_d
    attention       f(x) = MultiHead(x W_Q, (K, x W_K), (V, x W_V)) W_O   x W_K and x W_V are appended to K and V

A step of decoding multiplies each weight by few tokens, so it takes as long as reading the weights, and while Python
runs between two operators nothing is read. Results are rounded where layers do that are called one after the other.
The bits of a token depend neither on the other tokens of the batch nor on the number of threads. There is no
derivative, and under ``torch.compile`` callers use modules.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from regard.kernels.extension import native
from regard.kernels.int8_rows import numbers_in_row
from regard.kernels.operators.kernel_arguments import KernelArguments
from regard.kernels.operators.projection_op import DTYPES, MAX_TOKENS, is_fast
from regard.kernels.tracing import is_eager

LinearLayer: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None, int]
"""Weight, scale of weights of few bits (``integer_linear_op``), bias (outputs), and number of outputs."""
NormLayer: TypeAlias = tuple[Tensor, Tensor | None, float, float, bool]
"""Weight and bias (width), epsilon, offset of the weight, and whether the mean is subtracted, as in a layer norm."""
RotationFactors: TypeAlias = tuple[Tensor, Tensor, bool]
"""Cosines and sines (length, rotated), and whether neighbours are pairs: see ``positions.rotary``."""


@final
class SublayerNorms(NamedTuple):
    """The norms of a sublayer; None is no norm."""

    before: NormLayer | None = None
    of_output: NormLayer | None = None
    after: NormLayer | None = None


@final
class AttentionLayers(NamedTuple):
    """The layers of an attention sublayer. Without layers of keys and values, all keys are known before the call."""

    query: LinearLayer
    output: LinearLayer
    key: LinearLayer | None = None
    value: LinearLayer | None = None
    query_norm: NormLayer | None = None
    key_norm: NormLayer | None = None


@final
class FeedForwardLayers(NamedTuple):
    """The layers of a feed-forward sublayer, and the name of its activation. Without a gate it applies to ``up``."""

    up: LinearLayer
    gate: LinearLayer | None
    down: LinearLayer
    activation: str


def can_compute(tokens: Tensor, max_tokens: int = MAX_TOKENS) -> bool:
    """Whether the kernels compute sublayers of these tokens: so many at most, on a CPU, without gradients."""
    return (
        tokens.layout is torch.strided  # first: a nested tensor has no numbers to compare
        and tokens.dim() == 3
        and 0 < tokens.shape[0] * tokens.shape[1] <= max_tokens
        and tokens.dtype in DTYPES
        and not torch.is_grad_enabled()
        and tokens.is_cpu
        and is_eager(tokens)
        and forward_ad._current_level < 0
        and not torch.is_autocast_enabled("cpu")
        and is_fast()
    )


def can_read(weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernels read a parameter without a copy: dense numbers of this dtype in the CPU's memory."""
    kind = type(weight)
    return (
        (kind is Parameter or kind is Tensor)  # and not a subclass, which may compute otherwise
        and weight.dtype is dtype
        and weight.is_cpu
        and weight.layout is torch.strided
        and weight.is_contiguous()
    )


def feed_forward(
    tokens: Float[Tensor, "batch length width"], layers: FeedForwardLayers, norms: SublayerNorms
) -> Float[Tensor, "batch length width"]:
    """Compute a feed-forward sublayer of tokens for which ``can_compute`` holds."""
    tokens = tokens.contiguous()
    output = torch.empty_like(tokens)
    before, of_output, after = norms
    native.feed_forward_sublayer(
        tokens,
        layers.up,
        layers.gate,
        layers.down,
        output,
        activation=layers.activation,
        before=before,
        of_output=of_output,
        after=after,
        threads=torch.get_num_threads(),
    )
    return output


def attention(
    tokens: Float[Tensor, "batch length width"],
    key: Shaped[Tensor, "batch key_heads keys head_dim"],
    value: Shaped[Tensor, "batch key_heads keys value_dim"],
    heads: int,
    layers: AttentionLayers,
    norms: SublayerNorms,
    rotation: RotationFactors | None,
    terms: KernelArguments,
) -> Float[Tensor, "batch length width"]:
    """Compute an attention sublayer of tokens for which ``can_compute`` holds.

    With layers of keys and values, the last ``length`` rows of ``key`` and ``value`` belong to the tokens, and are
    written. Keys and values may be rounded (``int8_rows``).
    """
    tokens = tokens.contiguous()
    output = torch.empty_like(tokens)
    before, of_output, after = norms
    native.attention_sublayer(
        tokens,
        _empty_heads(tokens, heads, numbers_in_row(key)),
        key,
        value,
        _empty_heads(tokens, heads, numbers_in_row(value)),
        output,
        query_layer=layers.query,
        key_layer=layers.key,
        value_layer=layers.value,
        output_layer=layers.output,
        before=before,
        of_output=of_output,
        after=after,
        query_norm=layers.query_norm,
        key_norm=layers.key_norm,
        rotation=rotation,
        **terms.to_kwargs(),
    )
    return output


def _empty_heads(tokens: Tensor, heads: int, size: int) -> Tensor:
    """Make an uninitialized tensor (batch, heads, length, size), stored as (batch, length, heads, size)."""
    batch, length, _ = tokens.shape
    return tokens.new_empty_strided((batch, heads, length, size), (length * heads * size, size, heads * size, 1))
