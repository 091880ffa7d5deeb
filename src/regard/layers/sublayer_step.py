"""The sublayers of a block, each in one native call (``kernels.operators.sublayer_op``): of a decoder in a decoding
step, and of an encoder.

    y = after(x + of_output(f(before(x))))            x, y (batch, length, width), without gradients

Each function returns None if modules have to be called one after the other: for tokens, layers, mechanisms or states
that the kernel does not compute, and where hooks, adapters or dropout are at work. Parameters are read in each call, so
none can become stale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.contract import Frame
from regard.kernels.int8_rows import MAX_ROWS, stored_width
from regard.kernels.operators import sublayer_op
from regard.kernels.operators.activation_op import NATIVE_ACTIVATIONS
from regard.kernels.operators.kernel_arguments import KernelArguments, make_kernel_arguments
from regard.kernels.operators.projection_op import MAX_TOKENS
from regard.kernels.operators.sublayer_op import (
    AttentionLayers,
    FeedForwardLayers,
    LinearLayer,
    NormLayer,
    RotationFactors,
    SublayerNorms,
    can_read,
)
from regard.kernels.request import Bias, Terms, is_scale_in_range
from regard.kernels.support import MAX_HEAD_DIM
from regard.layers.dropout import Dropout
from regard.layers.feed_forward import FeedForward
from regard.layers.multi_head import MultiHeadAttention
from regard.layers.plain_module import has_global_hooks, is_unmodified
from regard.layers.projection import multiplies_many, uses_own_kernel
from regard.layers.quantized_linear import Int4Linear, Int8Linear
from regard.layers.residual import Residual
from regard.layers.rms_norm import RMSNorm
from regard.masks.base import Mask
from regard.mechanisms.base import Mechanism
from regard.mechanisms.dot_product import DotProduct
from regard.mechanisms.key_value_cache import KeyValueCache, TokenCache
from regard.mechanisms.state import State
from regard.positions.base import DistanceBias, Rotation
from regard.validation import check_mask

_MAX_TOKENS_OF_TEXTS = 4096
_QUANTIZED_DTYPES: dict[type[nn.Module], torch.dtype] = {Int8Linear: torch.int8, Int4Linear: torch.uint8}
"""The dtype of the stored weight of layers with weights of few bits."""


def can_step(tokens: Tensor, max_tokens: int = MAX_TOKENS) -> bool:
    """Whether sublayers of these tokens, so many at most, may be computed in one native call each."""
    return (
        not torch.compiler.is_compiling()
        and isinstance(tokens, Tensor)
        and sublayer_op.can_compute(tokens, max_tokens)
        and uses_own_kernel()
        and not has_global_hooks()
    )


def can_read_text(tokens: Tensor) -> bool:
    """Whether sublayers of whole texts may be: also of many tokens, where their own products are fast."""
    return can_step(tokens, _MAX_TOKENS_OF_TEXTS) and (
        tokens.shape[0] * tokens.shape[1] <= MAX_TOKENS or multiplies_many(tokens.dtype)
    )


def feed_forward_step(feed_forward: nn.Module, residual: Residual, tokens: Tensor) -> Tensor | None:
    """Compute a feed-forward sublayer of tokens for which ``can_step`` holds."""
    layers, norms = read_feed_forward(feed_forward, tokens), read_norms(residual, tokens.dtype)
    return None if layers is None or norms is None else sublayer_op.feed_forward(tokens, layers, norms)


def attention_step(
    attention: MultiHeadAttention,
    residual: Residual,
    tokens: Tensor,
    state: State,
    mask: Mask | None,
    bias: Bias | None,
) -> tuple[Tensor, State] | None:
    """Compute self-attention of tokens for which ``can_step`` holds; return the output and the extended state."""
    if not isinstance(state, TokenCache) or state.length == 0:  # as pages are, and a layer before its first token
        return None
    length, starts = tokens.shape[1], state.next_positions
    if isinstance(starts, Tensor) or len(starts) != 1:
        return None
    layers, norms = read_attention(attention, tokens, has_keys=True), read_norms(residual, tokens.dtype)
    if layers is None or norms is None:
        return None
    rotation, rotates = _find_rotation(attention, tokens, starts[0])
    frame = Frame(length, state.visible_keys(length))
    terms = read_terms(attention.mechanism, frame, tokens, mask, attention.choose_bias(bias))
    if terms is None or (rotates and rotation is None):
        return None
    following = state.reserved(length)
    if not isinstance(following, TokenCache):
        return None
    key, value = following.stored
    if not fit_heads(key, value, tokens, HeadSizes.of(attention)):
        return None
    output = sublayer_op.attention(tokens, key, value, attention.heads, layers, norms, rotation, terms)
    return output, following.trimmed()


def self_attention_step(
    attention: nn.Module, residual: Residual, tokens: Tensor, mask: Mask | None, bias: Bias | None
) -> Tensor | None:
    """Compute self-attention of whole texts, of tokens for which ``can_step`` holds."""
    if type(attention) is not MultiHeadAttention:
        return None
    layers, norms = read_attention(attention, tokens, has_keys=True), read_norms(residual, tokens.dtype)
    if layers is None or norms is None:
        return None
    batch, length, _ = tokens.shape
    rotation, rotates = _find_rotation(attention, tokens, 0)
    terms = read_terms(attention.mechanism, Frame(length, length), tokens, mask, attention.choose_bias(bias))
    if terms is None or (rotates and rotation is None):
        return None
    key = tokens.new_empty(batch, attention.key_value_heads, length, attention.head_dim)
    value = tokens.new_empty(batch, attention.key_value_heads, length, attention.value_head_dim)
    return sublayer_op.attention(tokens, key, value, attention.heads, layers, norms, rotation, terms)


def cross_attention_step(
    attention: MultiHeadAttention, residual: Residual, tokens: Tensor, memory: KeyValueCache, mask: Mask | None
) -> Tensor | None:
    """Compute attention to known keys and values, of tokens for which ``can_step`` holds."""
    layers, norms = read_attention(attention, tokens, has_keys=False), read_norms(residual, tokens.dtype)
    if layers is None or norms is None or attention.position is not None or memory.length == 0 or memory.inputs:
        return None
    key, value = memory.key, memory.value
    if not fit_heads(key, value, tokens, HeadSizes.of(attention)):
        return None
    terms = read_terms(attention.mechanism, Frame(tokens.shape[1], memory.length), tokens, mask, None)
    if terms is None:
        return None
    return sublayer_op.attention(tokens, key, value, attention.heads, layers, norms, None, terms)


def _find_rotation(attention: MultiHeadAttention, tokens: Tensor, start: int) -> tuple[RotationFactors | None, bool]:
    """Return the factors for tokens from ``start`` on, None if modules have to be called; and if it rotates."""
    position = attention.position
    if not isinstance(position, Rotation):
        return None, False
    factors = position.factors(tokens, attention.head_dim, start, tokens.shape[1])
    return (factors if is_unmodified(position) else None), True


def read_terms(
    mechanism: Mechanism,
    frame: Frame,
    tokens: Float[Tensor, "batch length width"],
    mask: Mask | None,
    bias: Bias | None,
) -> KernelArguments | None:
    """Return the arguments of the native kernel for attention of such tokens; None if the mechanism is to be called.

    It is called unless it is the dot product, without hooks, dropout, another implementation or a dense bias.
    """
    if not isinstance(mechanism, DotProduct):
        return None
    if mechanism._forward_pre_hooks or mechanism._forward_hooks or "forward" in mechanism.__dict__:
        return None
    heads, head_dim, scale = mechanism.heads, mechanism.head_dim, mechanism.scale
    if mechanism.active_dropout or mechanism.impl not in ("auto", "native"):
        return None
    if not is_scale_in_range(scale) or head_dim > MAX_HEAD_DIM:
        return None
    if bias is not None and not (isinstance(bias, DistanceBias) and bias.heads in (1, heads)):
        return None
    batch = tokens.shape[0]
    if mask is not None:
        check_mask(mask)
        mask.check(batch, heads, frame.queries, frame.keys)
    terms = dict(mechanism.terms)
    if mechanism.sinks is not None:
        terms["sinks"] = mechanism.sinks[None, :, None, None]
    return make_kernel_arguments(frame, batch, tokens.dtype, Terms(mask, bias, **terms))


def read_feed_forward(feed_forward: nn.Module, tokens: Tensor) -> FeedForwardLayers | None:
    """Read a feed-forward layer for such tokens; None if the kernel does not compute it, or a part is not plain."""
    if type(feed_forward) is not FeedForward or not is_unmodified(feed_forward):
        return None
    if feed_forward.inner_activation not in NATIVE_ACTIVATIONS:
        return None
    modules, dtype = feed_forward._modules, tokens.dtype
    width = tokens.shape[2]
    up, down = read_linear(modules["up"], dtype, width), read_linear(modules["down"], dtype)
    gate = None if feed_forward.gate is None else read_linear(feed_forward.gate, dtype, width)
    if up is None or down is None or (gate is None) != (feed_forward.gate is None):
        return None
    if _is_dropping(modules["dropout"]):
        return None
    return FeedForwardLayers(up, gate, down, feed_forward.inner_activation)


def read_attention(attention: MultiHeadAttention, tokens: Tensor, *, has_keys: bool) -> AttentionLayers | None:
    """Read the layers of multi-head attention for such tokens; None if one of them is not plain."""
    modules, dtype, width = attention._modules, tokens.dtype, tokens.shape[2]
    if not is_unmodified(attention) or modules["input_projections"] or attention.gate_projection is not None:
        return None
    query = read_linear(modules["query_projection"], dtype, width)
    output = read_linear(modules["output_projection"], dtype)
    if query is None or output is None:
        return None
    key = value = key_norm = None
    query_norm = _read_head_norm(attention.query_norm, dtype)
    if query_norm is None and attention.query_norm is not None:
        return None
    if has_keys:
        key = read_linear(modules["key_projection"], dtype, width)
        value = read_linear(modules["value_projection"], dtype, width)
        key_norm = _read_head_norm(attention.key_norm, dtype)
        if key is None or value is None or (key_norm is None and attention.key_norm is not None):
            return None
    return AttentionLayers(query, output, key, value, query_norm, key_norm)


@final
class HeadSizes(NamedTuple):
    """The heads of a layer of attention, and their sizes."""

    heads: int
    key_heads: int
    head_dim: int
    value_dim: int

    @classmethod
    def of(cls, attention: MultiHeadAttention) -> HeadSizes:
        """Read the numbers of query and key heads of a layer, and the sizes of keys and values."""
        return cls(attention.heads, attention.key_value_heads, attention.head_dim, attention.value_head_dim)


def fit_heads(key: Tensor, value: Tensor, tokens: Tensor, sizes: HeadSizes) -> bool:
    """Whether stored keys and values have the batch size and dtype of the tokens, and the sizes of a layer's heads.

    Rounded ones are read for as many queries as a kernel of pages takes at a time.
    """
    heads, key_heads, head_dim, value_dim = sizes
    stored = torch.int8 if key.dtype is torch.int8 else tokens.dtype
    leading = (tokens.shape[0], key_heads, key.shape[2])
    return (
        key.shape == (*leading, stored_width(head_dim, stored))
        and value.shape == (*leading, stored_width(value_dim, stored))
        and key.dtype is value.dtype is stored
        and (stored is not torch.int8 or heads * tokens.shape[1] <= MAX_ROWS * key_heads)
        and key.is_cpu
        and value.is_cpu
        and key.stride(3) == value.stride(3) == 1
    )


def read_linear(layer: nn.Module | None, dtype: torch.dtype, inputs: int | None = None) -> LinearLayer | None:
    """Read the parameters of a linear layer; None if it is not plain, or not of so many inputs, or cannot be read."""
    if layer is None or not is_unmodified(layer):
        return None
    kind = type(layer)
    stored: Mapping[str, Tensor | None] = layer._parameters if kind is nn.Linear else layer._buffers
    weight, bias, scale = stored.get("weight"), stored.get("bias"), None
    if kind is nn.Linear:
        weight_dtype: torch.dtype = dtype
    elif kind in _QUANTIZED_DTYPES:
        weight_dtype = _QUANTIZED_DTYPES[kind]
        scale = stored.get("scale")
        if scale is None or not can_read(scale, torch.bfloat16):
            return None
    else:
        return None
    if weight is None or not can_read(weight, weight_dtype):
        return None
    if scale is None:
        outputs, width = weight.shape
    else:
        outputs, width = cast("Any", layer).out_features, cast("Any", layer).in_features
    if inputs is not None and inputs != width:
        return None
    return None if bias is not None and not can_read(bias, dtype) else (weight, scale, bias, outputs)


def read_norms(residual: Residual, dtype: torch.dtype) -> SublayerNorms | None:
    """Read the norms of a residual connection; None if one is not plain, if nothing is added, or with dropout."""
    if not is_unmodified(residual) or _is_dropping(residual._modules["dropout"]):
        return None
    *norms, adds = residual.norms
    read: list[NormLayer | None] = []
    for norm in norms:
        parameters = None if norm is None else read_norm(norm, dtype)
        if parameters is None and norm is not None:
            return None
        read.append(parameters)
    return SublayerNorms(*read) if adds else None


def _read_head_norm(norm: nn.Module | None, dtype: torch.dtype) -> NormLayer | None:
    return None if norm is None else read_norm(norm, dtype)


def read_norm(norm: nn.Module, dtype: torch.dtype) -> NormLayer | None:
    """Read the parameters of a norm; None if it is not a plain one that the kernels read."""
    kind, parameters = type(norm), norm._parameters
    if kind is not nn.LayerNorm and kind is not RMSNorm:
        return None
    numbers = cast("Any", norm)
    weight, bias = parameters.get("weight"), parameters.get("bias")
    if weight is None or weight.dim() != 1 or not can_read(weight, dtype) or not is_unmodified(norm):
        return None
    if bias is not None and not can_read(bias, dtype):
        return None
    if kind is RMSNorm:
        return weight, None, numbers.epsilon, numbers.offset, False
    return weight, bias, numbers.eps, 0.0, True


def _is_dropping(dropout: nn.Module | None) -> bool:
    """Whether a dropout layer does anything: drops tokens, or has hooks; or is another module."""
    return type(dropout) is not Dropout or (dropout.training and dropout.p > 0) or not is_unmodified(dropout)
