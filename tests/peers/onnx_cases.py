"""The node tests of the package ``onnx``: the operator, its attributes, and its tensors of input and output by name.

The package builds its cases when its modules are imported, which takes some twenty seconds, so they are read once.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class OnnxCase:
    """A case of one operator; ``graphs`` are its attributes that are graphs, by name."""

    name: str
    attributes: Mapping[str, Any]
    graphs: Mapping[str, Any]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]


@cache
def _read_all() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cases of other operators overflow on purpose
        from onnx.backend.test.case.node import collect_testcases

        return {one.name: one for one in collect_testcases()}


def read_cases(operator: str) -> list[OnnxCase]:
    """The cases whose model is one node of ``operator``; the others, "..._expanded", spell it in other operators."""
    import onnx

    cases = []
    for name, case in _read_all().items():
        graph = case.model.graph
        if len(graph.node) != 1 or graph.node[0].op_type != operator:
            continue
        ((inputs, outputs),) = case.data_sets
        graphs = {one.name: one.g for one in graph.node[0].attribute if one.type == onnx.AttributeProto.GRAPH}
        attributes = {
            one.name: onnx.helper.get_attribute_value(one) for one in graph.node[0].attribute if one.name not in graphs
        }
        cases.append(
            OnnxCase(
                name,
                attributes,
                graphs,
                {one.name: _to_tensor(value) for one, value in zip(graph.input, inputs, strict=True)},
                {one.name: _to_tensor(value) for one, value in zip(graph.output, outputs, strict=True)},
            )
        )
    return cases


def run_graph(graph: Any, *inputs: Tensor) -> Tensor:
    """Run a graph with one output by the reference evaluator of the package."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)])
    feeds = {one.name: value.numpy() for one, value in zip(graph.input, inputs, strict=True)}
    (output,) = ReferenceEvaluator(model).run(None, feeds)
    return torch.from_numpy(np.array(output))


def _to_tensor(value: Any) -> Tensor:
    if value.dtype.name == "bfloat16":  # of ml_dtypes, which torch does not know
        return torch.from_numpy(value.astype(np.float32)).bfloat16()
    return torch.from_numpy(np.array(value))
