"""The oracle of each mechanism, under its name in the catalogue. A new row needs one here; the rest follows.

Each takes (query, key, value, allowed, parameters) in float64, parameters by their names in the module, and gives the
output. Gradients are the hand-derived ones of the dot product and of additive attention, and two that follow from them:
luong_general is the dot product of the queries q W, and luong_concat is additive attention with W cut in two.
"""

from collections.abc import Callable

import numpy as np

from oracles import additive, attention, luong

Parameters = dict[str, np.ndarray]
Forward = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Parameters], np.ndarray]


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


FORWARD: dict[str, Forward] = {
    "dot_product": _dot_product,
    "additive": _additive,
    "luong_dot": _luong_dot,
    "luong_general": _luong_general,
    "luong_concat": _luong_concat,
}


def gradients(name, query, key, value, allowed, parameters, upstream) -> dict[str, np.ndarray]:
    """Of sum(output * upstream), by name: query, key, value, and each parameter."""
    return BACKWARD[name](query, key, value, allowed, parameters, upstream)


def _dot_product_backward(query, key, value, allowed, parameters, upstream, scale=None):
    found = attention.backward(query, key, value, upstream, allowed, scale=scale)
    return {"query": found.query, "key": found.key, "value": found.value}


def _luong_dot_backward(query, key, value, allowed, parameters, upstream):
    return _dot_product_backward(query, key, value, allowed, parameters, upstream, scale=1.0)


def _luong_general_backward(query, key, value, allowed, parameters, upstream):
    weight = parameters["weight"]
    found = _luong_dot_backward(np.einsum("bhid,hde->bhie", query, weight), key, value, allowed, {}, upstream)
    of_weight = np.einsum("bhid,bhie->hde", query, found["query"])
    return {**found, "query": np.einsum("bhie,hde->bhid", found["query"], weight), "weight": of_weight}


def _additive_backward(query, key, value, allowed, parameters, upstream):
    names = ("query_weight", "key_weight", "score_vector")
    found = additive.backward(query, key, value, *(parameters[part] for part in names), upstream, allowed)
    return dict(zip(("query", "key", "value", *names), found, strict=True))


def _luong_concat_backward(query, key, value, allowed, parameters, upstream):
    of_query, of_key = np.split(parameters["weight"], 2, axis=-1)
    cut = {"query_weight": of_query, "key_weight": of_key, "score_vector": parameters["score_vector"]}
    found = _additive_backward(query, key, value, allowed, cut, upstream)
    weight = np.concatenate([found.pop("query_weight"), found.pop("key_weight")], axis=-1)
    return {**found, "weight": weight}


BACKWARD = {
    "dot_product": _dot_product_backward,
    "additive": _additive_backward,
    "luong_dot": _luong_dot_backward,
    "luong_general": _luong_general_backward,
    "luong_concat": _luong_concat_backward,
}
