"""A whole model, MiniLM (6 layers of width 384), with regard, transformers and ONNX Runtime.

    bf16       regard and transformers in bfloat16, ONNX Runtime in float32, its usual dtype on a CPU
    fp32       all in float32
    int8       weights in int8, and tokens rounded to int8: regard beside bfloat16, ONNX Runtime's dynamic quantization
    mixed      texts of different lengths; transformers pads them to the longest, regard embeds them with its defaults

The results are the last layer's hidden states and their mean for each text, compared with transformers in float64.
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
from benchmarks.accuracy import Deviation, deviation
from benchmarks.case import Case, Contestant, PreparedCase, Suite, Work
from benchmarks.optional_imports import import_transformers, missing_package_error
from benchmarks.targets import Faster, Target
from regard.models import Encoder
from regard.models.model_folder import resolve_folder
from regard.text import Embedder, Pooling, TokenizedText

_TOLERANCES = {torch.bfloat16: (5e-2, 1e-3), torch.float32: (1e-4, 1e-5)}
"""Tolerances for six layers in that dtype: of hidden states, and of 1 - cosine of sentence vectors."""
_INT8_TOLERANCES = {"native": (0.1, 5e-3), "onnxruntime": (0.6, 0.2)}
"""Likewise for int8 weights: ONNX Runtime has one scale for a whole matrix, regard one for each group of 64 inputs."""
_NUM_CHECKED = 2
"""Number of sequences that are compared with float64."""
_SIZES = ((8, 512, 1.6), (32, 128, 1.2))
_FASTER_THAN_ONNX = {torch.bfloat16: 2.0, torch.float32: 1.1}
_INT8_FASTER_THAN_ONNX = 1.0
_DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32"}


def _case(dtype: torch.dtype, batch: int, length: int, targets: tuple[Target, ...]) -> Case:
    return Case(
        f"{_DTYPE_NAMES[dtype]} {batch} x {length}",
        f"{batch} sequences of {length} tokens",
        partial(_prepare, dtype, batch, length),
        ("native", "transformers", "onnxruntime"),
        targets,
        quick=dtype == torch.bfloat16,
        length=length,
    )


def _mixed_case(dtype: torch.dtype) -> Case:
    return Case(
        f"{_DTYPE_NAMES[dtype]} mixed",
        f"{len(_LENGTHS)} texts of {min(_LENGTHS)} to {max(_LENGTHS)} tokens",
        partial(_prepare_mixed, dtype),
        ("native", "transformers"),
        length=max(_LENGTHS),
    )


def _prepare(dtype: torch.dtype, batch: int, length: int) -> PreparedCase:
    ids = _tokens(batch, length)
    makers: dict[str, Callable[[Tensor], Callable[[], Tensor]]] = {
        "native": partial(_native, dtype),
        "transformers": partial(_transformers, dtype),
        "onnxruntime": _onnxruntime,
    }
    computes = dict.fromkeys(makers, dtype) | {"onnxruntime": torch.float32}
    work = Work(batch, "sequences/s", step=1.0)
    return PreparedCase(
        work, {name: partial(_contestant, _TOLERANCES[computes[name]], make, ids) for name, make in makers.items()}
    )


def _int8_case(batch: int, length: int) -> Case:
    return Case(
        f"int8 {batch} x {length}",
        f"{batch} sequences of {length} tokens",
        partial(_prepare_int8, batch, length),
        ("native", "native-bf16", "onnxruntime"),
        (Faster("onnxruntime", _INT8_FASTER_THAN_ONNX),),
        quick=length == min(length for _, length, _ in _SIZES),
        length=length,
    )


def _prepare_int8(batch: int, length: int) -> PreparedCase:
    ids = _tokens(batch, length)
    makers: dict[str, tuple[Callable[[Tensor], Callable[[], Tensor]], tuple[float, float]]] = {
        "native": (partial(_native, torch.bfloat16, weights="int8"), _INT8_TOLERANCES["native"]),
        "native-bf16": (partial(_native, torch.bfloat16), _TOLERANCES[torch.bfloat16]),
        "onnxruntime": (partial(_onnxruntime, quantized=True), _INT8_TOLERANCES["onnxruntime"]),
    }
    work = Work(batch, "sequences/s", step=1.0)
    return PreparedCase(
        work, {name: partial(_contestant, allowed, make, ids) for name, (make, allowed) in makers.items()}
    )


def _contestant(
    allowed: tuple[float, float], make: Callable[[Tensor], Callable[[], Tensor]], ids: Tensor
) -> Contestant:
    run = make(ids)
    return Contestant(run, lambda: list(_deviations(ids, run, allowed)))


def _deviations(ids: Tensor, run: Callable[[], Tensor], allowed: tuple[float, float]) -> Iterator[Deviation]:
    with torch.inference_mode():
        expected = _load_peer(torch.float64, "eager")(input_ids=ids[:_NUM_CHECKED]).last_hidden_state
    hidden, sentence = allowed
    answer = run()[:_NUM_CHECKED]
    yield deviation("hidden states", answer, expected, hidden)
    yield _direction_deviation(answer.double().mean(1), expected.mean(1), sentence)


def _direction_deviation(answer: Tensor, expected: Tensor, allowed: float) -> Deviation:
    cosine = torch.nn.functional.cosine_similarity(answer.double(), expected)
    return Deviation("direction of sentence vectors", float(1 - cosine.min()), allowed)


_LENGTHS = tuple(range(5, 501, 16))
"""Lengths of the texts in the mixed case, as on a page of search results: most are shorter than the longest."""


def _prepare_mixed(dtype: torch.dtype) -> PreparedCase:
    """Prepare sentence vectors, not normalised, from token ids."""
    texts = [
        TokenizedText(
            text="",
            ids=tuple(ids.tolist()),
            tokens=("",) * len(ids),
            spans=((0, 0),) * len(ids),
            special=(False,) * len(ids),
            unknown=(False,) * len(ids),
            count=len(ids),
        )
        for ids in (_tokens(1, length)[0] for length in _LENGTHS)
    ]
    work = Work(len(texts), "sequences/s", step=1.0)
    makers = {"native": _native_mixed, "transformers": _transformers_mixed}
    return PreparedCase(work, {name: partial(_mixed_contestant, dtype, make, texts) for name, make in makers.items()})


def _mixed_contestant(
    dtype: torch.dtype, make: Callable[[torch.dtype, list[TokenizedText]], Callable[[], Tensor]], texts: Any
) -> Contestant:
    run = make(dtype, texts)

    def compared() -> list[Deviation]:
        model = _load_peer(torch.float64, "eager")
        with torch.inference_mode():
            expected = [model(input_ids=torch.tensor([text.ids])).last_hidden_state.mean(1) for text in texts]
        return [_direction_deviation(run(), torch.cat(expected), _TOLERANCES[dtype][1])]

    return Contestant(run, compared)


def _native_mixed(dtype: torch.dtype, texts: list[TokenizedText]) -> Callable[[], Tensor]:
    model = regard.load("minilm", dtype=dtype)
    assert isinstance(model, Encoder)
    embedder = Embedder(model, pooling=Pooling(("mean",), normalise=False))
    return lambda: embedder.pooled(texts)


def _transformers_mixed(dtype: torch.dtype, texts: list[TokenizedText]) -> Callable[[], Tensor]:
    model = _load_peer(dtype, "sdpa")
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(text.ids) for text in texts], batch_first=True)
    tokens = torch.arange(ids.shape[1]) < torch.tensor([[len(text)] for text in texts])

    def run() -> Tensor:
        with torch.inference_mode():
            hidden = model(input_ids=ids, attention_mask=tokens.long()).last_hidden_state.float()
            return (hidden * tokens[..., None]).sum(1) / tokens.sum(1, keepdim=True)

    return run


def _tokens(batch: int, length: int) -> Tensor:
    return torch.randint(1000, 30000, (batch, length), generator=torch.Generator().manual_seed(2020))


def _native(dtype: torch.dtype, ids: Tensor, *, weights: str | None = None) -> Callable[[], Tensor]:
    model = regard.load("minilm", dtype=dtype, weights=weights)

    def run() -> Tensor:
        with torch.inference_mode():
            return model(ids).hidden

    return run


def _transformers(dtype: torch.dtype, ids: Tensor) -> Callable[[], Tensor]:
    model = _load_peer(dtype, "sdpa")

    def run() -> Tensor:
        with torch.inference_mode():
            return model(input_ids=ids).last_hidden_state

    return run


def _onnxruntime(ids: Tensor, *, quantized: bool = False) -> Callable[[], Tensor]:
    try:
        import onnxruntime
    except ImportError:
        raise missing_package_error("onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    graph = _quantize_onnx() if quantized else _export_onnx()
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    inputs = {"input_ids": ids.numpy()}
    return lambda: torch.from_numpy(session.run(None, inputs)[0])


@cache
def _load_peer(dtype: torch.dtype, attention: str) -> Any:
    """Load the same weights into transformers' model."""
    model = import_transformers().BertModel.from_pretrained(
        resolve_folder("minilm"), dtype=dtype, attn_implementation=attention, add_pooling_layer=False
    )
    return model.eval()


