"""What a page carries of an attention layer, as JSON: what its weights are computed from, or the weights themselves.

All vectors of a page are stored in one encoding, the finest that fits in the room for them (``pack``). A row of weights
is a vector like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32

from regard.view.attention_layer import AttentionLayer
from regard.view.layer_reading import LayerReading
from regard.view.layer_weights import LayerWeights
from regard.view.pack import pack_bits, pack_fixed, pack_float32

FLOAT32 = 0  # letters a number, for the encoding without rounding
MAX_WEIGHT_ERROR = 0.01  # of a weight, beyond which two letters a number are too few

Json = dict[str, Any]


def layer_data(layer: AttentionLayer, masks: list[str], letters: int) -> Json:
    """One layer. ``masks`` are those of the layers before it, to which its own is added unless it is there."""
    match layer:
        case LayerReading():
            return _pack_steps(layer, masks, letters)
        case LayerWeights():
            return _pack_weights(layer, letters)
    raise TypeError(f"no form on a page for {type(layer).__name__}")


def choose_encoding(layers: Sequence[AttentionLayer], room: int) -> tuple[int, float]:
    """Letters a number, and the largest error that makes in a weight.

    The finest encoding that fits in the room; beyond it the coarsest, unless weights would then not be those of the
    model, as where scores are very large.
    """
    numbers = sum(layer.size for layer in layers)
    if numbers * 16 // 3 <= room:
        return FLOAT32, 0.0
    error = _largest_error(layers, 2) if numbers * 3 > room else np.inf
    return (2, error) if error <= MAX_WEIGHT_ERROR else (3, _largest_error(layers, 3))


def _largest_error(layers: Sequence[AttentionLayer], letters: int) -> float:
    """The largest difference that rounding makes to any weight."""
    errors = (np.abs(layer.round_for_page(letters).weights() - layer.weights()).max(initial=0.0) for layer in layers)
    return max(map(float, errors), default=0.0)


def _pack_steps(layer: LayerReading, masks: list[str], letters: int) -> Json:
    packed: Json = {
        "name": layer.name,
        "scale": layer.scale,
        "head_dim": int(layer.query.shape[2]),
        "value_dim": int(layer.value.shape[2]),
        "query": _pack_heads(layer.query, letters),
        "key": _pack_heads(layer.key, letters),
        "value": _pack_heads(layer.value, letters),
        "mask": None if layer.allowed is None else _add_mask(layer.allowed, masks),
    }
    # One row a head, and always exact: they are few.
    if layer.vector is not None:
        packed["vector"] = [pack_float32(head[None]) for head in layer.vector]
    if layer.bias is not None:
        packed["bias"] = [pack_float32(head[None]) for head in layer.bias]
    if layer.gaussian_window is not None:
        packed["bell"] = {
            "centre": [pack_float32(head[None]) for head in layer.gaussian_window.centre],
            "deviation": layer.gaussian_window.deviation,
        }
    if layer.relative_vectors is not None:
        value = layer.relative_vectors.value
        packed["relative"] = {
            "key": pack_float32(layer.relative_vectors.key),
            "value": None if value is None else pack_float32(value),
            "most": len(layer.relative_vectors.key) // 2,
        }
    return packed


def _pack_weights(layer: LayerWeights, letters: int) -> Json:
    return {
        "name": layer.name,
        "weights": _pack_heads(layer.matrices, letters),
        "weights_are": layer.weights_are,
        "largest": float(np.abs(layer.matrices).max(initial=0.0)),
        "reason": layer.reason,
    }


def _pack_heads(heads: Float32[np.ndarray, "heads tokens size"], letters: int) -> list[str]:
    return [pack_fixed(head, letters) if letters else pack_float32(head) for head in heads]


def _add_mask(allowed: Bool[np.ndarray, "queries keys"], masks: list[str]) -> int:
    packed = pack_bits(allowed)
    if packed not in masks:
        masks.append(packed)
    return masks.index(packed)
