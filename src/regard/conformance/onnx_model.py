"""Check a model of ONNX that is one node of the operator Attention: its attributes fix terms of the equation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from regard.conformance.checking import Progress, check
from regard.conformance.report import Report
from regard.errors import CheckpointError, MissingPackageError, OptionError, class_and_line

INPUTS = {"Q": "query", "K": "key", "V": "value", "attn_mask": "mask"}


def check_onnx_model(path: Path, *, fail_fast: bool = False, progress: Progress | None = None) -> Report:
    """Compare the model of a file with exact results, computed by ONNX Runtime, or without it by ONNX's own evaluator.

    Raises CheckpointError for a file that is no model, OptionError for a model of other nodes or sizes that are fixed.
    """
    onnx = _import_onnx()
    model = _load_model(onnx, path)
    node = _attention_node(model, path)
    names = {INPUTS[formal]: actual for formal, actual in zip(INPUTS, node.input, strict=False) if actual}
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    fixed: dict[str, Any] = {"causal": True} if attributes.get("is_causal") else {}
    fixed |= {name: float(attributes[name]) for name in ("scale", "softcap") if attributes.get(name)}
    entries = {entry.name: entry.type.tensor_type for entry in model.graph.input}
    kinds = {
        name: np.dtype(onnx.helper.tensor_dtype_to_np_dtype(entries[actual].elem_type))
        for name, actual in names.items()
    }
    run = _evaluator(model, path)

    def compute(**given: np.ndarray) -> np.ndarray:
        return run({names[name]: np.ascontiguousarray(array, kinds[name]) for name, array in given.items()})

    def attention(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        return compute(query=query, key=key, value=value)

    def masked_attention(
        query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray | None = None
    ) -> np.ndarray:
        if mask is None:
            shape = (1, 1, query.shape[2], key.shape[2])[4 - len(entries[names["mask"]].shape.dim) :]
            mask = np.ones(shape, bool) if kinds["mask"] == np.bool_ else np.zeros(shape)
        return compute(query=query, key=key, value=value, mask=mask)

    form = None if "mask" not in names else "allowed" if kinds["mask"] == np.bool_ else "additive"
    report = check(
        masked_attention if "mask" in names else attention,
        framework="numpy",
        layout="bhld",
        mask=form,
        dtypes=(kinds["query"].name,),
        align="start",
        fixed=fixed,
        fail_fast=fail_fast,
        progress=progress,
    )
    return Report(str(path), report.mechanism, "onnx", report.conventions, report.outcomes)


def _load_model(onnx: Any, path: Path) -> Any:
    try:
        return onnx.load(path)
    except Exception as error:  # of the system, or of the parser
        raise CheckpointError(
            f"{path} is no model of ONNX",
            expected="an .onnx file",
            got=class_and_line(error, 200),
            do="export it again",
        ) from error


def _import_onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise MissingPackageError("models of ONNX need the package onnx", do="pip install 'regard[export]'") from error
    return onnx


def _attention_node(model: Any, path: Path) -> Any:
    """The node, whose inputs must be those of the graph. Raises OptionError for another graph."""
    nodes = [node.op_type for node in model.graph.node]
    given = {entry.name for entry in model.graph.input}
    if nodes != ["Attention"] or not {name for name in model.graph.node[0].input if name} <= given:
        raise OptionError(
            f"{path} is not one node of Attention",
            expected="a graph of the operator Attention alone, whose inputs are those of the graph",
            got=f"the operators {', '.join(nodes[:8])}",
            do="export the attention alone, with dynamic sizes",
        )
    if len([name for name in model.graph.node[0].input if name]) > len(INPUTS):
        raise OptionError(
            f"{path} has a cache as its inputs",
            expected="the inputs Q, K, V and attn_mask",
            got="more inputs",
            do="leave them out",
        )
    return model.graph.node[0]


def _evaluator(model: Any, path: Path) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """The function that computes the first output of a model."""
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception:  # a runtime without the operator, or none
        from onnx.reference import ReferenceEvaluator

        session = ReferenceEvaluator(model)
    return lambda feeds: np.asarray(session.run(None, dict(feeds))[0])
