"""Short sequences in large batches, as in sentence encoders: padded forward, and training."""

from __future__ import annotations

import random

import torch

from benchmarks import kernel_sources
from benchmarks.attention_baselines import attention_case
from benchmarks.case import Case, Suite
from benchmarks.mask_patterns import Padded
from benchmarks.problem import DTYPE_NAMES, Setting
from benchmarks.targets import Faster

_LENGTHS = (16, 32, 64, 128)
_FASTER = {torch.float32: 1.5, torch.bfloat16: 3.0}
_TRAINING_FASTER = {16: 15.0, 64: 4.0}
_DTYPES = (torch.float32, torch.bfloat16)


def _forward(dtype: torch.dtype, length: int) -> Case:
    line = f"{DTYPE_NAMES[dtype]} padded"
    chosen = random.Random(length)
    lengths = tuple(chosen.randint(length // 2, length) for _ in range(64))
    return attention_case(
        f"{line} {length}",
        Setting(dtype, length, batch=64, heads=12, head_dim=32, pattern=Padded(lengths)),
        targets=(Faster("sdpa", _FASTER[dtype]),),
        quick=length in (16, 128),
        line=line,
        length=length,
    )


def _training(dtype: torch.dtype, length: int) -> Case:
    line = f"{DTYPE_NAMES[dtype]} training"
    return attention_case(
        f"{line} {length}",
        Setting(dtype, length, batch=128, heads=8, head_dim=32, backward=True),
        targets=(Faster("sdpa", _TRAINING_FASTER[length]),),
        quick=length == 16,
        line=line,
        length=length,
    )


SUITE = Suite(
    name="short",
    title="Short sequences",
    description="Short sequences in large batches, as in sentence encoders.",
    cases=(
        *(_forward(dtype, length) for dtype in _DTYPES for length in _LENGTHS),
        *(_training(dtype, length) for dtype in _DTYPES for length in _TRAINING_FASTER),
    ),
    notes=(
        "padded: forward pass; batch entries have between half of the length and the full length, and operations on "
        "padding are not counted. training: forward and backward pass without padding.",
        "Bound for training with 16 tokens: about 17 MB are read and written for 0.1 GFLOP, which takes a quarter to "
        "half of a millisecond at the memory rate of the AMD EPYC, and each result is newly allocated. On that machine "
        "torch is slow only in bf16.",
    ),
    kernels=kernel_sources.BACKWARD,
)
