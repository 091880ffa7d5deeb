"""In which numbers a step multiplies. Weights, their gradients and the optimizer are float32 in any case.

That a processor multiplies bfloat16 itself does not make it the faster: an Intel Xeon whose matrix unit (AMX) cannot be
used takes longer over it than over float32. So a CPU is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from regard.errors import unknown
from regard.kernels.in_turns import least_seconds

_TOKENS, _WIDTH, _INNER = 2048, 256, 1024
"""Of the product that is measured: a feed-forward layer's, with a batch of a small model."""
_TRIES = 6
_PAYS = 0.8
"""The most of float32's time that bfloat16 may take: casts take a part of what is gained."""
PRECISIONS = ("float32", "bfloat16")


def settled(asked: str, device: torch.device, say: Callable[[str], None]) -> str:
    """The precision that was asked for; for "auto" the faster one of ``device``, which is said.

    Raises OptionError for what is no precision.
    """
    if asked in PRECISIONS:
        return asked
    if asked != "auto":
        raise unknown("precision", asked, ("auto", *PRECISIONS))
    precision, reason = faster(device)
    say(f"multiplying in {precision}: {reason}")
    return precision


@final
class Choice(NamedTuple):
    """A precision of ``PRECISIONS``, and why that one."""

    precision: str
    reason: str


def autocast_dtype(precision: str) -> torch.dtype | None:
    """What ``torch.autocast`` is to use for a precision of ``PRECISIONS``; None for float32 throughout."""
    return torch.bfloat16 if precision == "bfloat16" else None


def faster(device: torch.device) -> Choice:
    """The precision that ``device`` multiplies faster. On a CPU that has both, they are measured: some 0.1 seconds."""
    if device.type == "cuda":
        has_products = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_products = device.type == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported() and _has_bf16_arithmetic()
    if not has_products:
        return Choice("float32", "bfloat16 is not multiplied by this processor itself")
    if device.type == "cuda":
        return Choice("bfloat16", "this GPU multiplies it faster than float32")
    return _compared(*_seconds())


def _has_bf16_arithmetic() -> bool:
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_arm_bf16_supported")
    return any(bool(getattr(torch.cpu, probe)()) for probe in probes if hasattr(torch.cpu, probe))


def _compared(of_float32: float, of_bfloat16: float) -> Choice:
    """The faster, by the seconds of a product."""
    share = of_bfloat16 / of_float32
    if share <= _PAYS:
        return Choice("bfloat16", f"a product takes {share:.2f} of float32's time on this processor")
    return Choice("float32", f"a product of bfloat16 takes {share:.2f} of its time on this processor")


def _seconds() -> tuple[float, float]:
    """Of a product in float32 and in bfloat16."""
    of_float32, of_bfloat16 = least_seconds([_product(torch.float32), _product(torch.bfloat16)], tries=_TRIES)
    return of_float32, of_bfloat16


def _product(dtype: torch.dtype) -> Callable[[], Tensor]:
    """A linear layer's."""
    tokens, weight = torch.ones(_TOKENS, _WIDTH, dtype=dtype), torch.ones(_INNER, _WIDTH, dtype=dtype)
    return partial(nn.functional.linear, tokens, weight)
