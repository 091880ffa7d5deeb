"""Precisions that a device supports, and the fastest of them, for each kind of layer.

    linear      the layers of a Transformer
    gru, lstm   recurrent cells: over a whole sequence, as an encoder calls them, and step by step, as a decoder does

Hardware support for bfloat16 does not imply that it is faster: an Intel Xeon whose matrix unit (AMX) cannot be used
takes longer than in float32. And the gain depends on the kind of layer: on AMD Zen 5 the steps of an LSTM gain much, a
short sequence in one call gains nothing. So each kind of layer is measured on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from regard.device_names import AUTO
from regard.errors import check_choice
from regard.interleaved_timing import least_seconds
from regard.kernels.operators.linear_op import multiplies
from regard.layers.projection import uses_own_kernel
from regard.log import log
from regard.number_formats import PRECISIONS

LAYERS = ("linear", "gru", "lstm")
"""Kinds of layers that take most of a model's time."""

_TOKENS, _WIDTH, _INNER = 2048, 256, 1024
"""Sizes of the measured linear product: a feed-forward layer of a small model, with one batch."""
_ROWS, _STEPS, _HIDDEN = 32, 4, 512
"""Sizes of the measured cells: a few steps of a batch, in a typical recurrent model."""
_TRIES = 6
_MAX_TIME_RATIO = 0.8
"""bfloat16 is chosen if it takes at most this fraction of float32's time: casts cost a part of the gain."""


@final
class Precisions(NamedTuple):
    """Precisions of a device for a kind of layer.

    ``supported`` lists the ``PRECISIONS`` that it supports; ``fastest`` is the one to use; ``slower`` are supported
    but slower than float32; ``reason`` says why.
    """

    supported: tuple[str, ...]
    fastest: str
    slower: tuple[str, ...]
    reason: str


def precisions(device: torch.device, layer: str = "linear") -> Precisions:
    """Find the precisions of ``device`` for one of ``LAYERS``. Raises OptionError for another kind of layer.

    A CPU with bfloat16 products is measured once per process, which takes 0.1 to 1 seconds.
    """
    check_choice("kind of layer", layer, LAYERS)
    if device.type != "cpu":
        return _find_precisions_of_accelerator(device)
    if layer == "lstm" and not has_lstm(torch.bfloat16):
        return Precisions(("float32",), "float32", (), "torch has no LSTM in bfloat16 for this processor")
    if not _has_bf16_products():
        return Precisions(PRECISIONS, "float32", ("bfloat16",), "this processor has no products of bfloat16")
    return _compare(layer, *_measure_seconds(layer))


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of a model that is not trained, by its ``name``; "auto" is bfloat16 on a GPU that has it, else float32.

    On a CPU "auto" is float32: its results have the same bits on every machine of a kind, and a command that is short
    measures nothing. Notes what "auto" chose, if that is bfloat16, and a dtype that is slower than float32: on a CPU it
    is where torch multiplies bfloat16, since regard's kernels are as fast as in float32 at least.
    """
    check_choice("numeric precision", name, (AUTO, *PRECISIONS))
    if name != AUTO:
        dtype = torch.bfloat16 if name == "bfloat16" else torch.float32
        if device.type != "cpu" or not (uses_own_kernel() and multiplies(dtype)):
            note_if_slower(name, device)
        return dtype
    if device.type == "cpu":
        return torch.float32
    available = precisions(device)
    if available.fastest != "bfloat16":
        return torch.float32
    log.info(f"multiplying in {available.fastest}: {available.reason}")
    return torch.bfloat16


def _find_precisions_of_accelerator(device: torch.device) -> Precisions:
    """The precisions of a GPU or another accelerator, as torch's module for its kind says; none is measured."""
    if device.type == "meta":
        return Precisions(PRECISIONS, "float32", (), "tensors without values are not multiplied")
    is_supported = getattr(torch.get_device_module(device), "is_bf16_supported", None)
    if is_supported is None:
        return Precisions(PRECISIONS, "float32", (), f"torch does not say whether {device.type} multiplies bfloat16")
    if is_supported(including_emulation=False):
        return Precisions(PRECISIONS, "bfloat16", (), "this GPU multiplies it faster than float32")
    return Precisions(PRECISIONS, "float32", ("bfloat16",), "this GPU has no products of bfloat16")


def note_if_slower(precision: str, device: torch.device, *, layer: str = "linear") -> None:
    """Note if ``precision`` is slower than float32 on ``device``."""
    if precision == "float32":
        return
    measured = precisions(device, layer)
    if precision in measured.slower:
        log.info(f"float32 is faster than {precision} here: {measured.reason}")


@cache
def has_lstm(dtype: torch.dtype) -> bool:
    """Whether ``torch.nn.LSTM`` runs on this CPU under autocast to ``dtype``.

    oneDNN supports it in half precision on some processors only. torch has no function that says on which, so the
    smallest LSTM is tried once.
    """
    cell, inputs = nn.LSTM(1, 1), torch.zeros(1, 1, 1)
    try:
        with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
            cell(inputs)
    except RuntimeError:
        return False
    return True


def _has_bf16_products() -> bool:
    """Whether the processor has bfloat16 products, and oneDNN uses them."""
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_arm_bf16_supported")
    has = any(bool(getattr(torch.cpu, probe)()) for probe in probes if hasattr(torch.cpu, probe))
    return has and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _compare(layer: str, of_float32: float, of_bfloat16: float) -> Precisions:
    """Compare the seconds that a layer takes in float32 and in bfloat16."""
    share = of_bfloat16 / of_float32
    what = "a product" if layer == "linear" else f"a step of training the {layer.upper()}"
    reason = f"{what} in bfloat16 takes {share:.2f} of float32's time on this processor"
    return Precisions(
        PRECISIONS, "bfloat16" if share <= _MAX_TIME_RATIO else "float32", ("bfloat16",) if share > 1 else (), reason
    )


@cache
def _measure_seconds(layer: str) -> tuple[float, float]:
    """Measure the seconds that a layer takes in float32 and in bfloat16."""
    make = _linear_call if layer == "linear" else partial(_training_call, layer)
    calls = [make(torch.float32), make(torch.bfloat16)]
    of_float32, of_bfloat16 = least_seconds(calls, tries=_TRIES)
    return of_float32, of_bfloat16


def _linear_call(dtype: torch.dtype) -> Callable[[], Tensor]:
    """Make a call that computes the product of a linear layer."""
    tokens, weight = torch.ones(_TOKENS, _WIDTH, dtype=dtype), torch.ones(_INNER, _WIDTH, dtype=dtype)
    return partial(nn.functional.linear, tokens, weight)


def _training_call(layer: str, dtype: torch.dtype) -> Callable[[], None]:
    """Make a call that trains cells over a sequence, in one call and step by step, under autocast as a model does."""
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
