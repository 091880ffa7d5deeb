"""A whole model, MiniLM (6 layers of 384): regard in bf16 against transformers in bf16 and ONNX Runtime in float32.

All tokens are real; the answer is the last layer's hidden states, held against transformers' own code in float64.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import regard
from benchmarks.answers import Deviation, deviation
from benchmarks.case import Case, Contestant, Family, Prepared, Work
from benchmarks.targets import Faster, Target
from regard.errors import MissingPackageError
from regard.models.load import folder_of

_ALLOWED = {"native": 5e-2, "transformers": 5e-2, "onnxruntime": 1e-4}
"""Six layers in bf16, and in float32."""
_CHECKED = 2
"""Sequences compared with float64."""
_SIZES = ((8, 512, 1.6), (32, 128, 1.2))
_FASTER_THAN_ONNX = 2.0


def _case(batch: int, length: int, faster: float) -> Case:
    targets: tuple[Target, ...] = (Faster("transformers", faster), Faster("onnxruntime", _FASTER_THAN_ONNX))
    return Case(
        f"bf16 {batch} x {length}",
        f"{batch} sequences of {length} tokens",
        partial(_prepare, batch, length),
        ("native", "transformers", "onnxruntime"),
        targets,
        quick=True,
        length=length,
    )


def _prepare(batch: int, length: int) -> Prepared:
    random = torch.Generator().manual_seed(2020)
    ids = torch.randint(1000, 30000, (batch, length), generator=random)
    makers = {"native": _native, "transformers": _transformers, "onnxruntime": _onnxruntime}
    work = Work(batch, "sequences/s", step=1.0)
    return Prepared(work, {name: partial(_contestant, name, make, ids) for name, make in makers.items()})


def _contestant(name: str, make: Callable[[Tensor], Callable[[], Tensor]], ids: Tensor) -> Contestant:
    run = make(ids)
    return Contestant(run, lambda: list(_deviations(ids, run, _ALLOWED[name])))


def _deviations(ids: Tensor, run: Callable[[], Tensor], allowed: float) -> Iterator[Deviation]:
    with torch.inference_mode():
        expected = _peer(torch.float64, "eager")(input_ids=ids[:_CHECKED]).last_hidden_state
    yield deviation("hidden states", run()[:_CHECKED], expected, allowed)


def _native(ids: Tensor) -> Callable[[], Tensor]:
    model = regard.load("minilm", dtype=torch.bfloat16)

    def run() -> Tensor:
        with torch.inference_mode():
            return model(ids).hidden

    return run


def _transformers(ids: Tensor) -> Callable[[], Tensor]:
    model = _peer(torch.bfloat16, "sdpa")

    def run() -> Tensor:
        with torch.inference_mode():
            return model(input_ids=ids).last_hidden_state

    return run


def _onnxruntime(ids: Tensor) -> Callable[[], Tensor]:
    try:
        import onnxruntime
    except ImportError:
        raise _missing("onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(_exported(), options, providers=["CPUExecutionProvider"])
    inputs = {"input_ids": ids.numpy()}
    return lambda: torch.from_numpy(session.run(None, inputs)[0])


@cache
def _peer(dtype: torch.dtype, attention: str) -> Any:
    """The same weights in transformers' code."""
    try:
        import transformers
    except ImportError:
        raise _missing("transformers") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = transformers.BertModel.from_pretrained(
        folder_of("minilm"), dtype=dtype, attn_implementation=attention, add_pooling_layer=False
    )
    return model.eval()


@cache
def _exported() -> bytes:
    """transformers' model in float32, exported by torch for any batch and length."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise _missing("onnx and onnxscript") from None
    model = _peer(torch.float32, "sdpa")

    class Hidden(torch.nn.Module):
        def forward(self, input_ids: Tensor) -> Tensor:
            return model(input_ids=input_ids).last_hidden_state

    sizes = {
        "input_ids": {0: torch.export.Dim("batch", min=1, max=4096), 1: torch.export.Dim("length", min=2, max=512)}
    }
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        path = Path(folder) / "model.onnx"
        example = torch.randint(1000, 30000, (2, 16))
        torch.onnx.export(
            Hidden(),
            (example,),
            path,
            input_names=["input_ids"],
            dynamic_shapes=sizes,
            external_data=False,
            dynamo=True,
            verbose=False,
        )
        return path.read_bytes()


def _missing(package: str) -> MissingPackageError:
    return MissingPackageError(
        f"{package} is not installed", expected="the peers of the benchmarks", do="pip install 'regard[bench]'"
    )


FAMILY = Family(
    name="model",
    title="A whole model: MiniLM",
    question="What does a user of a model gain?",
    cases=tuple(_case(*size) for size in _SIZES),
    notes=("ONNX Runtime computes in float32, with the model exported by torch.onnx and its default optimizations.",),
)
