"""The node tests of the package ``onnx``: the operator, its attributes, and its tensors of input and output by name.

``regard.conformance.onnx_cases`` reads them; here they are tensors of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.conformance import onnx_cases


@dataclass(frozen=True)
class OnnxCase:
    """A case of one operator; ``graphs`` are its attributes that are graphs, by name."""

    name: str
    attributes: Mapping[str, Any]
    graphs: Mapping[str, Any]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]


def read_cases(operator: str) -> list[OnnxCase]:
    """The cases whose model is one node of ``operator``."""
    return [
        OnnxCase(
            test.name,
            test.attributes,
            test.graphs,
            {name: _to_tensor(value) for name, value in test.inputs.items()},
            {name: _to_tensor(value) for name, value in test.outputs.items()},
        )
        for test in onnx_cases.read_node_tests(operator)
    ]


def run_graph(graph: Any, *inputs: Tensor) -> Tensor:
    """Run a graph with one output by the reference evaluator of the package."""
    return _to_tensor(onnx_cases.run_graph(graph, *(value.numpy() for value in inputs)))


def _to_tensor(value: Any) -> Tensor:
    if value.dtype.name == "bfloat16":  # of ml_dtypes, which torch does not know
        return torch.from_numpy(value.astype(np.float32)).bfloat16()
    return torch.from_numpy(np.array(value))
