"""ONNX's own node tests of its operators of attention, as cases: their inputs, with exact results of ours.

The package ``onnx`` builds its tests when they are imported, which takes some twenty seconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, final

import numpy as np

from regard.conformance.attention_cases import EQUATION
from regard.conformance.cases import Case
from regard.conformance.equations import Equation, ScanEquation
from regard.conformance.layout import Layout
from regard.errors import MissingPackageError

OPERATORS = ("Attention", "FlexAttention", "LinearAttention")
"""Operators of attention."""
EXPANDED = "_expanded"
"""In the name of a test that spells another one in other operators."""


@final
@dataclass(frozen=True)
class NodeTest:
    """A test of one operator; ``graphs`` are its attributes that are graphs, by name.

    ``model`` is that operator alone, or the same computation in other operators.
    """

    name: str
    operator: str
    model: Any
    attributes: Mapping[str, Any]
    graphs: Mapping[str, Any]
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]

    @property
    def dtype(self) -> str:
        """The dtype of its queries."""
        return next(iter(self.inputs.values())).dtype.name

    @property
    def is_expanded(self) -> bool:
        """Whether its model is in other operators."""
        return EXPANDED in self.name

    @property
    def without_case(self) -> str:
        """Why it is no case of the kit; "" if it is one."""
        return "its prob_mod changes the weights after the softmax" if "prob_mod" in self.graphs else ""


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

        return tuple({test.name: test for test in collect_testcases()}.values())


def read_node_tests(*operators: str) -> Iterator[NodeTest]:
    """The tests whose model is one node of one of the operators."""
    for test in _collect():
        nodes = test.model.graph.node
        if len(nodes) == 1 and nodes[0].op_type in operators:
            yield _read_test(test)


def read_expanded_tests(tests: Iterator[NodeTest]) -> Iterator[NodeTest]:
    """Each test, and after it those that spell it in other operators."""
    expanded: dict[str, list[Any]] = {}
    for test in _collect():
        name, mark, _ = test.name.partition(EXPANDED)
        if mark:
            expanded.setdefault(name, []).append(test)
    for test in tests:
        yield test
        for other in expanded.get(test.name, ()):
            yield replace(test, name=other.name, model=other.model)


def _read_test(test: Any) -> NodeTest:
    import onnx

    graph = test.model.graph
    ((inputs, outputs),) = test.data_sets
    parts = graph.node[0].attribute
    graphs = {part.name: part.g for part in parts if part.type == onnx.AttributeProto.GRAPH}
    attributes = {part.name: onnx.helper.get_attribute_value(part) for part in parts if part.name not in graphs}
    named_inputs = {entry.name: np.asarray(value) for entry, value in zip(graph.input, inputs, strict=True)}
    named_outputs = {entry.name: np.asarray(value) for entry, value in zip(graph.output, outputs, strict=True)}
    return NodeTest(test.name, graph.node[0].op_type, test.model, attributes, graphs, named_inputs, named_outputs)


@cache
def onnx_cases(mechanism: str) -> tuple[Case, ...]:
    """The tests that are cases of exact attention, or of a mechanism of the scan family."""
    operators = ("Attention", "FlexAttention") if mechanism == "dot_product" else ("LinearAttention",)
    cases = [make_case(test) for test in read_node_tests(*operators) if not test.without_case]
    return tuple(case for case in cases if mechanism == _mechanism(case))


def describe_tests() -> Iterator[tuple[str, str]]:
    """Each test by its name, and whether it is a case."""
    for test in read_expanded_tests(read_node_tests(*OPERATORS)):
        note = test.without_case
        if note:
            note = f"not tried, since {note}"
        elif test.is_expanded:
            note = "the test before it in other operators, for runtimes alone"
        else:
            note = f"a case of {_mechanism(make_case(test))}"
        yield test.name.removeprefix("test_"), note


def make_case(test: NodeTest) -> Case:
    """A test as a case, which must be one."""
    makers = {"Attention": _attention_case, "FlexAttention": _flex_case, "LinearAttention": _scan_case}
    return makers[test.operator](test)


def _case(test: NodeTest, equation: Equation, arguments: dict[str, Any]) -> Case:
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    batch, heads, queries, head_dim = query.shape
    layout = Layout(batch, heads, key.shape[1], queries, key.shape[2], head_dim, value.shape[3])
    return Case(f"onnx: {test.name.removeprefix('test_')}", equation, layout, arguments)


def _attention_case(test: NodeTest) -> Case:
    """Keys of the past come first; masks, lengths and windows are one mask."""
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
    return _case(test, EQUATION, arguments | _mask_terms(allowed & given, bias))


def _mask_terms(allowed: np.ndarray, bias: np.ndarray | None) -> dict[str, np.ndarray]:
    """A mask and a bias as arguments, where they have an effect."""
    return {
        **({} if allowed.all() else {"mask": allowed}),
        **({} if bias is None else {"bias": bias}),
    }


def _flex_case(test: NodeTest) -> Case:
    """Its score_mod is a softcap, or adds numbers to the scores."""
    arguments: dict[str, Any] = {
        name: test.inputs[letter].astype(np.float64) for name, letter in (("query", "Q"), ("key", "K"), ("value", "V"))
    }
    arguments |= {"scale": float(test.attributes["scale"])} if test.attributes.get("scale") else {}
    if "score_mod" in test.graphs:
        shape = (*test.inputs["Q"].shape[:3], test.inputs["K"].shape[2])
        arguments |= _score_terms(test.graphs["score_mod"], shape, test.inputs["Q"].dtype)
    return _case(test, EQUATION, arguments)


def _score_terms(graph: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> dict[str, Any]:
    """The terms of the equation that a graph of scores computes: found by what it does to scores of a few values."""

    def modify(score: float) -> np.ndarray:
        return run_graph(graph, np.full(shape, score, dtype)).astype(np.float64)

    if [node.op_type for node in graph.node] == ["Div", "Tanh", "Mul"]:
        return {"softcap": float(modify(1e6).flat[0])}  # tanh is 1
    added = modify(0.0)
    assert np.array_equal(modify(0.5), added + 0.5), "the graph does more than to add numbers"
    allowed, bias = _split_mask(added, shape)
    return _mask_terms(allowed, bias)


def run_graph(graph: Any, *inputs: np.ndarray) -> np.ndarray:
    """Run a graph with one output by the reference evaluator of the package."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)])
    feeds = {entry.name: value for entry, value in zip(graph.input, inputs, strict=True)}
    (output,) = ReferenceEvaluator(model).run(None, feeds)
    return np.asarray(output)


