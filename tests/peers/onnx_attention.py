"""ONNX's operators Attention and FlexAttention, computed by ``regard.attention`` and ``regard.observe``.

Y = softmax(cap(scale Q K^T) + mask) V        with scores before or after the cap and the mask as another output
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import regard
from peers.onnx_cases import OnnxCase, run_graph
from regard import masks
from regard.masks import Mask

RAW, CAPPED, BIASED, WEIGHTS = range(4)
"""``qk_matmul_output_mode``: which scores the fourth output is."""


@dataclass(frozen=True)
class Call:
    """The arguments of ``regard.attention``."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask | None = None
    bias: Tensor | None = None
    scale: float | None = None
    softcap: float | None = None

    def terms(self) -> dict[str, Any]:
        return {"mask": self.mask, "bias": self.bias, "scale": self.scale, "softcap": self.softcap}

    def output(self) -> Tensor:
        return regard.attention(self.query, self.key, self.value, **self.terms())

    def weights(self) -> Tensor:
        return self._observe().rows

    def scores(self) -> Tensor:
        """The terms of the softmax, log(weight) + lse; -inf where the mask hides a key."""
        seen = self._observe()
        return seen.rows.log() + seen.lse[..., None]

    def _observe(self) -> Any:
        rows = range(self.query.shape[2])
        return regard.observe(self.query, self.key, self.value, **self.terms(), top=1, rows=list(rows))

    def score_error(self) -> float:
        """A bound of the rounding errors of their scores, in the dtype of the tensors with roundoff u.

        They multiply Q and K by sqrt(scale), sum d products, cap, and add the mask: (d + 5) u scale |q| . |k|, and
        3 u |mask|.
        """
        unit, width = torch.finfo(self.query.dtype).eps / 2, self.query.shape[-1]
        scale = width**-0.5 if self.scale is None else abs(self.scale)
        key = self.key.repeat_interleave(self.query.shape[1] // self.key.shape[1], dim=1)
        products = scale * self.query.double().abs() @ key.double().abs().mT
        bias = 0.0 if self.bias is None else float(self.bias.double().abs().max())
        return unit * ((width + 5) * float(products.nan_to_num().max()) + 3 * bias)

    def output_error(self) -> float:
        """A bound of the rounding errors of their output, of n keys.

        Errors of scores of at most e change the weights by at most e (1 + e) in sum, and their exponentials, their sum
        and their products with the values have (2 n + 4) u more.
        """
        unit, keys = torch.finfo(self.query.dtype).eps / 2, self.key.shape[2]
        error = self.score_error()
        return (error * (1 + error) + (2 * keys + 4) * unit) * float(self.value.double().abs().nan_to_num().max())


def attention_call(case: OnnxCase) -> Call:
    """The call that a case of Attention means, with keys and values of the past before the new ones."""
    inputs, attributes = case.inputs, case.attributes
    query = _split_heads(inputs["Q"], attributes.get("q_num_heads"))
    key, value = (_split_heads(inputs[name], attributes.get("kv_num_heads")) for name in "KV")
    past = 0
    if "past_key" in inputs:
        past = inputs["past_key"].shape[2]
        key, value = torch.cat([inputs["past_key"], key], 2), torch.cat([inputs["past_value"], value], 2)
    call = Call(query, key, value, scale=attributes.get("scale"), softcap=attributes.get("softcap") or None)
    mask = _position_mask(attributes, inputs.get("nonpad_kv_seqlen"), query.shape[2], key.shape[2], past)
    given, bias = _split_mask(inputs.get("attn_mask"), key.shape[2])
    return replace(call, mask=_both(mask, given), bias=bias)


def attention_outputs(case: OnnxCase, call: Call) -> Mapping[str, tuple[Tensor, float]]:
    """The outputs of a case of Attention, each with a bound of their rounding errors."""
    output = call.output()
    if case.inputs["Q"].dim() == 3:
        output = output.transpose(1, 2).flatten(2)
    found = {"Y": (output, call.output_error()), "present_key": (call.key, 0.0), "present_value": (call.value, 0.0)}
    mode, unit = case.attributes.get("qk_matmul_output_mode", RAW), torch.finfo(call.query.dtype).eps
    if mode == WEIGHTS:
        return found | {"qk_matmul_output": (call.weights(), call.score_error() + 4 * unit)}
    if mode == RAW:
        call = replace(call, mask=None, bias=None, softcap=None)
    elif mode == CAPPED:
        call = replace(call, mask=None, bias=None)
    scores = call.scores()
    # Ours are a logarithm of a weight and a normalizer, each rounded relatively.
    ours = 8 * unit * (1 + float(scores[scores.isfinite()].abs().max()))
    return found | {"qk_matmul_output": (scores, call.score_error() + ours)}


def flex_call(case: OnnxCase) -> Call:
    """The call that a case of FlexAttention means: its ``score_mod`` is a softcap, or adds numbers to the scores."""
    call = Call(*(case.inputs[name] for name in "QKV"), scale=case.attributes.get("scale"))
    graph = case.graphs.get("score_mod")
    if graph is None:
        return call
    operators = [one.op_type for one in graph.node]
    if operators == ["Div", "Tanh", "Mul"]:
        cap = run_graph(graph, torch.full((1, 1, 1, 1), 1e6))  # tanh is 1
        return replace(call, softcap=float(cap))
    zeros = torch.zeros(*call.query.shape[:3], call.key.shape[2])
    added = run_graph(graph, zeros)
    assert torch.equal(run_graph(graph, zeros + 0.5), added + 0.5), operators
    mask, bias = _split_mask(added, call.key.shape[2])
    return replace(call, mask=mask, bias=bias)


def _split_heads(tokens: Tensor, heads: int | None) -> Tensor:
    """(batch, length, heads * size) to (batch, heads, length, size)."""
    return tokens if tokens.dim() == 4 else tokens.unflatten(-1, (heads, -1)).transpose(1, 2).contiguous()


def _both(one: Mask | None, other: Mask | None) -> Mask | None:
    return other if one is None else one if other is None else one & other


def _position_mask(
    attributes: Mapping[str, Any], lengths: Tensor | None, queries: int, keys: int, past: int
) -> Mask | None:
    """Causal mask, window and padding. Query i is at the position offset + i.

    The offset is the length of the past, or with padded keys the number of keys before the queries of each text.
    """
    left, right = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    left, right = (None if one < 0 else one for one in (left, right))
    right = 0 if attributes.get("is_causal") else right
    padding = None if lengths is None else masks.padding(lengths)
    if left is None and right is None:
        return padding
    if lengths is None and past in (0, keys - queries):
        return masks.window(left, right, align="start" if past == 0 else "end")
    offset = torch.tensor([past]) if lengths is None else lengths - queries
    distance = torch.arange(keys) - (offset[:, None, None] + torch.arange(queries)[:, None])
    allowed = torch.ones_like(distance, dtype=torch.bool)
    allowed &= distance <= (keys if right is None else right)
    allowed &= distance >= (-keys - queries if left is None else -left)
    return _both(padding, masks.keep(allowed[:, None]))


def _split_mask(mask: Tensor | None, keys: int) -> tuple[Mask | None, Tensor | None]:
    """The mask of a tensor of bool, or of numbers that are added to the scores; and the finite ones as a bias."""
    if mask is None:
        return None, None
    mask = mask[(None,) * (4 - mask.dim())]
    is_bool = mask.dtype == torch.bool
    if mask.shape[-1] < keys:  # the keys that it does not have are hidden
        mask = torch.nn.functional.pad(mask, (0, keys - mask.shape[-1]), value=False if is_bool else -torch.inf)
    if is_bool:
        return masks.keep(mask), None
    allowed = mask > -torch.inf
    return None if allowed.all() else masks.keep(allowed), mask.masked_fill(~allowed, 0.0)
