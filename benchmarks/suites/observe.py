"""``regard.observe`` with all statistics, against native attention without statistics.

Output, lse, entropy, received mass, the 8 largest weights of each query, and 8 rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

import regard
from benchmarks.accuracy import TOLERANCES, Deviation, deviation
from benchmarks.attention_baselines import contestants
from benchmarks.case import Case, Contestant, PreparedCase, Suite, Work
from benchmarks.peaks import arithmetic_peaks
from benchmarks.problem import DTYPE_NAMES, Problem, Setting
from benchmarks.suites.forward import PATTERNS
from benchmarks.targets import MaxTimeRatio
from regard.contract import Observation

_LENGTH = 8192
_QUICK_LENGTH = 2048
_MAX_TIME_RATIO = 2.5
_TOP = 8
_CHUNK = 512


def _case(dtype: torch.dtype, pattern: str, length: int) -> Case:
    setting = Setting(dtype, length, pattern=PATTERNS[pattern])
    return Case(
        f"{DTYPE_NAMES[dtype]} {pattern} {length}",
        str(setting),
        partial(_prepare, setting),
        ("native", "native-forward"),
        (MaxTimeRatio("native-forward", _MAX_TIME_RATIO),),
        quick=length == _QUICK_LENGTH and dtype == torch.float32,
    )


def _prepare(setting: Setting) -> PreparedCase:
    problem = Problem(setting)
    work = Work(problem.operations, "GFLOP/s", arithmetic_peaks(setting.dtype))
    makers: dict[str, Callable[[], Contestant]] = {
        name: partial(_make_contestant, problem, name) for name in ("native", "reference")
    }
    return PreparedCase(work, makers | {"native-forward": contestants(problem)["native"]})


def _make_contestant(problem: Problem, impl: str) -> Contestant:
    mask, rows = problem.setting.pattern.mask(), _rows(problem)
    query, key, value = problem.query, problem.key, problem.value

    def observe() -> Observation:
        return regard.observe(query, key, value, mask=mask, top=_TOP, rows=rows, impl=impl)

    return Contestant(observe, lambda: list(_deviations(problem, observe())))


def _rows(problem: Problem) -> list[int]:
    last = problem.setting.queries - 1
    return [last * number // 7 for number in range(8)]


def _deviations(problem: Problem, seen: Observation) -> Iterator[Deviation]:
    """Compute all statistics of the last head in float64, in chunks of queries."""
    allowed = TOLERANCES[problem.setting.dtype]
    query, key, value = (tensor[:, -1].double() for tensor in (problem.query, problem.key, problem.value))
    received = torch.zeros(1, problem.keys, dtype=torch.float64)
    parts: dict[str, list[Tensor]] = {"output": [], "lse": [], "entropy": [], "top_weights": [], "at top_keys": []}
    for rows in torch.arange(problem.setting.queries).split(_CHUNK):
        scores = problem.scale * query[:, rows] @ key.transpose(-2, -1)
        cells = problem.setting.pattern.cells(torch.tensor([0]), rows, problem.keys)
        scores = scores if cells is None else scores.masked_fill(~cells[0], -torch.inf)
        logs = torch.log_softmax(scores, dim=-1)
        weights = logs.exp()
        received += weights.sum(1)
        named = seen.top_keys[:, -1, rows]
        parts["output"].append(weights @ value)
        parts["lse"].append(scores.logsumexp(-1))
        parts["entropy"].append(-(weights * logs.masked_fill(weights == 0, 0.0)).sum(-1))
        parts["top_weights"].append(weights.topk(_TOP).values)
        parts["at top_keys"].append(weights.gather(-1, named.clamp(min=0)).masked_fill(named < 0, 0.0))
    expected = {name: torch.cat(part, dim=1) for name, part in parts.items()}
    for name in ("output", "lse", "entropy", "top_weights"):
        yield deviation(name, getattr(seen, name)[:, -1], expected[name], allowed)
    yield deviation("weights at top_keys", expected["at top_keys"], expected["top_weights"], allowed)
    yield deviation("received", seen.received[:, -1], received, allowed)
    yield from _row_deviations(problem, seen, allowed)


def _row_deviations(problem: Problem, seen: Observation, allowed: float) -> Iterator[Deviation]:
    rows = torch.tensor(_rows(problem))
    query, key = (tensor[:, -1].double() for tensor in (problem.query, problem.key))
    scores = problem.scale * query[:, rows] @ key.transpose(-2, -1)
    cells = problem.setting.pattern.cells(torch.tensor([0]), rows, problem.keys)
    scores = scores if cells is None else scores.masked_fill(~cells[0], -torch.inf)
    assert seen.rows is not None
    yield deviation("rows", seen.rows[:, -1], torch.softmax(scores, dim=-1), allowed)


SUITE = Suite(
    name="observe",
    title="Attention statistics",
    description="regard.observe with all statistics, compared with the same attention without statistics.",
    cases=tuple(
        _case(dtype, pattern, length)
        for dtype in (torch.float32, torch.bfloat16)
        for pattern in PATTERNS
        for length in (_QUICK_LENGTH, _LENGTH)
    ),
    notes=("Only the operations for the output are counted.",),
    kernels=("observe/observe.cpp", "observe/observe.h", "attention/matrix_forward.h"),
)
