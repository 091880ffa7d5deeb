"""JSON data of an attention layer on a page: the inputs of its weights, or the weights themselves.

All vectors of a page are stored in one encoding, the most precise one that fits (``pack``). A row of weights
is a vector like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32
from torch import Tensor

from regard.view.attention_layer import AttentionLayer
from regard.view.layer_reading import LayerReading
from regard.view.layer_weights import LayerWeights
from regard.view.pack import pack_bits, pack_fixed, pack_float32
from regard.view.window_reading import WindowReading

FLOAT32 = 0  # letters per number: stands for the encoding without rounding
MAX_WEIGHT_ERROR = 0.01  # largest error of a weight for which two letters per number are enough

Json = dict[str, Any]


def layer_data(layer: AttentionLayer, masks: list[str], letters: int) -> Json:
    """Encode one layer. ``masks`` are the masks of the earlier layers; the layer's own is appended if it is new."""
    match layer:
        case LayerReading():
            return _pack_steps(layer, masks, letters)
        case WindowReading():
            return _pack_vectors(layer, layer.scale, masks, letters) | {"table": _pack_rows(layer.table)}
        case LayerWeights():
            return _pack_weights(layer, letters)
    raise TypeError(f"no form on a page for {type(layer).__name__}")


def choose_encoding(layers: Sequence[AttentionLayer], room: int) -> tuple[int, float]:
    """Choose the letters per number, and return them with the largest error of a weight.

    Float32 if it fits into ``room`` characters, else three letters. If three letters do not fit, two, unless a weight
    would then be off by more than ``MAX_WEIGHT_ERROR``, as with very large scores.
    """
    numbers = sum(layer.size for layer in layers)
    if numbers * 16 // 3 <= room:
        return FLOAT32, 0.0
    error = _largest_error(layers, 2) if numbers * 3 > room else np.inf
    return (2, error) if error <= MAX_WEIGHT_ERROR else (3, _largest_error(layers, 3))


def _largest_error(layers: Sequence[AttentionLayer], letters: int) -> float:
    """Largest change of any weight through rounding."""
    largest = 0.0
    for layer in layers:
        rounded = layer.round_for_page(letters)
        for change, weights in zip(rounded.by_head(), layer.by_head(), strict=True):
            change -= weights
            largest = max(largest, float(change.max(initial=0.0)), -float(change.min(initial=0.0)))
    return largest


def _pack_vectors(layer: LayerReading | WindowReading, scale: float, masks: list[str], letters: int) -> Json:
    return {
        "name": layer.name,
        "scale": scale,
        "head_dim": int(layer.query.shape[2]),
        "value_dim": int(layer.value.shape[2]),
        "query": _pack_heads(np.asarray(layer.query), letters),
        "key": _pack_heads(np.asarray(layer.key), letters),
        "value": _pack_heads(layer.value.numpy(), letters),
        "mask": None if layer.allowed is None else _add_mask(np.asarray(layer.allowed), masks),
    }


def _pack_steps(layer: LayerReading, masks: list[str], letters: int) -> Json:
    packed = _pack_vectors(layer, layer.steps.scale, masks, letters)
    # One row per head, always exact: they are few.
    gate, relative = layer.steps.gate, layer.relative_vectors
    if layer.steps.vector is not None:
        packed["vector"] = _pack_rows(layer.steps.vector)
    if layer.bias is not None:
        packed["bias"] = _pack_rows(layer.bias)
    if gate is not None:
        packed["gaussian"] = {"centre": _pack_rows(gate.centre[0]), "deviation": gate.deviation}
    if relative is not None:
        packed["relative"] = {
            "key": _pack_heads(relative.key.numpy(), letters),
            "value": None if relative.value is None else pack_float32(relative.value.numpy()),
            "most": relative.key.shape[1] // 2,
        }
    return packed


def _pack_rows(rows: Float32[Tensor, "heads numbers"]) -> list[str]:
    """Encode a row of each head exactly."""
    return [pack_float32(row[None]) for row in rows.numpy()]


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