@cache
def _export_onnx() -> bytes:
    """Export transformers' model in float32 by torch, for any batch size and length."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise missing_package_error("onnx and onnxscript") from None
    model = _load_peer(torch.float32, "sdpa")

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


@cache
def _quantize_onnx() -> bytes:
    """Quantize the exported model by ONNX Runtime's own tool: int8 weights, and uint8 tokens in each call."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "model.onnx", Path(folder) / "int8.onnx"
        source.write_bytes(_export_onnx())
        level = logging.root.level
        logging.root.setLevel(logging.ERROR)  # the tool warns that the graph was not prepared for it
        try:
            quantize_dynamic(source, target, weight_type=QuantType.QInt8)
        finally:
            logging.root.setLevel(level)
        return target.read_bytes()


SUITE = Suite(
    name="model",
    title="Whole model: MiniLM",
    description="MiniLM (6 layers of width 384), compared with transformers and ONNX Runtime.",
    cases=(
        *(
            _case(
                torch.bfloat16,
                batch,
                length,
                (Faster("transformers", by), Faster("onnxruntime", _FASTER_THAN_ONNX[torch.bfloat16])),
            )
            for batch, length, by in _SIZES
        ),
        *(
            _case(torch.float32, batch, length, (Faster("onnxruntime", _FASTER_THAN_ONNX[torch.float32]),))
            for batch, length, _ in _SIZES
        ),
        *(_int8_case(batch, length) for batch, length, _ in _SIZES),
        *(_mixed_case(dtype) for dtype in _DTYPE_NAMES),
    ),
    notes=(
        "ONNX Runtime computes in float32, with the model exported by torch.onnx and its default optimizations; in the "
        "cases of int8 with that model quantized by its quantize_dynamic.",
        "mixed: regard's embedder sorts the texts into batches by length; transformers receives one padded batch.",
    ),
)
