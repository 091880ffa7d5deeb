"""In which precisions a device multiplies, and which of them is the fastest, for each kind of layer.

    linear      the layers of a Transformer
    gru, lstm   recurrent cells: over a whole sequence, as an encoder calls them, and step by step, as a decoder does

That a processor multiplies bfloat16 itself does not make it the faster: an Intel Xeon whose matrix unit (AMX) cannot be
used takes longer over it than over float32. And one kind of layer may gain where another does not: on AMD Zen 5 the
steps of an LSTM gain much, a short sequence in one call gains nothing. So a CPU is measured, with the layer itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from regard.errors import check_choice
from regard.interleaved_timing import least_seconds

PRECISIONS = ("float32", "bfloat16")
LAYERS = ("linear", "gru", "lstm")
"""The kinds of layers that take most of a model's time."""

_TOKENS, _WIDTH, _INNER = 2048, 256, 1024
"""Sizes of the linear product that is measured, that of a feed-forward layer with a batch of a small model."""
_ROWS, _STEPS, _HIDDEN = 32, 4, 512
"""Sizes of the cells that are measured: some steps of a batch, in the usual recurrent model."""
_TRIES = 6
_MAX_TIME_RATIO = 0.8
"""The most of float32's time that bfloat16 may take to be chosen: casts take a part of what is gained."""


@final
class Precisions(NamedTuple):
    """``supported`` are those of ``PRECISIONS`` in which a device computes a kind of layer.

    ``fastest`` is the one to take; ``slower`` are supported and take longer than float32; ``reason`` says why.
    """

    supported: tuple[str, ...]
    fastest: str
    slower: tuple[str, ...]
    reason: str


def precisions(device: torch.device, layer: str = "linear") -> Precisions:
    """The precisions of ``device`` for one of ``LAYERS``. Raises OptionError for another kind of layer.

    A CPU with products of bfloat16 is measured, once in a process, which takes 0.1 to 1 seconds.
    """
    check_choice("kind of layer", layer, LAYERS)
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return Precisions(PRECISIONS, "bfloat16", (), "this GPU multiplies it faster than float32")
        return Precisions(PRECISIONS, "float32", ("bfloat16",), "this GPU has no products of bfloat16")
    if layer == "lstm" and device.type == "cpu" and not has_lstm(torch.bfloat16):
        return Precisions(("float32",), "float32", (), "torch has no LSTM in bfloat16 for this processor")
    if device.type != "cpu" or not _has_bf16_products():
        return Precisions(PRECISIONS, "float32", ("bfloat16",), "this processor has no products of bfloat16")
    return _compare(layer, *_measure_seconds(layer))


def say_if_slower(precision: str, device: torch.device, say: Callable[[str], None], *, layer: str = "linear") -> None:
    """Say so where ``precision`` is measured to be slower than float32."""
    if precision == "float32":
        return
    found = precisions(device, layer)
    if precision in found.slower:
        say(f"float32 is faster than {precision} here: {found.reason}")


@cache
def has_lstm(dtype: torch.dtype) -> bool:
    """Whether ``torch.nn.LSTM`` runs on this CPU where autocast gives it ``dtype``.

    oneDNN computes it, and has it in half precision for some processors only. No function of torch tells for which, so
    the smallest one is tried, once.
    """
    cell, inputs = nn.LSTM(1, 1), torch.zeros(1, 1, 1)
    try:
        with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
            cell(inputs)
    except RuntimeError:
        return False
    return True


def _has_bf16_products() -> bool:
    """Whether the processor multiplies bfloat16 itself, and oneDNN uses that."""
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_arm_bf16_supported")
    has = any(bool(getattr(torch.cpu, probe)()) for probe in probes if hasattr(torch.cpu, probe))
    return has and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _compare(layer: str, of_float32: float, of_bfloat16: float) -> Precisions:
    """What follows from the seconds that both take."""
    share = of_bfloat16 / of_float32
    what = "a product" if layer == "linear" else f"a step of training the {layer.upper()}"
    reason = f"{what} in bfloat16 takes {share:.2f} of float32's time on this processor"
    return Precisions(
        PRECISIONS, "bfloat16" if share <= _MAX_TIME_RATIO else "float32", ("bfloat16",) if share > 1 else (), reason
    )


@cache
def _measure_seconds(layer: str) -> tuple[float, float]:
    """The seconds that a layer takes in float32 and in bfloat16."""
    make = _linear_call if layer == "linear" else partial(_training_call, layer)
    calls = [make(torch.float32), make(torch.bfloat16)]
    of_float32, of_bfloat16 = least_seconds(calls, tries=_TRIES)
    return of_float32, of_bfloat16


def _linear_call(dtype: torch.dtype) -> Callable[[], Tensor]:
    """A call that computes the product of a linear layer."""
    tokens, weight = torch.ones(_TOKENS, _WIDTH, dtype=dtype), torch.ones(_INNER, _WIDTH, dtype=dtype)
    return partial(nn.functional.linear, tokens, weight)


def _training_call(layer: str, dtype: torch.dtype) -> Callable[[], None]:
    """A call that trains cells over a sequence, in one call and step by step, under autocast as a model does."""
    cells = (nn.LSTM if layer == "lstm" else nn.GRU)(_WIDTH, _HIDDEN, batch_first=True, device="cpu")
    weights, inputs = cells.all_weights[0], torch.ones(_ROWS, _STEPS, _WIDTH, device="cpu")

    def run_steps() -> Tensor:
        hidden = memory = torch.zeros(_ROWS, _HIDDEN, device="cpu")
        for step in inputs.unbind(1):
            if layer == "lstm":
                hidden, memory = torch.lstm_cell(step, (hidden, memory), *weights)
            else:
                hidden = torch.gru_cell(step, hidden, *weights)
        return hidden

    def train_step() -> None:
        with torch.enable_grad():
            with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                whole, last = cells(inputs)[0], run_steps()
            torch.autograd.grad(whole.float().sum() + last.float().sum(), list(cells.parameters()))

    return train_step
