"""A window of 513 keys: forward against compiled FlexAttention, backward (only regard has it on CPUs) against dense.

Forward and backward should take the time of dense attention times the share of 64 x 64 tiles that the window touches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch

from benchmarks import kernel_sources
from benchmarks.attention_baselines import attention_case, contestants
from benchmarks.case import Case, Contestant, PreparedCase, ScalingTarget, Suite
from benchmarks.mask_patterns import DENSE, Window
from benchmarks.problem import DTYPE_NAMES, Problem, Setting
from benchmarks.targets import Faster, MaxTimeRatio

LENGTHS = (8192, 65536)
_SIDE = 256
_WINDOW = Window(_SIDE, _SIDE)
_FASTER = {torch.float32: 3.0, torch.bfloat16: 12.0}
_MAX_TIME_FACTOR = 1.3
_DTYPES = (torch.float32, torch.bfloat16)


def _forward(dtype: torch.dtype, length: int) -> Case:
    line = f"{DTYPE_NAMES[dtype]} forward"
    return attention_case(
        f"{line} {length}",
        Setting(dtype, length, pattern=_WINDOW),
        targets=(Faster("flex", _FASTER[dtype]),),
        peers=("flex",),
        quick=length == LENGTHS[0],
        line=line,
        length=length,
    )


def _training(dtype: torch.dtype, length: int) -> Case:
    line = f"{DTYPE_NAMES[dtype]} training"
    setting = Setting(dtype, length, pattern=_WINDOW, backward=True)
    is_compared = length == LENGTHS[0]  # dense attention to more tokens takes minutes for each call
    case = attention_case(
        f"{line} {length}",
        setting,
        targets=(MaxTimeRatio("native-dense", _MAX_TIME_FACTOR * tile_share(length)),) if is_compared else (),
        peers=("native-dense",) if is_compared else (),
        line=line,
        length=length,
    )

    def prepare() -> PreparedCase:
        prepared = case.prepare()
        return replace(prepared, contestants={**prepared.contestants, "native-dense": _dense_contestant(setting)})

    return replace(case, prepare=prepare)


def _dense_contestant(setting: Setting) -> Callable[[], Contestant]:
    """Run regard with the same sizes without the window."""
    return lambda: contestants(Problem(replace(setting, pattern=DENSE)))["native"]()


@cache
def tile_share(length: int) -> float:
    """Share of the tiles of 64 queries x 64 keys that have an allowed pair."""
    tile = 64
    first = torch.arange(0, length, tile)
    touched = ((first - _SIDE).clamp(min=0) // tile, (first + tile - 1 + _SIDE).clamp(max=length - 1) // tile)
    return int((touched[1] - touched[0] + 1).sum()) / (length // tile) ** 2


SUITE = Suite(
    name="window",
    title="Window of 513 keys",
    description="Attention to 256 keys on each side, compared with compiled FlexAttention and with dense attention.",
    cases=(
        *(_forward(dtype, length) for dtype in _DTYPES for length in LENGTHS),
        *(_training(dtype, length) for dtype in _DTYPES for length in LENGTHS),
    ),
    scaling=tuple(
        ScalingTarget("time", tuple(f"{DTYPE_NAMES[dtype]} {kind} {length}" for length in LENGTHS))
        for kind in ("forward", "training")
        for dtype in _DTYPES
    ),
    notes=(
        "Bound for forward: the window touches 9 tiles of 64 keys for each tile of queries, 9.7 GFLOP at length 8,192. "
        "At the peak rates of the AMD EPYC that takes 18 ms in fp32 and 9 ms in bf16.",
        "Operations outside the window are not counted. FlexAttention has no backward pass on a CPU, so training "
        f"(forward and backward pass) is compared with dense attention. The target is {_MAX_TIME_FACTOR} times the "
        f"share of tiles that the window touches, which is {tile_share(LENGTHS[0]):.2%} at {LENGTHS[0]:,}.",
    ),
    kernels=kernel_sources.BACKWARD,
)
