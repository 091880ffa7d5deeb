"""Other head sizes: from 32 to 256, values of another size, fewer key heads than query heads."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks import kernel_sources
from benchmarks.attention_baselines import attention_case
from benchmarks.case import Case, Suite
from benchmarks.problem import DTYPE_NAMES, Setting
from benchmarks.targets import Faster

_LENGTH = 2048
_FASTER = 1.8
_SHAPES: dict[str, dict[str, Any]] = {
    "head_dim-32": {"head_dim": 32},
    "head_dim-80": {"head_dim": 80},
    "head_dim-128": {"head_dim": 128},
    "head_dim-256": {"head_dim": 256},
    "value_dim-48": {"value_dim": 48},
    "grouped": {"heads": 12, "key_heads": 3},
}


def _case(dtype: torch.dtype, shape: str, *, backward: bool) -> Case:
    return attention_case(
        f"{DTYPE_NAMES[dtype]} {shape} {'training' if backward else 'forward'}",
        Setting(dtype, _LENGTH, backward=backward, **_SHAPES[shape]),
        targets=(Faster("sdpa", _FASTER),),
        quick=dtype == torch.float32 and shape in ("head_dim-80", "grouped"),
    )


SUITE = Suite(
    name="shapes",
    title="Head shapes",
    description="Head sizes from 32 to 256, values of another size than keys, and fewer key heads than query heads.",
    cases=tuple(
        _case(dtype, shape, backward=backward)
        for backward in (False, True)
        for dtype in (torch.float32, torch.bfloat16)
        for shape in _SHAPES
    ),
    notes=("training: forward and backward pass.",),
    kernels=kernel_sources.BACKWARD,
)
