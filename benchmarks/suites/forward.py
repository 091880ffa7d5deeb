"""Forward pass of exact attention, dense and causal, against torch's fused kernel and the machine's arithmetic peak."""

from __future__ import annotations

import torch

from benchmarks import kernel_sources
from benchmarks.attention_baselines import attention_case
from benchmarks.case import Case, Suite
from benchmarks.mask_patterns import DENSE, Causal
from benchmarks.problem import DTYPE_NAMES, Setting
from benchmarks.targets import Faster, ShareOfPeak, Target

LENGTHS = (512, 1024, 2048, 4096, 8192)
PATTERNS = {"dense": DENSE, "causal": Causal()}
_FASTER = {torch.float32: 2.3, torch.bfloat16: 4.3, torch.float16: 2.0}
_FLOAT16_LENGTHS = (512, 2048, 8192)
_SHARE, _SHARE_FROM = 0.8, 2048


def _case(dtype: torch.dtype, pattern: str, length: int) -> Case:
    targets: list[Target] = [Faster("sdpa", _FASTER[dtype])]
    if length >= _SHARE_FROM and dtype != torch.float16:
        targets.append(ShareOfPeak(_SHARE))
    line = f"{DTYPE_NAMES[dtype]} {pattern}"
    return attention_case(
        f"{line} {length}",
        Setting(dtype, length, pattern=PATTERNS[pattern]),
        targets=tuple(targets),
        quick=length in (512, 2048),
        line=line,
        length=length,
    )


SUITE = Suite(
    name="forward",
    title="Forward pass",
    description="Forward pass of exact attention, compared with torch's fused kernel and with the machine's peak rate.",
    cases=tuple(
        _case(dtype, pattern, length)
        for dtype in _FASTER
        for pattern in PATTERNS
        for length in (_FLOAT16_LENGTHS if dtype == torch.float16 else LENGTHS)
    ),
    notes=(
        "fp16 is computed in float32, and compared with its peak.",
        "Bound in bf16 on AMD Zen 5: for 16 scores, the two multiply-add units take 32 cycles for the products and 2.5 "
        "for the exponentials, which also take 2.5 cycles of other units. So about 90% of the peak can be reached.",
    ),
    kernels=kernel_sources.FORWARD,
)
