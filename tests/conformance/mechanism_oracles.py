"""The oracle of each mechanism, by its name in the catalogue. A new catalogue row only needs an entry here.

An oracle is only the forward equation: it maps (query, key, value, allowed, parameters) in float64 to the output;
parameters have their names in the module. Gradients are derivatives of it by complex steps (``oracles.complex_step``),
so nothing is derived by hand. ``options`` are the mechanism's options in these tests, where the defaults are too large.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from oracles import additive, attention, linear, linformer, local_p, luong
from oracles.complex_step import slope

Arrays = Mapping[str, np.ndarray]


class Oracle(NamedTuple):
    """``forward(query, key, value, allowed, parameters)``, and the options of the mechanism that it checks."""

    forward: Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Arrays], np.ndarray]
    options: Mapping[str, Any] = {}


_WINDOW = 3


def _dot_product(query, key, value, allowed, parameters):
    return attention.attention(query, key, value, allowed)[0]


def _additive(query, key, value, allowed, parameters):
    weights = (parameters[name] for name in ("query_weight", "key_weight", "score_vector"))
    return additive.attention(query, key, value, *weights, allowed)[0]


def _luong_dot(query, key, value, allowed, parameters):
    return luong.dot(query, key, value, allowed)[0]


def _luong_general(query, key, value, allowed, parameters):
    return luong.general(query, key, value, parameters["weight"], allowed)[0]


def _luong_concat(query, key, value, allowed, parameters):
    return luong.concat(query, key, value, parameters["weight"], parameters["score_vector"], allowed)[0]


def _local_p(query, key, value, allowed, parameters):
    weights = (parameters[name] for name in ("align.weight", "position_weight", "position_vector"))
    return local_p.attention(query, key, value, *weights, _WINDOW, allowed)[0]


def _linear(query, key, value, allowed, parameters):
    return linear.attention(query, key, value, allowed)[0]


def _linformer(query, key, value, allowed, parameters):
    weights = (parameters[name] for name in ("key_projection", "value_projection"))
    return linformer.attention(query, key, value, *weights, allowed)


ORACLES: dict[str, Oracle] = {
    "dot_product": Oracle(_dot_product),
    "additive": Oracle(_additive),
    "luong_dot": Oracle(_luong_dot),
    "luong_general": Oracle(_luong_general),
    "luong_concat": Oracle(_luong_concat),
    "local_p": Oracle(_local_p, {"window": _WINDOW}),
    "linear": Oracle(_linear),
    "linformer": Oracle(_linformer, {"length": 17, "projected": 5}),
}


def directional_derivative(
    name: str, given: Arrays, allowed: np.ndarray, upstream: np.ndarray, of: str, along: np.ndarray
) -> float:
    """Derivative of sum(output * upstream) when ``of`` moves along ``along``: its gradient times that direction."""

    def weighted(moved: Arrays) -> np.ndarray:
        return ORACLES[name].forward(moved["query"], moved["key"], moved["value"], allowed, moved) * upstream

    return slope(weighted, given, of, along)
