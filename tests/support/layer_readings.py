"""Attention layers of readings from arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from regard import masks
from regard.mechanisms.steps import Gaussian, Steps
from regard.view import LayerReading
from regard.view.layer_reading import RelativeVectors

Array = Any


def layer_reading(
    name: str,
    query: Array,
    key: Array,
    value: Array,
    scale: float,
    allowed: Array = None,
    *,
    vector: Array = None,
    bias: Array = None,
    centre: Array = None,
    deviation: float = 1.5,
    relative_vectors: RelativeVectors | None = None,
) -> LayerReading:
    """Make a layer of queries, keys and values (heads, length, head_dim), and of what its scores have beside them."""
    query, key, value, vector, bias, centre = map(to_tensor, (query, key, value, vector, bias, centre))
    mask = None if allowed is None else masks.keep(torch.as_tensor(allowed)[None, None])
    gate = None if centre is None else Gaussian(centre[None], deviation)
    return LayerReading(name, Steps(query[None], key[None], mask, scale, vector, gate), value, bias, relative_vectors)


def with_vectors(layer: LayerReading, query: Array, key: Array) -> LayerReading:
    """The layer with other queries and keys."""
    return replace(layer, steps=replace(layer.steps, query=to_tensor(query)[None], key=to_tensor(key)[None]))


def relative_vectors(key: Array, value: Array = None) -> RelativeVectors:
    """Vectors by distance from arrays."""
    return RelativeVectors(to_tensor(key), to_tensor(value))


def to_tensor(array: Array) -> Any:
    """The array as a tensor; None stays."""
    return None if array is None else torch.as_tensor(np.ascontiguousarray(array))
