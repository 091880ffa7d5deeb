"""A model as an ONNX graph: model.onnx, config.json, and the files of its tokenizer or image processor.

torch traces the model with symbolic sizes, computing attention by plain operations of torch (``impl="reference"``),
since ONNX has none of regard's kernels. Then ONNX Runtime computes the graph for inputs of several sizes,
and the result is compared with the model's own:

    max |theirs - ours| <= 1e-4 max(1, max |ours|)                      of each output

Rounding in float32 is a hundred times smaller; a wrong mask or a lost dimension is far larger.
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import MissingPackageError, RefusedError, class_and_line
from regard.export.onnx_graphs import OnnxGraph, make_graph
from regard.layers.eval_mode import eval_mode
from regard.mechanisms import Mechanism
from regard.media.processor_file import PROCESSOR_FILE
from regard.models.checkpoint_writer import atomic_model_folder
from regard.models.config_file import to_json_text
from regard.models.label_names import label_fields, problem_fields
from regard.models.model import Model
from regard.text.tokenizer import Tokenizer
from regard.text.transformers_files import encoder_tokenizer_files

MODEL_FILE = "model.onnx"
TOLERANCE = 1e-4
"""The largest difference of ONNX Runtime's result from the model's own, relative to its largest number (1 at least)."""
_PACKAGES = ("onnx", "onnxruntime", "onnxscript")
_OPSET = 20
_PLAIN = "reference"
"""The implementation that consists of operations of torch."""


def write(model: Model, folder: Path) -> None:
    """Write ``model`` into a new folder, and check what ONNX Runtime computes.

    Raises RefusedError for a model that cannot be traced, that is not in float32, or whose graph computes other
    numbers; MissingPackageError without the packages.
    """
    _check_packages()
    graph = make_graph(model)
    _check_dtype(graph)
    with eval_mode(graph.model), torch.no_grad(), atomic_model_folder(folder) as temporary:
        examples = graph.make_examples()
        _trace(graph, examples[0], temporary / MODEL_FILE)
        _check_results(graph, examples, temporary / MODEL_FILE)
        for name, content in _side_files(graph.model, graph).items():
            (temporary / name).write_text(content, encoding="utf-8")


def _check_packages() -> None:
    from importlib.util import find_spec

    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            "export to ONNX needs packages",
            expected=", ".join(_PACKAGES),
            got=f"{', '.join(missing)} not installed",
            do="pip install 'regard[export]'",
        )


def _check_dtype(graph: OnnxGraph) -> None:
    dtypes = {str(weight.dtype) for weight in graph.parameters()}
    if dtypes != {"torch.float32"}:
        raise RefusedError(
            "only models in float32 are exported to ONNX",
            expected="torch.float32",
            got=", ".join(sorted(dtypes)) or "no weights",
            do="model.float(); ONNX Runtime has tools that make smaller numbers of an exported model",
        )


def _trace(graph: OnnxGraph, example: tuple[Tensor, ...], path: Path) -> None:
    """Write the graph of a model. Raises RefusedError if torch cannot make one."""
    traced = _use_plain_implementations(copy.deepcopy(graph))
    try:
        with _quiet():
            program = torch.onnx.export(
                traced,
                example,
                dynamo=True,
                opset_version=_OPSET,
                input_names=list(graph.input_names),
                output_names=list(graph.output_names),
                dynamic_shapes={"inputs": graph.dynamic_axes},
                verbose=False,
            )
            assert program is not None, "dynamo=True returns a program"
            program.save(str(path))
    # torch and onnxscript raise errors of many classes for what they cannot represent.
    except Exception as error:
        raise RefusedError(
            f"{_describe(graph.model)} has no ONNX graph",
            expected="a model whose operations ONNX has, for any number of rows and tokens",
            got=_describe_cause(error),
            do="use another mechanism, such as dot_product; or run the model with regard",
        ) from error


def _use_plain_implementations(graph: OnnxGraph) -> OnnxGraph:
    """Let all mechanisms compute by operations of torch, where they have such an implementation."""
    for module in graph.modules():
        if isinstance(module, Mechanism) and _PLAIN in getattr(module, "implementations", ()):
            setattr(module, "impl", _PLAIN)  # noqa: B010 (a mechanism without implementations has no such attribute)
    return graph


def _check_results(graph: OnnxGraph, examples: list[tuple[Tensor, ...]], path: Path) -> None:
    """Raise RefusedError if ONNX Runtime computes other numbers, or cannot compute the graph."""
    expected = [graph(*inputs) for inputs in examples]
    found = _run(graph, examples, path)
    for ours, theirs in zip(expected, found, strict=True):
        for name, mine, other in zip(graph.output_names, ours, theirs, strict=True):
            _compare(graph, name, mine, other)


def _run(graph: OnnxGraph, examples: list[tuple[Tensor, ...]], path: Path) -> list[list[Tensor]]:
    """Compute the outputs of all examples by ONNX Runtime. Raises RefusedError if it cannot."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        named = [dict(zip(graph.input_names, map(Tensor.numpy, inputs), strict=True)) for inputs in examples]
        results = [session.run(list(graph.output_names), inputs) for inputs in named]
    except Exception as error:  # onnxruntime's own classes have no common base
        raise RefusedError(
            f"ONNX Runtime cannot compute the graph of {_describe(graph.model)}",
            expected="results for any number of rows and tokens",
            got=_describe_cause(error),
            do="use another mechanism, such as dot_product; or run the model with regard",
        ) from error
    return [[torch.from_numpy(result) for result in of_example] for of_example in results]


