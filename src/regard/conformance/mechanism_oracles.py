"""The oracle of each mechanism, by its name in the catalogue. A new catalogue row only needs an entry here.

An oracle is only the forward equation: it maps (query, key, value, allowed, parameters) in float64 to the output;
parameters, and buffers that are saved with them, have their names in the module. Gradients are derivatives of it by
complex steps (``oracles.complex_step``), so nothing is derived by hand. ``options`` are the options of the mechanism in
the catalogue that the oracle computes; they are small, since the cases are.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

import numpy as np

from regard.conformance.layout import Layout
from regard.conformance.oracles import (
    additive,
    attention,
    bigbird,
    differential,
    dsa,
    forgetting,
    gated_linear,
    linear,
    linformer,
    local_p,
    longformer,
    luong,
    moba,
    nsa,
    nystromformer,
    performer,
    reformer,
    retention,
    sigmoid,
    state_space,
    talking_heads,
    top_k,
)

Array = np.ndarray
Arrays = Mapping[str, np.ndarray]


@final
class Oracle(NamedTuple):
    """``forward(query, key, value, allowed, parameters)``, and the options of the mechanism that it checks.

    ``shapes`` are those of the parameters, and of the buffers that are saved with them, in a layout. A head of
    ``head_parts`` parts is as many times as large as in the layouts. ``is_fused``: except for "reference",
    the fused dot-product kernels compute it, which round the partial results of half precision too.
    """

    forward: Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Arrays], np.ndarray]
    options: Mapping[str, Any] = {}
    shapes: Callable[[Layout], Mapping[str, tuple[int, ...]]] = lambda layout: {}
    head_parts: int = 1
    is_fused: bool = False


_WINDOW = 3
_LANDMARKS, _ITERATIONS = 3, 5


def _dot_product(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    return attention.attention(query, key, value, allowed)[0]


def _additive(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    weights = parameters["query_weight"], parameters["key_weight"], parameters["score_vector"]
    return additive.attention(query, key, value, *weights, allowed)[0]


def _sigmoid(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    return sigmoid.attention(query, key, value, allowed)[0]


def _differential(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    weights = parameters["lambda_query"], parameters["lambda_key"]
    return differential.attention(query, key, value, *weights, depth=1, allowed=allowed)[0]


def _talking_heads(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    matrices = parameters["score_mixing"], parameters["weight_mixing"]
    return talking_heads.attention(query, key, value, *matrices, allowed)[0]


def _luong_dot(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    return luong.dot(query, key, value, allowed)[0]


def _luong_general(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    return luong.general(query, key, value, parameters["weight"], allowed)[0]


def _luong_concat(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    return luong.concat(query, key, value, parameters["weight"], parameters["score_vector"], allowed)[0]


def _local_p(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    weights = parameters["align.weight"], parameters["position_weight"], parameters["position_vector"]
    return local_p.attention(query, key, value, *weights, _WINDOW, allowed)[0]


def _linear(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    return linear.attention(query, key, value, allowed)[0]


def _linformer(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    weights = parameters["key_projection"], parameters["value_projection"]
    return linformer.attention(query, key, value, *weights, allowed)


_GLOBAL_TOKENS = (2,)


def _longformer(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    is_global = np.isin(np.arange(key.shape[2]), _GLOBAL_TOKENS)
    return longformer.attention(query, key, value, 4, np.tile(is_global, (query.shape[0], 1)), allowed)


_RANDOM_BLOCKS = ((3,), (5, 2), (0,), (), (6, 0), (1,), (4,))
"""For each block of 2 queries, the same in each head; an option lists as many for each, filled up with -1."""


def _bigbird(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    drawn = [_RANDOM_BLOCKS] * query.shape[1]
    return bigbird.attention(query, key, value, 2, 1, drawn, (0, 1), allowed)


def _forgetting(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    return forgetting.attention(query, key, value, parameters["forget"], allowed)


def _retention(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    return retention.attention(query, key, value, 1 - 2.0 ** (-5 - np.arange(query.shape[1])), allowed)


def _mamba2(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    weights = parameters["time_step"], parameters["log_rate"], parameters["step_bias"]
    return state_space.mamba2(query, key, value, *weights, allowed)


def _gated_delta(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    weights = parameters["beta"], parameters["decay"], parameters["log_rate"], parameters["decay_bias"]
    return state_space.gated_delta(query, key, value, *weights, allowed)


def _gated_linear(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    return gated_linear.attention(query, key, value, parameters["forget"], allowed)


def _performer(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    return performer.attention(query, key, value, parameters["projection"], allowed)[0]


_BUCKETS, _HASH_ROUNDS, _HASH_SEED = 4, 2, 5


def _reformer(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    rotations = reformer.draw_rotations(_HASH_SEED, query.shape[1], query.shape[3], _HASH_ROUNDS, _BUCKETS // 2)
    return reformer.attention(query, key, value, rotations, allowed)


def _nystromformer(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    return nystromformer.attention(query, key, value, _LANDMARKS, _ITERATIONS, allowed, parameters["convolution"])


_CHOSEN_KEYS = 3
_BLOCK, _CHOSEN_BLOCKS = 2, 3


def _top_k(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    return top_k.attention(query, key, value, _CHOSEN_KEYS, allowed)


def _moba(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    return moba.attention(query, key, value, _BLOCK, _CHOSEN_BLOCKS, allowed)


_NSA: dict[str, Any] = {"block": 4, "chosen_blocks": 3, "compressed_block": 4, "stride": 2, "window": 3}


def _nsa(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    logits = parameters["compression.key_logits"], parameters["compression.value_logits"]
    return nsa.attention(query, key, value, parameters["gate"], *logits, **_NSA, allowed=allowed)


def _dsa(query: Array, key: Array, value: Array, allowed: Array, parameters: Arrays) -> Array:
    inputs = parameters["index_query"], parameters["index_key"], parameters["index_weight"]
    return dsa.attention(query, key, value, *inputs, _CHOSEN_KEYS, allowed)


ORACLES: dict[str, Oracle] = {
    "dot_product": Oracle(_dot_product, is_fused=True),
    "additive": Oracle(
        _additive,
        shapes=lambda layout: {
            "query_weight": (layout.heads, layout.head_dim, layout.head_dim),
            "key_weight": (layout.heads, layout.head_dim, layout.head_dim),
            "score_vector": (layout.heads, layout.head_dim),
        },
    ),
    "luong_dot": Oracle(_luong_dot, is_fused=True),
    "luong_general": Oracle(
        _luong_general,
        shapes=lambda layout: {"weight": (layout.heads, layout.head_dim, layout.head_dim)},
        is_fused=True,
    ),
    "luong_concat": Oracle(
        _luong_concat,
        shapes=lambda layout: {
            "weight": (layout.heads, layout.head_dim, 2 * layout.head_dim),
            "score_vector": (layout.heads, layout.head_dim),
        },
    ),
    "local_p": Oracle(
        _local_p,
        {"window": _WINDOW},
        lambda layout: {
            "position_weight": (layout.heads, layout.head_dim, layout.head_dim),
            "position_vector": (layout.heads, layout.head_dim),
            "align.weight": (layout.heads, layout.head_dim, layout.head_dim),
        },
    ),
    "forgetting": Oracle(_forgetting, shapes=lambda layout: {"forget": (layout.batch, layout.heads, layout.keys, 1)}),
    "differential": Oracle(
        _differential,
        {"depth": 1},
        lambda layout: {"lambda_query": (2, layout.head_dim), "lambda_key": (2, layout.head_dim)},
        head_parts=2,
        is_fused=True,
    ),
    "talking_heads": Oracle(
        _talking_heads,
        shapes=lambda layout: {
            "score_mixing": (layout.heads, layout.heads),
            "weight_mixing": (layout.heads, layout.heads),
        },
    ),
    "sigmoid": Oracle(_sigmoid, is_fused=True),
    "linear": Oracle(_linear),
    "linformer": Oracle(
        _linformer,
        {"length": 17, "projected": 5},
        lambda layout: {"key_projection": (5, 17), "value_projection": (5, 17)},
    ),
    "longformer": Oracle(
        _longformer, {"window": 4, "global_tokens": _GLOBAL_TOKENS, "global_projections": False}, is_fused=True
    ),
    "bigbird": Oracle(
        _bigbird,
        {
            "block": 2,
            "window_blocks": 1,
            "random_blocks": [[[*drawn, -1, -1][:2] for drawn in _RANDOM_BLOCKS]],
            "global_blocks": [0],
        },
        is_fused=True,
    ),
    "retention": Oracle(_retention),
    "gated_linear": Oracle(
        _gated_linear, shapes=lambda layout: {"forget": (layout.batch, layout.heads, layout.keys, layout.head_dim)}
    ),
    "mamba2": Oracle(
        _mamba2,
        shapes=lambda layout: {
            "time_step": (layout.batch, layout.heads, layout.keys, 1),
            "log_rate": (layout.heads,),
            "step_bias": (layout.heads,),
        },
    ),
    "gated_delta": Oracle(
        _gated_delta,
        shapes=lambda layout: {
            "beta": (layout.batch, layout.heads, layout.keys, 1),
            "decay": (layout.batch, layout.heads, layout.keys, 1),
            "log_rate": (layout.heads,),
            "decay_bias": (layout.heads,),
        },
    ),
    "kda": Oracle(
        _gated_delta,
        shapes=lambda layout: {
            "beta": (layout.batch, layout.heads, layout.keys, 1),
            "decay": (layout.batch, layout.heads, layout.keys, layout.head_dim),
            "log_rate": (layout.heads,),
            "decay_bias": (layout.heads, layout.head_dim),
        },
    ),
    "reformer": Oracle(_reformer, {"buckets": _BUCKETS, "rounds": _HASH_ROUNDS, "seed": _HASH_SEED}, is_fused=True),
    "performer": Oracle(_performer, {"features": 11, "seed": 7}, lambda layout: {"projection": (11, layout.head_dim)}),
    "nystromformer": Oracle(
        _nystromformer,
        {"landmarks": _LANDMARKS, "iterations": _ITERATIONS, "convolution": 3},
        lambda layout: {"convolution": (layout.heads, 3)},
    ),
    "top_k": Oracle(_top_k, {"keys": _CHOSEN_KEYS}, is_fused=True),
    "moba": Oracle(_moba, {"block": _BLOCK, "chosen_blocks": _CHOSEN_BLOCKS}, is_fused=True),
    "nsa": Oracle(
        _nsa,
        _NSA,
        lambda layout: {
            "gate": (layout.batch, layout.heads, layout.queries, 3),
            "compression.key_logits": (4, layout.head_dim),
            "compression.value_logits": (4,),
        },
        is_fused=True,
    ),
    "dsa": Oracle(
        _dsa,
        {"keys": _CHOSEN_KEYS, "index_heads": 2, "index_dim": 3},
        lambda layout: {
            "index_query": (layout.batch, 2, layout.queries, 3),
            "index_key": (layout.batch, 1, layout.keys, 3),
            "index_weight": (layout.batch, 2, layout.queries, 1),
        },
        is_fused=True,
    ),
}
