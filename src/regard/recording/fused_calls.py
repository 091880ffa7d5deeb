"""Calls of attention that torch computes in one operation: queries, keys, values, mask and scale from its arguments.

    scaled_dot_product_attention    one of the ``_scaled_dot_product_*`` operations; else written out, by torch
    nn.MultiheadAttention           ``_native_multi_head_attention``, its fast path
    nn.TransformerEncoderLayer      ``_transformer_encoder_layer_fwd``, its fast path; padded texts are nested tensors
    flex_attention                  ``flex_attention``; its score_mod and mask_mod are computed for all pairs

In the fast paths a mask hides where it is True, or not 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_op
from torch.nn import functional

from regard.masks.additive_mask import read_mask_values
from regard.masks.band import causal
from regard.masks.visible_keys import VisibleKeys
from regard.recording.calls import LayerCall
from regard.recording.recomputed_call import make_recomputed_call
from regard.recording.recorded_call import make_call, make_kept_call

_SCALED_DOT_PRODUCTS = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
_QUERY_MASK, _KEY_MASK = 0, 1  # ``mask_type`` of the fast paths; 2 is a whole mask


def read_fused_call(operation: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> LayerCall | None:
    """The call of an operation that computes attention; None for other operations.

    Its name is that of the layer inside the module that calls the operation, mostly "".
    """
    read = _READERS.get(operation)
    if read is None:
        return None
    if operation is flex_attention_op:
        return read({**dict(zip(_FLEX_ARGUMENTS, arguments, strict=False)), **named})
    schema = operation._schema.arguments
    passed = dict(zip((argument.name for argument in schema), arguments, strict=False)) | dict(named)
    defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    return read(defaults | passed)


def _read_scaled_dot_product(arguments: Mapping[str, Any]) -> LayerCall:
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    mask = arguments.get("attn_mask", arguments.get("attn_bias"))
    visible, bias = VisibleKeys(None), None
    if mask is not None:
        mask = mask.reshape(*[1] * (4 - mask.dim()), *mask.shape)
        sizes = (max(mask.shape[0], 1), mask.shape[1], query.shape[2], key.shape[2])
        visible, bias = read_mask_values(mask.detach().expand(sizes))
    elif arguments.get("is_causal"):
        visible = VisibleKeys(causal(align="start"))
    return make_call("", query, key, value, visible=visible, bias=bias, scale=arguments.get("scale"))


def _read_multi_head(arguments: Mapping[str, Any]) -> LayerCall:
    names = ("num_head", "qkv_weight", "qkv_bias", "mask", "mask_type")
    return _project(arguments["query"], *(arguments[name] for name in names), lengths=None)


def _read_encoder_layer(arguments: Mapping[str, Any]) -> LayerCall:
    tokens, lengths = arguments["src"], None
    if tokens.is_nested:
        lengths = [len(text) for text in tokens.unbind()]
        tokens = tokens.to_padded_tensor(0.0)
    if arguments["norm_first"]:
        norm = (arguments[name] for name in ("norm_weight_1", "norm_bias_1", "eps"))
        tokens = functional.layer_norm(tokens, tokens.shape[-1:], *norm)
    names = ("num_heads", "qkv_weight", "qkv_bias", "mask", "mask_type")
    call = _project(tokens, *(arguments[name] for name in names), lengths=lengths)
    return replace(call, name="self_attn")  # the module that this operation does not call


def _project(
    tokens: Tensor,
    heads: int,
    weight: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    mask_type: int | None,
    *,
    lengths: list[int] | None,
) -> LayerCall:
    """The call of a layer that projects its tokens (batch, length, width) by one matrix (3 * width, width)."""
    batch, length = tokens.shape[:2]
    projected = functional.linear(tokens, weight, bias).unflatten(-1, (3, heads, -1))
    query, key, value = projected.permute(2, 0, 3, 1, 4)
    shown = None
    if mask is not None:
        shown = ~mask.bool()
        if mask_type == _KEY_MASK:
            shown = shown[:, None, None]
        elif mask_type == _QUERY_MASK:
            shown = shown[None, None]
    if lengths is not None:
        places = torch.arange(length, device=tokens.device)
        shown = (places < torch.tensor(lengths, device=tokens.device)[:, None])[:, None, None]
    visible = VisibleKeys(None)
    if shown is not None:
        visible, _ = read_mask_values(shown.expand(batch, -1, length, length))
    return make_call("", query, key, value, visible=visible, bias=None, scale=None)


_FLEX_ARGUMENTS = (
    "query",
    "key",
    "value",
    "score_mod",
    "block_mask",
    "scale",
    "kernel_options",
    "score_mod_other_buffers",
    "mask_mod_other_buffers",
)


def _read_flex(arguments: Mapping[str, Any]) -> LayerCall:
    query, key, value = (arguments[name].detach() for name in ("query", "key", "value"))
    batch, heads, queries = query.shape[:3]
    sizes = (batch, heads, queries, key.shape[2])
    keys_of_heads = key.repeat_interleave(heads // key.shape[1], dim=1)
    scores = (query.float() @ keys_of_heads.float().transpose(-2, -1)) * arguments["scale"]
    places = [torch.arange(size, device=query.device) for size in sizes]
    buffers = arguments.get("score_mod_other_buffers", ())
    scores = _map_over_pairs(arguments["score_mod"], (0, *_PLACES), len(buffers))(scores, *places, *buffers)
    mask_mod, buffers = arguments["block_mask"][-1], arguments.get("mask_mod_other_buffers", ())
    shown = _map_over_pairs(mask_mod, _PLACES, len(buffers))(*places, *buffers).expand(sizes)
    scores = scores.masked_fill(~shown, -torch.inf)
    weights = scores.softmax(-1).masked_fill(~shown, 0.0)
    call = make_recomputed_call(query, key, value, scores, weights)
    return call or make_kept_call(query, key, value, weights, max_score=scores.amax(-1))


_PLACES = (0, 1, 2, 3)
"""The axes of batch, heads, queries and keys, over which the functions of flex_attention are mapped."""


def _map_over_pairs(function: Callable[..., Tensor], axes: tuple[int, ...], buffers: int) -> Callable[..., Tensor]:
    """A function of single scores and places as a function of scores (batch, heads, queries, keys) and all places."""
    has_scores = len(axes) > len(_PLACES)
    for place in reversed(_PLACES):
        own = [0 if other == place else None for other in _PLACES]
        function = torch.vmap(function, in_dims=((0,) if has_scores else ()) + tuple(own) + (None,) * buffers)
    return function


def _operations() -> Iterator[tuple[Any, Callable[[Mapping[str, Any]], LayerCall]]]:
    for name in _SCALED_DOT_PRODUCTS:
        if hasattr(torch.ops.aten, name):
            yield getattr(torch.ops.aten, name).default, _read_scaled_dot_product
    yield torch.ops.aten._native_multi_head_attention.default, _read_multi_head
    yield torch.ops.aten._transformer_encoder_layer_fwd.default, _read_encoder_layer
    yield flex_attention_op, _read_flex


_READERS = dict(_operations())
