"""Capture of what the layers of a model read, and of their projections to queries and keys, while it reads a text.

A layer is a ``MultiHeadAttention``, or a module with two linear projections of a name in ``_NAMES``, as most layers of
``transformers`` are. Its projections are kept if they give the recorded queries and keys: as they are, or with the
lengths that a rotation by position preserves. A layer that changes them in another way, such as by a norm, has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor, nn

from regard.layers.multi_head import MultiHeadAttention
from regard.layers.projection import is_plain_linear
from regard.view.attention_layer import AttentionLayer
from regard.view.layer_reading import LayerReading
from regard.view.projections import Projection, Projections

_NAMES = (("q_proj", "k_proj"), ("query", "key"), ("q_lin", "k_lin"), ("q", "k"))
"""Names of the two projections in layers of ``transformers``."""

CapturedSides: TypeAlias = dict[str, tuple[Tensor, nn.Module]]
"""The tokens (batch, tokens, width) that a layer read last for "query" and "key", and their projections."""


@contextmanager
def capture_projections(model: nn.Module) -> Iterator[Mapping[str, CapturedSides]]:
    """Capture the sides of every layer of ``model`` while the context is open, by the name of the layer."""
    captured: dict[str, CapturedSides] = {}
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, MultiHeadAttention):
                hook = module.register_forward_pre_hook(_make_layer_hook(captured, name), with_kwargs=True)
                stack.callback(hook.remove)
                continue
            for names in _NAMES:
                linears = [getattr(module, part, None) for part in names]
                if all(isinstance(linear, nn.Module) and is_plain_linear(linear) for linear in linears):
                    for side, linear in zip(("query", "key"), linears, strict=True):
                        assert linear is not None
                        hook = linear.register_forward_pre_hook(_make_linear_hook(captured, name, side))
                        stack.callback(hook.remove)
        yield captured


def add_projections(
    layers: Sequence[AttentionLayer], captured: Mapping[str, CapturedSides]
) -> tuple[AttentionLayer, ...]:
    """The layers with their projections, where these give their queries and keys."""
    return tuple(_add(layer, captured.get(layer.name, {})) for layer in layers)


def _add(layer: AttentionLayer, sides: CapturedSides) -> AttentionLayer:
    if not isinstance(layer, LayerReading) or len(sides) < 2:
        return layer
    tokens = {side: read[0].detach().float().cpu().numpy() for side, (read, _) in sides.items() if read.shape[0] == 1}
    if len(tokens) == 2 and sides["query"][0] is sides["key"][0]:
        tokens["key"] = tokens["query"]  # one array, which a page stores once
    heads = {"query": layer.query, "key": layer.key}
    made = {side: _project(tokens[side], sides[side][1], heads[side]) for side in tokens}
    query, key = made.get("query"), made.get("key")
    return layer if query is None or key is None else replace(layer, projections=Projections(query, key))


def _project(
    tokens: Float32[np.ndarray, "tokens width"], linear: Any, heads: Float32[np.ndarray, "heads tokens head_dim"]
) -> Projection | None:
    """The projection of one side; None if the vectors of the heads are no projections of the tokens."""
    count, length, head_dim = heads.shape
    own_heads = linear.out_features // head_dim
    if len(tokens) != length or own_heads == 0 or linear.out_features % head_dim or count % own_heads:
        return None
    weight, bias = linear.weight, linear.bias
    with torch.no_grad():
        rows = weight.float().cpu().numpy().reshape(own_heads, head_dim, -1)
        biases = np.zeros(rows.shape[:2], "f4") if bias is None else bias.float().cpu().numpy().reshape(own_heads, -1)
    rows, biases = (np.repeat(part, count // own_heads, axis=0) for part in (rows, biases))  # of grouped keys
    before = np.einsum("tw,hcw->htc", tokens, rows) + biases[:, None]
    limit = 1e-4 * max(1e-6, float(np.abs(heads).max()))
    is_same = bool(np.abs(before - heads).max() <= limit)
    lengths = [np.linalg.norm(vectors, axis=-1) for vectors in (before, heads)]
    if not is_same and np.abs(lengths[0] - lengths[1]).max() > head_dim**0.5 * limit:
        return None
    components = np.abs(before).mean(axis=1).argmax(axis=1)
    every = np.arange(count)
    return Projection(tokens, components, rows[every, components], biases[every, components], is_rotated=not is_same)


def _make_layer_hook(captured: dict[str, CapturedSides], name: str) -> Any:
    def capture(layer: MultiHeadAttention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments = dict(zip(("query", "key"), args, strict=False)) | kwargs
        query = arguments["query"]
        key = query if arguments.get("key") is None else arguments["key"]
        own = layer.query_projection if layer.key_projection is None else layer.key_projection
        if is_plain_linear(layer.query_projection) and is_plain_linear(own):
            captured[name] = {"query": (query, layer.query_projection), "key": (key, own)}

    return capture


def _make_linear_hook(captured: dict[str, CapturedSides], name: str, side: str) -> Any:
    def capture(linear: nn.Module, args: tuple[Any, ...]) -> None:
        captured.setdefault(name, {})[side] = (args[0], linear)

    return capture