def _scan_case(test: NodeTest) -> Case:
    """Keys, values, decays and rates are repeated for the heads of queries."""
    inputs, heads = test.inputs, test.attributes["q_num_heads"]
    key_heads = test.attributes["kv_num_heads"]
    query = split_heads(inputs["query"], heads)
    key, value = (_repeat_heads(split_heads(inputs[name], key_heads), heads) for name in ("key", "value"))
    arguments: dict[str, Any] = {"query": query, "key": key, "value": value}
    arguments["log_decay"] = np.zeros_like(key)
    if "decay" in inputs:  # of each channel, or of each head
        decays = split_heads(inputs["decay"], key_heads if inputs["decay"].shape[2] > 1 else 1)
        arguments["log_decay"] = _repeat_heads(decays, heads)
    if "beta" in inputs:
        arguments["beta"] = _repeat_heads(split_heads(inputs["beta"], inputs["beta"].shape[2]), heads)[..., 0]
    if "past_state" in inputs:
        arguments["state"] = _repeat_heads(inputs["past_state"].astype(np.float64), heads)
    arguments["scale"] = float(test.attributes.get("scale") or query.shape[3] ** -0.5)
    return _case(test, ScanEquation(), arguments)


def _mechanism(case: Case) -> str:
    """The mechanism whose kernels take the arguments of a case."""
    if case.equation is EQUATION:
        return "dot_product"
    of_channels, has_rate = case.arguments["log_decay"].shape[3] > 1, "beta" in case.arguments
    if has_rate:
        return "kda" if of_channels else "gated_delta"
    return "gated_linear" if of_channels else "mamba2"


def _repeat_heads(array: np.ndarray, heads: int) -> np.ndarray:
    return np.repeat(array, heads // array.shape[1], axis=1)


def expected_outputs(test: NodeTest, case: Case) -> Mapping[str, tuple[np.ndarray, float]]:
    """The exact outputs of a test by their names, each with its bound."""
    bounds = case.bounds(test.dtype)
    if test.operator == "LinearAttention":
        group = case.layout.heads // test.attributes["kv_num_heads"]
        assert case.expected.state is not None
        return {
            "output": (join_heads(case.expected.output), bounds["output"]),
            "present_state": (case.expected.state[:, ::group], bounds["state"]),
        }
    found = attention_outputs(case, test.attributes.get("qk_matmul_output_mode", 0), bounds)
    if test.attributes.get("q_num_heads"):
        found["Y"] = (join_heads(found["Y"][0]), found["Y"][1])
    return found


def attention_outputs(case: Case, mode: int, bounds: Mapping[str, float]) -> dict[str, tuple[np.ndarray, float]]:
    """The exact outputs of the operator Attention by their names, with bounds; Y has four dimensions."""
    return {
        "Y": (case.expected.output, bounds["output"]),
        "present_key": (case.arguments["key"], 0.0),
        "present_value": (case.arguments["value"], 0.0),
        "qk_matmul_output": _scores(case, mode, bounds),
    }


def _scores(case: Case, mode: int, bounds: Mapping[str, float]) -> tuple[np.ndarray, float]:
    """The exact ``qk_matmul_output`` of a mode, and its bound: products, with softcap, with masks too, or weights."""
    assert case.expected.weights is not None
    if mode == 3:
        return case.expected.weights, bounds["output"]
    layout, softcap, bias = case.layout, case.arguments.get("softcap"), case.arguments.get("bias", 0.0)
    key = np.repeat(case.arguments["key"], layout.group, axis=1)
    scores = case.arguments.get("scale", layout.head_dim**-0.5) * case.arguments["query"] @ key.swapaxes(2, 3)
    scores = scores if softcap is None or mode == 0 else softcap * np.tanh(scores / softcap)
    # The lse has the error of a score, and more roundings.
    return (np.where(case.expected.allowed, scores + bias, -np.inf) if mode == 2 else scores), bounds["lse"]


def split_heads(tokens: np.ndarray, heads: int | None) -> np.ndarray:
    """(batch, length, heads * size) to (batch, heads, length, size), in float64."""
    tokens = tokens.astype(np.float64)
    return tokens if heads is None else tokens.reshape(*tokens.shape[:2], heads, -1).swapaxes(1, 2)


def join_heads(tokens: np.ndarray) -> np.ndarray:
    """(batch, heads, length, size) to (batch, length, heads * size)."""
    return tokens.swapaxes(1, 2).reshape(tokens.shape[0], tokens.shape[2], -1)


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