def _compare(graph: OnnxGraph, name: str, ours: Tensor, theirs: Tensor) -> None:
    bound = TOLERANCE * max(1.0, float(ours.abs().max()))
    difference = float((ours - theirs).abs().max()) if ours.shape == theirs.shape else float("inf")
    if not difference <= bound:
        raise RefusedError(
            f"ONNX Runtime computes other numbers than {_describe(graph.model)}, so nothing was exported",
            expected=f"{name} {tuple(ours.shape)} within {bound:.2g}",
            got=f"a difference of {difference:.2g}, shape {tuple(theirs.shape)}",
            do="please report it, with config.json; run the model with regard",
        )


def _side_files(model: Any, graph: OnnxGraph) -> dict[str, str]:
    """config.json, which names inputs, outputs and labels, and the files of a tokenizer or an image processor."""
    labels = tuple(getattr(model, "labels", ()))
    fields: dict[str, Any] = {
        "model_type": "regard-onnx",
        "exported_from": type(model).__name__,
        "inputs": list(graph.input_names),
        "outputs": list(graph.output_names),
        "tolerance": TOLERANCE,
        **label_fields(labels),
    }
    if labels:
        fields |= problem_fields(several=getattr(model.config, "several", False))
    files = {"config.json": to_json_text(fields)}
    tokenizer = getattr(model, "tokenizer", None)
    if isinstance(tokenizer, Tokenizer):
        files |= encoder_tokenizer_files(tokenizer, model.max_tokens)
    if getattr(model, "processor", None) is not None:
        files[PROCESSOR_FILE] = json.dumps(model.processor.fields(), indent=2) + "\n"
    return files


def _describe(model: Any) -> str:
    config = getattr(getattr(model, "encoder", model), "config", None)
    mechanism = getattr(config, "mechanism", None)
    return f"this {type(model).__name__}" + ("" if mechanism is None else f" with the mechanism {mechanism!r}")


def _describe_cause(error: BaseException) -> str:
    """The class and first line of the first error of a chain: the exporter's own is about its three steps."""
    while error.__cause__ is not None:
        error = error.__cause__
    return class_and_line(error, 300)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep warnings and messages of the exporter off."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
