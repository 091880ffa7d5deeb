"""ONNX's own node tests of the operator Attention, as cases: their inputs and attributes, with exact results of ours.

The package ``onnx`` builds its tests when they are imported, which takes some twenty seconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import numpy as np

from regard.conformance.attention_cases import EQUATION
from regard.conformance.cases import Case
from regard.conformance.layout import Layout
from regard.errors import MissingPackageError


@final
@dataclass(frozen=True)
class NodeTest:
    """A test of one operator; ``graphs`` are its attributes that are graphs, by name."""

    name: str
    attributes: Mapping[str, Any]
    graphs: Mapping[str, Any]
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]


@cache
def _collect() -> tuple[Any, ...]:
    try:
        import onnx
    except ImportError as error:
        raise MissingPackageError("the tests of ONNX come with the package onnx", do="pip install onnx") from error
    assert onnx
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tests of other operators overflow on purpose
        from onnx.backend.test.case.node import collect_testcases

        return tuple(collect_testcases())


def read_node_tests(operator: str) -> Iterator[NodeTest]:
    """The tests whose model is one node of ``operator``; the others, "..._expanded", spell it in other operators."""
    tests = _collect()
    import onnx

    for test in {test.name: test for test in tests}.values():
        graph = test.model.graph
        if len(graph.node) != 1 or graph.node[0].op_type != operator:
            continue
        ((inputs, outputs),) = test.data_sets
        parts = graph.node[0].attribute
        graphs = {part.name: part.g for part in parts if part.type == onnx.AttributeProto.GRAPH}
        attributes = {part.name: onnx.helper.get_attribute_value(part) for part in parts if part.name not in graphs}
        named_inputs = {entry.name: np.asarray(value) for entry, value in zip(graph.input, inputs, strict=True)}
        named_outputs = {entry.name: np.asarray(value) for entry, value in zip(graph.output, outputs, strict=True)}
        yield NodeTest(test.name, attributes, graphs, named_inputs, named_outputs)


@cache
def onnx_attention_cases() -> tuple[Case, ...]:
    """The tests of Attention: keys of the past come first; masks, lengths and windows are one mask."""
    return tuple(make_case(test) for test in read_node_tests("Attention"))


def make_case(test: NodeTest) -> Case:
    """A test as a case."""
    inputs, attributes = test.inputs, test.attributes
    query = split_heads(inputs["Q"], attributes.get("q_num_heads"))
    key, value = (split_heads(inputs[name], attributes.get("kv_num_heads")) for name in "KV")
    past = 0
    if "past_key" in inputs:
        past = inputs["past_key"].shape[2]
        key, value = (
            np.concatenate([inputs[name].astype(np.float64), array], 2)
            for name, array in (("past_key", key), ("past_value", value))
        )
    arguments: dict[str, Any] = {"query": query, "key": key, "value": value}
    arguments |= {name: float(attributes[name]) for name in ("scale", "softcap") if attributes.get(name)}
    shape = (*query.shape[:3], key.shape[2])
    allowed = position_mask(attributes, inputs.get("nonpad_kv_seqlen"), shape, past)
    given, bias = _split_mask(inputs.get("attn_mask"), shape)
    allowed = allowed & given
    if not allowed.all():
        arguments["mask"] = allowed
    if bias is not None:
        arguments["bias"] = bias
    batch, heads, queries, head_dim = query.shape
    layout = Layout(batch, heads, key.shape[1], queries, key.shape[2], head_dim, value.shape[3])
    return Case(f"onnx: {test.name.removeprefix('test_')}", EQUATION, layout, arguments)


def split_heads(tokens: np.ndarray, heads: int | None) -> np.ndarray:
    """(batch, length, heads * size) to (batch, heads, length, size), in float64."""
    tokens = tokens.astype(np.float64)
    return tokens if heads is None else tokens.reshape(*tokens.shape[:2], heads, -1).swapaxes(1, 2)


def position_mask(
    attributes: Mapping[str, Any], lengths: np.ndarray | None, shape: tuple[int, ...], past: int
) -> np.ndarray:
    """Causal mask, window and padding of all pairs. Query i is at the position offset + i.

    The offset is the length of the past, or with padded keys the number of keys before the queries of each text.
    """
    _, _, queries, keys = shape
    left, right = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    right = 0 if attributes.get("is_causal") else right
    offset = np.array([past]) if lengths is None else lengths - queries
    distance = np.arange(keys) - (offset[:, None, None, None] + np.arange(queries)[:, None])
    allowed = np.ones(shape, dtype=bool)
    if lengths is not None:
        allowed &= np.arange(keys) < lengths[:, None, None, None]
    if left >= 0:
        allowed &= distance >= -left
    if right >= 0:
        allowed &= distance <= right
    return allowed


def _split_mask(mask: np.ndarray | None, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray | None]:
    """The mask of an array of bool, or of numbers that are added to the scores; and the finite ones as a bias."""
    if mask is None:
        return np.ones(shape, dtype=bool), None
    is_bool = mask.dtype == np.bool_
    mask = (mask if is_bool else mask.astype(np.float64)).reshape((1,) * (4 - mask.ndim) + mask.shape)
    missing = shape[3] - mask.shape[3]  # the keys that it does not have are hidden
    if missing > 0:
        mask = np.pad(mask, [(0, 0)] * 3 + [(0, missing)], constant_values=False if is_bool else -np.inf)
    if is_bool:
        return np.broadcast_to(mask, shape), None
    allowed = mask > -np.inf
    return np.broadcast_to(allowed, shape), np.where(allowed, mask, 0.0)
