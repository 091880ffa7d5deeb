"""Check a model of ONNX that is one node of the operator Attention: its attributes fix terms of the equation.

With ``past_key`` and ``past_value``, the first keys of a case are the past; with ``nonpad_kv_seqlen``, texts have fewer
keys than the tensors. The present keys and values, and ``qk_matmul_output`` in each mode, are compared, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from regard.conformance.attention_cases import EQUATION, FEWER, SINGLE, SQUARE
from regard.conformance.cases import Case, make_tensors
from regard.conformance.checking import check
from regard.conformance.onnx_cases import attention_outputs, position_mask, split_heads
from regard.conformance.onnx_runtimes import RUNTIMES, Run, compare_output, make_run
from regard.conformance.outcomes import Progress
from regard.conformance.report import Outcome, Report
from regard.conformance.suites import SIZES
from regard.errors import CheckpointError, MissingPackageError, OptionError, RefusedError, class_and_line

INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")


@final
@dataclass(frozen=True)
class OnnxAttention:
    """A node of Attention: names of the graph by those of the operator, attributes, and the function that runs it."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    kinds: Mapping[str, np.dtype[Any]]
    mask_rank: int
    attributes: Mapping[str, Any]
    runtime: str
    run: Run

    @property
    def terms(self) -> dict[str, Any]:
        """The terms of the equation that the attributes fix."""
        left, right = (self.attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
        terms: dict[str, Any] = {"causal": True} if self.attributes.get("is_causal") else {}
        if max(left, right) >= 0:
            terms["window"] = tuple(None if bound < 0 else bound for bound in (left, right))
        return terms | {
            name: float(self.attributes[name]) for name in ("scale", "softcap") if self.attributes.get(name)
        }

    @property
    def heads(self) -> tuple[int, int] | None:
        """The heads of queries and keys, if the tensors have three dimensions."""
        heads = (self.attributes.get("q_num_heads", 0), self.attributes.get("kv_num_heads", 0))
        return heads if all(heads) else None

    @property
    def align(self) -> str:
        """Where queries are: after the past or the keys of each text, else at the start."""
        return "end" if {"past_key", "nonpad_kv_seqlen"} & self.inputs.keys() else "start"

    def compute(
        self,
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        mask: np.ndarray | None = None,
        lengths: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        """The outputs of a call by the names of the operator; keys before those of the queries are the past."""
        batch, queries, keys = query.shape[0], query.shape[2], key.shape[2]
        past = max(keys - queries, 0) if "past_key" in self.inputs else 0
        if "past_key" in self.inputs and queries > keys and {"causal", "window"} & self.terms.keys():
            raise RefusedError("more queries than keys have no past")
        if mask is None and "attn_mask" in self.inputs:
            shape = (1, 1, queries, keys)[4 - self.mask_rank :]
            mask = np.ones(shape, bool) if self.kinds["attn_mask"] == np.bool_ else np.zeros(shape)
        tensors = {"Q": query, "K": key[:, :, past:], "V": value[:, :, past:]}
        if self.heads is not None:
            tensors = {name: array.swapaxes(1, 2).reshape(batch, array.shape[2], -1) for name, array in tensors.items()}
        lengths = np.full(batch, keys) if lengths is None else lengths
        given = {**tensors, "past_key": key[:, :, :past], "past_value": value[:, :, :past], "nonpad_kv_seqlen": lengths}
        given |= {} if mask is None else {"attn_mask": mask}
        feeds = {name: np.ascontiguousarray(given[formal], self.kinds[formal]) for formal, name in self.inputs.items()}
        found = dict(zip(self.outputs, self.run(list(self.outputs.values()), feeds), strict=True))
        if self.heads is not None:
            found["Y"] = split_heads(found["Y"], self.heads[0])
        return found


def check_onnx_model(path: Path, *, fail_fast: bool = False, progress: Progress | None = None) -> Report:
    """Compare the model of a file with exact results, computed by ONNX Runtime, or without it by ONNX's own evaluator.

    Raises CheckpointError for a file that is no model, OptionError for a model of other nodes or sizes that are fixed.
    """
    model = _read_attention(path)

    def attention(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        return model.compute(query, key, value)["Y"]

    def masked_attention(
        query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray | None = None
    ) -> np.ndarray:
        return model.compute(query, key, value, mask)["Y"]

    is_masked, dtype = "attn_mask" in model.inputs, model.kinds["Q"].name
    report = check(
        masked_attention if is_masked else attention,
        framework="numpy",
        layout="bhld",
        mask=None if not is_masked else "allowed" if model.kinds["attn_mask"] == np.bool_ else "additive",
        dtypes=(dtype,),
        align=model.align,
        heads=model.heads,
        fixed=model.terms,
        fail_fast=fail_fast,
        progress=progress,
    )
    others = () if fail_fast and not report.holds else tuple(_try_cache(model, dtype))
    conventions = (*report.conventions, f"computed by {model.runtime}")
    return Report(str(path), report.mechanism, "onnx", conventions, (*report.outcomes, *others))


def _try_cache(model: OnnxAttention, dtype: str) -> Iterator[Outcome]:
    """The lengths of keys, the present keys and values, and the scores or weights that the model returns."""
    if not {"nonpad_kv_seqlen"} & model.inputs.keys() and len(model.outputs) == 1:
        return
    heads, key_heads = model.heads or (3, 3)
    for sizes in SIZES:
        for _, _, _, queries, keys in (SQUARE, FEWER, SINGLE):
            layout = sizes.layout(heads, key_heads, queries, keys)
            tensors = make_tensors(layout, "cache")
            lengths = np.array([layout.keys - 2, min(3, layout.keys)])
            shape = (layout.batch, layout.heads, layout.queries, layout.keys)
            arguments = {**tensors, **model.terms, "align": model.align}
            if "nonpad_kv_seqlen" in model.inputs:
                arguments = {name: term for name, term in arguments.items() if name not in ("causal", "window")}
                arguments["mask"] = position_mask(model.attributes, lengths, shape, 0)
            case = Case(f"{layout.queries} queries and {layout.keys} keys", EQUATION, layout, arguments)
            try:
                found = model.compute(tensors["query"], tensors["key"], tensors["value"], None, lengths)
            except Exception:  # of the runtime, for sizes that the model does not have
                break
            yield from _compare_outputs(model, case, found, dtype)
        else:
            return


def _compare_outputs(
    model: OnnxAttention, case: Case, found: Mapping[str, np.ndarray], dtype: str
) -> Iterator[Outcome]:
    cases = {"Y": "lengths of keys"}
    exact = attention_outputs(case, model.attributes.get("qk_matmul_output_mode", 0), case.bounds(dtype))
    for name, actual in found.items():
        findings = compare_output(name, actual, *exact[name])
        yield Outcome(f"{cases.get(name, name)}, {case.name}", dtype, "wrong" if findings else "right", findings)


def _read_attention(path: Path) -> OnnxAttention:
    onnx = _import_onnx()
    model = _load_model(onnx, path)
    node = _attention_node(model, path)
    inputs = {formal: actual for formal, actual in zip(INPUTS, node.input, strict=False) if actual}
    entries = {entry.name: entry.type.tensor_type for entry in model.graph.input}
    kinds = {
        formal: np.dtype(onnx.helper.tensor_dtype_to_np_dtype(entries[actual].elem_type))
        for formal, actual in inputs.items()
    }
    returned = {entry.name for entry in model.graph.output}
    outputs = {formal: name for formal, name in zip(OUTPUTS, node.output, strict=False) if name in returned}
    runtime, run = _find_runtime(model)
    return OnnxAttention(
        inputs,
        outputs,
        kinds,
        len(entries[inputs["attn_mask"]].shape.dim) if "attn_mask" in inputs else 0,
        {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute},
        runtime,
        run,
    )


def _find_runtime(model: Any) -> tuple[str, Run]:
    """ONNX Runtime, or if it is not installed or does not have the operator, ONNX's own evaluator."""
    try:
        return RUNTIMES[0], make_run(RUNTIMES[0], model)
    except Exception:
        return RUNTIMES[1], make_run(RUNTIMES[1], model)


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
    return model.graph.node[0]
