"""Capture of what the layers of a model read, and of their projections to queries and keys, while it reads.

A layer is a ``MultiHeadAttention``, or a module named attention with linear projections of its own, as most layers of
``transformers`` are. Which rows of which projection make a head is found by comparing products with the recorded
queries and keys, so fused projections need no table of their layouts. A projection is kept if it gives them: as they
are, or with the lengths that a rotation by position preserves, or times a factor of the scale; or if it gives what
a norm of the layer reads, and the norm gives them. A layer that changes them in another way has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float32, Int
from torch import Tensor, nn

from regard.layers.multi_head import MultiHeadAttention
from regard.layers.quantized_linear import QuantizedLinear
from regard.view.attention_layer import AttentionLayer
from regard.view.layer_reading import LayerReading
from regard.view.projections import Projection, Projections
from regard.view.window_reading import WindowReading

_TOLERANCE, _TOLERANCE_OF_FEW_BITS = 1e-4, 3e-2
"""Largest difference between numbers that count as the same, in shares of the largest; the second is for weights of few
bits, whose kernels round tokens to bytes, too.
"""


@final
@dataclass(eq=False)
class CapturedLayer:
    """Tensors of the last call of a layer: the tokens (batch, tokens, width) that each projection read, and what each
    norm read and returned. ``reads`` are the addresses of the tensors that the layer was called with.
    """

    reads: set[int] = field(default_factory=set)
    linears: list[tuple[Tensor, nn.Module]] = field(default_factory=list)
    norms: list[tuple[Tensor, Tensor]] = field(default_factory=list)


@contextmanager
def capture_projections(model: nn.Module) -> Iterator[Mapping[str, CapturedLayer]]:
    """Capture the projections of every layer of ``model`` while the context is open, by the name of the layer."""
    captured: dict[str, CapturedLayer] = {}
    with ExitStack() as stack:
        for name, module in model.named_modules():
            is_own = isinstance(module, MultiHeadAttention)
            if not is_own and "attention" not in type(module).__name__.lower():
                continue
            layer = captured[name] = CapturedLayer()
            before = _make_own_hook(layer) if is_own else _make_call_hook(layer)
            hooks = [module.register_forward_pre_hook(before, with_kwargs=True)]
            for child in module.children():
                if not is_own and _matrix_of(child) is not None:
                    hooks.append(child.register_forward_pre_hook(_make_linear_hook(layer)))
                elif "norm" in type(child).__name__.lower():
                    hooks.append(child.register_forward_hook(_make_norm_hook(layer)))
            for hook in hooks:
                stack.callback(hook.remove)
            if isinstance(module, MultiHeadAttention):
                stack.enter_context(_capture_memory(module, layer))
        yield captured


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


def _make_own_hook(captured: CapturedLayer) -> Any:
    def capture(layer: MultiHeadAttention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments = dict(zip(("query", "key"), args, strict=False)) | kwargs
        query = arguments["query"]
        key = query if arguments.get("key") is None else arguments["key"]
        own = layer.query_projection if layer.key_projection is None else layer.key_projection
        captured.linears, captured.norms = [(query, layer.query_projection), (key, own)], []

    return capture


@contextmanager
def _capture_memory(layer: MultiHeadAttention, captured: CapturedLayer) -> Iterator[None]:
    """Capture the two calls of cross-attention whose keys are made once: ``project_memory`` and ``attend_memory``."""
    project, attend = layer.project_memory, layer.attend_memory
    keys: list[tuple[Tensor, nn.Module]] = []

    def project_memory(memory: Tensor) -> Any:
        keys[:] = [(memory, layer.query_projection if layer.key_projection is None else layer.key_projection)]
        return project(memory)

    def attend_memory(query: Tensor, *args: Any, **kwargs: Any) -> Any:
        captured.linears, captured.norms = [(query, layer.query_projection), *keys], []
        return attend(query, *args, **kwargs)

    replaced = {"project_memory": project_memory, "attend_memory": attend_memory}
    for name, method in replaced.items():
        setattr(layer, name, method)
    try:
        yield
    finally:
        for name in replaced:
            delattr(layer, name)


def _make_call_hook(captured: CapturedLayer) -> Any:
    def capture(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del layer
        captured.reads = {part.data_ptr() for part in (*args, *kwargs.values()) if isinstance(part, Tensor)}
        captured.linears, captured.norms = [], []

    return capture


def _make_linear_hook(captured: CapturedLayer) -> Any:
    def capture(linear: nn.Module, args: tuple[Any, ...]) -> None:
        if args[0].data_ptr() in captured.reads:  # not what another projection made
            captured.linears.append((args[0], linear))

    return capture


def _make_norm_hook(captured: CapturedLayer) -> Any:
    def capture(norm: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        del norm
        if isinstance(output, Tensor):
            captured.norms.append((args[0], output))

    return capture
