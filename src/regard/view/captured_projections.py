"""Projections of queries and keys, found in what the layers of a model read (``recording.captured_inputs``).

Which rows of which projection make a head is found by comparing products with the recorded
queries and keys, so fused projections need no table of their layouts. A projection is kept if it gives them: as they
are, or with the lengths that a rotation by position preserves, or times a factor of the scale; or if it gives what
a norm of the layer reads, and the norm gives them. A layer that changes them in another way has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float32, Int
from torch import Tensor, nn

from regard.layers.quantized_linear import QuantizedLinear
from regard.recording.captured_inputs import CapturedLayer
from regard.view.attention_layer import AttentionLayer
from regard.view.layer_reading import LayerReading
from regard.view.projections import Projection, Projections
from regard.view.window_reading import WindowReading

_TOLERANCE, _TOLERANCE_OF_FEW_BITS = 1e-4, 3e-2
"""Largest difference between numbers that count as the same, in shares of the largest; the second is for weights of few
bits, whose kernels round tokens to bytes, too.
"""


def add_projections(
    layers: Sequence[AttentionLayer], captured: Mapping[str, CapturedLayer]
) -> tuple[AttentionLayer, ...]:
    """The layers with their projections, where these give their queries and keys."""
    return tuple(_add(layer, captured.get(layer.name, CapturedLayer())) for layer in layers)


def _add(layer: AttentionLayer, captured: CapturedLayer) -> AttentionLayer:
    if not isinstance(layer, LayerReading | WindowReading):
        return layer
    found: dict[str, Projection] = {}
    arrays: dict[tuple[int, bytes], Float32[np.ndarray, "_tokens _width"]] = {}  # shared ones stand on a page once
    for side, heads in (("query", np.asarray(layer.query)), ("key", np.asarray(layer.key))):
        places = _places_of(layer, side)
        for tokens, linear in captured.linears:
            if tokens.dim() != 3 or tokens.shape[:2] != places.shape:
                continue
            name = (tokens.data_ptr(), places.numpy().tobytes())
            if name not in arrays:
                arrays[name] = _arrange(tokens, places, heads.shape[1])
            projection = _find_projection(arrays[name], linear, captured.norms, heads)
            if projection is not None:
                found[side] = projection
                break
    return replace(layer, projections=Projections(**found)) if len(found) == 2 else layer


def _places_of(layer: LayerReading | WindowReading, side: str) -> Int[Tensor, "batch tokens"]:
    """The places of the queries or the keys of a layer in what it reads, which are windows of a picture or one text."""
    if isinstance(layer, LayerReading):
        return torch.arange(layer.queries if side == "query" else layer.keys)[None]
    return layer.windows.cells if side == "query" else layer.windows.slots


def _arrange(tokens: Tensor, places: Int[Tensor, "batch tokens"], count: int) -> Float32[np.ndarray, "count width"]:
    """Tokens (batch, tokens, width) by their places; those at -1 fill a window."""
    arranged = tokens.new_zeros(count, tokens.shape[2])
    arranged[places[places >= 0]] = tokens[places >= 0]
    return _to_array(arranged)


def _find_projection(
    tokens: Float32[np.ndarray, "_read width"],
    linear: nn.Module,
    norms: Sequence[tuple[Tensor, Tensor]],
    heads: Float32[np.ndarray, "heads tokens head_dim"],
) -> Projection | None:
    """The rows of a projection that make the vectors of the heads; None if none do."""
    matrix = _matrix_of(linear)
    _, length, head_dim = heads.shape
    if matrix is None or len(tokens) != length or matrix[0].shape[1] != tokens.shape[1] or len(matrix[0]) % head_dim:
        return None
    rows, biases = (part.reshape(-1, head_dim, *part.shape[1:]) for part in matrix)
    before = np.einsum("tw,bcw->btc", tokens, rows, optimize=True) + biases[:, None]
    is_rounded = isinstance(linear, QuantizedLinear)
    limit = _limit(heads, _TOLERANCE_OF_FEW_BITS if is_rounded else _TOLERANCE)
    factor, blocks, after = 1.0, _match(before, heads, limit), None
    if blocks is None:
        blocks, after = _match_through_norm(before, norms, heads)
    for scale in (head_dim**-0.5, head_dim**-0.25):  # queries are scaled before the product, or both sides
        if blocks is None:
            factor, blocks = scale, _match(scale * before, heads, limit)
    if blocks is None:
        return None
    components = np.abs(before[blocks]).mean(axis=1).argmax(axis=1)
    every = np.arange(len(heads))
    is_same = bool(np.abs((factor * before[blocks] if after is None else after) - heads).max() <= limit)
    return Projection(
        tokens,
        components,
        rows[blocks, components],
        biases[blocks, components],
        is_rotated=not is_same,
        normed=None if after is None else after[every, :, components],
        factor=factor,
        is_rounded=is_rounded,
    )


def _match_through_norm(
    before: Float32[np.ndarray, "blocks tokens head_dim"],
    norms: Sequence[tuple[Tensor, Tensor]],
    heads: Float32[np.ndarray, "heads tokens head_dim"],
) -> tuple[Int[np.ndarray, " heads"] | None, Float32[np.ndarray, "heads tokens head_dim"] | None]:
    """The block of each head that a norm read, and what it made of it; None where no norm gives the heads."""
    for tensors in norms:
        read, returned = (_split_heads(tensor, *heads.shape[1:]) for tensor in tensors)
        if read is None or returned is None:
            continue
        of_norm, of_blocks = _match(returned, heads, _limit(heads)), _match(before, read, _limit(read), exact=True)
        if of_norm is not None and of_blocks is not None:
            return of_blocks[of_norm], returned[of_norm]
    return None, None


def _match(
    blocks: Float32[np.ndarray, "blocks tokens head_dim"],
    heads: Float32[np.ndarray, "heads tokens head_dim"],
    limit: float,
    *,
    exact: bool = False,
) -> Int[np.ndarray, " heads"] | None:
    """For each head the block with the same vectors, or unless ``exact`` with vectors of the same lengths."""
    lengths, of_heads = (np.linalg.norm(part, axis=-1) for part in (blocks, heads))
    nearest = np.abs(lengths[None] - of_heads[:, None]).max(axis=-1).argmin(axis=1)
    is_same = np.abs(blocks[nearest] - heads).max() <= limit
    is_rotated = np.abs(lengths[nearest] - of_heads).max() <= heads.shape[2] ** 0.5 * limit
    return nearest if is_same or (is_rotated and not exact) else None


def _limit(heads: Float32[np.ndarray, "heads tokens head_dim"], tolerance: float = _TOLERANCE) -> float:
    return tolerance * max(1e-6, float(np.abs(heads).max(initial=0.0)))


def _split_heads(part: Tensor, length: int, head_dim: int) -> Float32[np.ndarray, "heads tokens head_dim"] | None:
    """Split what a norm read or returned into heads; None if it is not of one text."""
    if part.shape[0] != 1 or part.numel() % (length * head_dim):
        return None
    array = _to_array(part[0])
    if array.ndim == 3 and array.shape[1] == length and array.shape[0] != length:
        return array  # (heads, tokens, head_dim)
    return array.reshape(length, -1, head_dim).transpose(1, 0, 2)


def _matrix_of(linear: nn.Module) -> tuple[Float32[np.ndarray, "out width"], Float32[np.ndarray, " out"]] | None:
    """Matrix and bias of a module that has some, which may be quantized or transposed (``Conv1D`` of ``transformers``).

    None for other modules. Whether the module multiplies by them is found by comparing its results.
    """
    weight, bias = getattr(linear, "weight", None), getattr(linear, "bias", None)
    if isinstance(linear, QuantizedLinear):
        weight = linear.dense_weight()
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return None
    matrix = _to_array(weight.mT if type(linear).__name__ == "Conv1D" else weight)
    return matrix, np.zeros(len(matrix), "f4") if bias is None else _to_array(bias)


def _to_array(tensor: Tensor) -> Float32[np.ndarray, "..."]:
    return np.asarray(tensor.detach().float().cpu().numpy())
