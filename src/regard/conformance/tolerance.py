"""Bounds of rounding errors, derived from the dtype and the lengths: an error above its bound is no rounding.

A kernel keeps its sums in a wide dtype of unit roundoff u (float32 for half precision, else the dtype itself) and may
round each partial result to its own dtype, with the relative error h (eps / 2 of half precision, else 0). The
constants beside the lengths count the other operations of a step. With n keys, m queries that read a key, head_dim d,
value_dim v, S the largest scale |q| . |k| and B the largest bias:

    e = (d + 8) u S + 3 u B + 2 h (S + B)              a score: d products, the factors, the bias, minus the maximum
    w = exp(2 e) - 1 + (n + 6) u + 2 h                 a weight, relatively: its exponential over the sum of n of them
    output    |V| (w + (n + 2) u + h)                  weights add up to at most 1; |V| is the largest visible value
    value     |U| C (w + (m + 2) u + 2 h)              U the gradient of the output, C a key's weights in sum
    scores    P A t,   t = 3 w + (n + 2 v + 12) u + 7 h    since dS = P (dP - D), with |dP| and |D| of at most A
    query     scale |K| A (t + 2 (n + 4) u + 4 h)      key likewise, with |Q|, C and m
    bias      A Cb (t + 2 (r + 4) u)                   of r scores that share a number of the bias, weights Cb in sum
    lse       e + (n + 4) u (1 + |lse|) + h |lse|

A is the largest sum of |U| over channels, times |V|. With dropout, |U| and |V| are divided by 1 - p. With a softcap c,
e gains 4 u c + h c, and t gains 4 e / c, since the slope of the cap is 1 - tanh^2. These are bounds to first order in
u, of the worst case.

Other mechanisms are compared with ``relative_bound``: results of L terms are within L u + r h of the largest one, where
r is the number of partial results that are rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from regard.conformance.oracles.attention import sum_to

if TYPE_CHECKING:
    from regard.conformance.cases import Case

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""The distance from 1 to the next number of each dtype."""


def is_half(dtype: str) -> bool:
    """Whether a dtype has 16 bits, so that kernels keep sums in float32."""
    return dtype in ("bfloat16", "float16")


def relative_bound(terms: int, dtype: str, roundings: int = 1) -> float:
    """The allowed error of a result of so many terms, relative to the largest number of the result."""
    wide = EPSILON["float32" if is_half(dtype) else dtype]
    return terms * wide + roundings * EPSILON[dtype] / 2


@final
@dataclass(frozen=True)
class Magnitudes:
    """The largest numbers that enter a call of attention: the capital letters of the bounds."""

    scale: float
    scores: float
    bias: float
    query: float
    key: float
    value: float
    upstream: float
    products: float
    received: float
    bias_received: float
    sink_received: float
    lse: float


def attention_bounds(case: Case, dtype: str) -> Mapping[str, float]:
    """The allowed error of each result of attention: output, lse, and gradients by the names of inputs."""
    unit, rounding = EPSILON["float32" if is_half(dtype) else dtype] / 2, EPSILON[dtype] / 2 if is_half(dtype) else 0.0
    layout, size = case.layout, measure_magnitudes(case)
    keys, readers, scale = layout.keys, layout.queries * layout.group, size.scale
    score = (layout.head_dim + 8) * unit * size.scores + 3 * unit * size.bias + 2 * rounding * (size.scores + size.bias)
    softcap = case.arguments.get("softcap")
    score += 0.0 if softcap is None else (4 * unit + rounding) * softcap
    weight = float(np.expm1(2 * score)) + (keys + 6) * unit + 2 * rounding
    slope = 3 * weight + (keys + 2 * layout.value_dim + 12) * unit + 7 * rounding
    slope += 0.0 if softcap is None else 4 * score / softcap
    of_queries = size.products * (slope + 2 * (keys + 4) * unit + 4 * rounding)
    of_keys = size.products * (slope + 2 * (readers + 4) * unit + 4 * rounding)
    of_sums = size.products * (slope + 2 * (layout.batch * layout.heads * layout.queries + 4) * unit + rounding)
    return {
        "output": size.value * (weight + (keys + 2) * unit + rounding),
        "lse": score + (keys + 4) * unit * (1 + size.lse) + rounding * size.lse,
        "value": size.upstream * size.received * (weight + (readers + 2) * unit + 2 * rounding),
        "query": scale * size.key * of_queries,
        "key": scale * size.query * size.received * of_keys,
        "bias": size.bias_received * of_sums,
        "sinks": size.sink_received * of_sums,
    }


def measure_magnitudes(case: Case) -> Magnitudes:
    """The magnitudes of a case; numbers that the mask hides are not among them."""
    arguments, layout, expected = case.arguments, case.layout, case.expected
    assert expected.weights is not None
    assert expected.lse is not None
    visible = np.broadcast_to(expected.allowed, expected.weights.shape)
    grouped = (layout.batch, layout.key_heads, layout.group, layout.queries, layout.keys)
    read = np.any(visible.reshape(grouped), axis=(2, 3), keepdims=True).reshape(*grouped[:2], -1, 1)
    query = np.where(visible.any(3, keepdims=True), np.abs(arguments["query"]), 0.0)
    key, value = (np.where(read, np.abs(arguments[name]), 0.0) for name in ("key", "value"))
    scale = abs(arguments.get("scale", 1 / np.sqrt(layout.head_dim)))
    bias = arguments.get("bias")
    shown = np.zeros(1) if bias is None else np.where(visible, np.abs(np.broadcast_to(bias, visible.shape)), 0.0)
    spread = np.repeat(key, layout.group, axis=1).swapaxes(2, 3)
    dropout = 1 / (1 - arguments.get("dropout", 0.0))
    return Magnitudes(
        scale=scale,
        scores=scale * float((query @ spread).max()),
        bias=float(shown.max()),
        query=float(query.max()),
        key=float(key.max()),
        value=float(value.max()) * dropout,
        upstream=float(np.abs(case.upstream).max()) * dropout,
        products=float(np.abs(case.upstream).sum(-1).max() * value.max()) * dropout,
        received=float(expected.weights.reshape(grouped).sum((2, 3)).max()),
        bias_received=1.0 if bias is None else float(sum_to(expected.weights, bias.shape).max()),
        sink_received=float((1 - expected.weights.sum(-1)).sum((0, 2)).max()),
        lse=float(np.abs(expected.lse[np.isfinite(expected.lse)]).max(initial=0.0)),
    )
