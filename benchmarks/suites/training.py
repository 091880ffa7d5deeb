"""Forward and backward of exact attention: plain, with dropout, and with a trained T5 bias.

For dropout and for a trained bias torch's CPU kernel is not used: SDPA falls back to separate operations, which
allocate queries x keys matrices.
"""

from __future__ import annotations

import torch

from benchmarks import kernel_sources
from benchmarks.attention_baselines import attention_case
from benchmarks.case import Case, ScalingTarget, Suite
from benchmarks.problem import DTYPE_NAMES, Setting
from benchmarks.suites.forward import LENGTHS, PATTERNS
from benchmarks.targets import Faster

_FASTER = {torch.float32: 2.0, torch.bfloat16: 2.5, torch.float16: 2.0}
_FLOAT16_LENGTH = 2048
_FALLBACK_FASTER = 6.0
_FALLBACK_LENGTHS = (1024, 2048, 4096)
_FALLBACKS = ("dropout", "t5")
_DTYPES = (torch.float32, torch.bfloat16)


def _case(dtype: torch.dtype, pattern: str, length: int) -> Case:
    line = f"{DTYPE_NAMES[dtype]} {pattern}"
    return attention_case(
        f"{line} {length}",
        Setting(dtype, length, pattern=PATTERNS[pattern], backward=True),
        targets=(Faster("sdpa", _FASTER[dtype]),),
        quick=length in (512, 2048),
        line=line,
        length=length,
    )


def _fallback(dtype: torch.dtype, kind: str, length: int) -> Case:
    line = f"{DTYPE_NAMES[dtype]} {kind}"
    dropout, t5 = (0.1, False) if kind == "dropout" else (0.0, True)
    return attention_case(
        f"{line} {length}",
        Setting(dtype, length, dropout=dropout, t5=t5, backward=True),
        targets=(Faster("sdpa", _FALLBACK_FASTER),),
        quick=length == 1024,
        line=line,
        length=length,
    )


SUITE = Suite(
    name="training",
    title="Forward and backward pass",
    description="Forward and backward pass of exact attention: time, and growth of memory with the length.",
    cases=(
        *(_case(dtype, pattern, length) for dtype in _DTYPES for pattern in PATTERNS for length in LENGTHS),
        *(_case(torch.float16, pattern, _FLOAT16_LENGTH) for pattern in PATTERNS),
        *(_fallback(dtype, kind, length) for kind in _FALLBACKS for dtype in _DTYPES for length in _FALLBACK_LENGTHS),
    ),
    scaling=tuple(
        ScalingTarget(
            "memory", tuple(f"{DTYPE_NAMES[dtype]} {kind} {length}" for length in _FALLBACK_LENGTHS), ("native", "sdpa")
        )
        for kind in _FALLBACKS
        for dtype in _DTYPES
    ),
    notes=(
        "dropout: probability 0.1. t5: a trained bias by T5 distance bucket, which SDPA receives as a tensor that is "
        "looked up in every step.",
    ),
    kernels=kernel_sources.BACKWARD,
)
