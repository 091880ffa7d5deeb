"""Attention with a softcap, as in Gemma 2, and with sinks, as in gpt-oss, against the eager code of transformers.

    gemma-2    8 heads of 256 over 4 key heads (the 2B model), softcap 50, causal
    gpt-oss    16 heads of 64 over 2 key heads (a quarter of a layer), a sink for each head, causal

No kernel of torch computes either on a CPU, so models compute with "eager": matrices of queries x keys, one operation
after another. Both are given query, key and value, and eager its additive mask, which all layers of a model share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, final

import torch
from torch import Tensor

import regard
from benchmarks import kernel_sources
from benchmarks.accuracy import TOLERANCES, Deviation, choose_rows, deviation
from benchmarks.case import OURS, Case, Contestant, PreparedCase, ScalingTarget, Suite, Work
from benchmarks.mask_patterns import Causal
from benchmarks.optional_imports import import_transformers
from benchmarks.peaks import arithmetic_peaks
from benchmarks.problem import DTYPE_NAMES, Problem, Setting
from benchmarks.targets import Faster
from regard import masks

_SOFTCAP = 50.0
_SIZES = {"gemma-2": (8, 4, 256), "gpt-oss": (16, 2, 64)}
"""Query heads, key heads, head_dim."""
_LENGTHS = (512, 2048)
_LONG_LENGTHS = (4096, 8192, 16384)
_FASTER = 2.0


@final
class _CappedProblem:
    """The tensors, the terms of the model, and the contestants."""

    def __init__(self, model: str, setting: Setting) -> None:
        self.model, self.problem = model, Problem(setting)
        self.softcap = _SOFTCAP if model == "gemma-2" else None
        generator = torch.Generator().manual_seed(2024)
        drawn = torch.randn(setting.heads, generator=generator).to(setting.dtype)
        self.sinks = drawn.requires_grad_(setting.backward) if model == "gpt-oss" else None
        self.leaves = [*self.problem.leaves.values(), *([] if self.sinks is None else [self.sinks])]

    def contestant(self, name: str) -> Contestant:
        """Return the contestant of that name."""
        attend = self._regard() if name == OURS else self._eager()
        return Contestant(partial(self._solve, attend), lambda: list(self._deviations(attend)))

    def _regard(self) -> Callable[[], Tensor]:
        mask = masks.causal()
        query, key, value = self.problem.query, self.problem.key, self.problem.value

        def attend() -> Tensor:
            return regard.attention(
                query, key, value, mask=mask, softcap=self.softcap, sinks=self.sinks, impl="native"
            ).transpose(1, 2)

        return attend

    def _eager(self) -> Callable[[], Tensor]:
        import_transformers()
        compute: Any
        if self.model == "gemma-2":
            from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as compute
        else:
            from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as compute
        problem, length, dtype = self.problem, self.problem.setting.queries, self.problem.setting.dtype
        group = problem.setting.heads // problem.key_heads
        layer = SimpleNamespace(num_key_value_groups=group, training=False, sinks=self.sinks)
        hidden = ~torch.ones(length, length, dtype=torch.bool).tril()
        mask = torch.zeros(1, 1, length, length, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)

        def attend() -> Tensor:
            output: Tensor = compute(
                layer, problem.query, problem.key, problem.value, mask, scaling=problem.scale, softcap=self.softcap
            )[0]
            return output

        return attend

    def _solve(self, attend: Callable[[], Tensor]) -> object:
        """Solve once: the timed call."""
        if not self.problem.setting.backward:
            with torch.no_grad():
                return attend()
        return torch.autograd.grad(attend(), self.leaves, self.problem.grad_output.transpose(1, 2))

    def _deviations(self, attend: Callable[[], Tensor]) -> Iterator[Deviation]:
        """Compare some rows with the formula in float64, and the gradients if only these rows have one."""
        problem, backward = self.problem, self.problem.setting.backward
        length, tolerance = problem.setting.queries, TOLERANCES[problem.setting.dtype]
        rows = choose_rows(length)
        exact = [leaf.detach().double().requires_grad_(backward) for leaf in self.leaves]
        group = problem.setting.heads // problem.key_heads
        key, value = (part.repeat_interleave(group, dim=1) for part in exact[1:3])
        scores = exact[0][:, :, rows] @ key.mT * problem.scale
        if self.softcap is not None:
            scores = self.softcap * (scores / self.softcap).tanh()
        scores = scores.masked_fill(rows[:, None] < torch.arange(length), -torch.inf)
        if self.sinks is not None:
            scores = torch.cat([exact[3][None, :, None, None].expand(*scores.shape[:3], 1), scores], dim=-1)
        expected = (scores.softmax(-1)[..., -length:] @ value).transpose(1, 2)
        output = attend()
        yield deviation("output", output[:, rows].detach(), expected.detach(), tolerance)
        if backward:
            given = problem.grad_output.transpose(1, 2)
            upstream = torch.zeros_like(given).index_copy(1, rows, given[:, rows])
            found = torch.autograd.grad(output, self.leaves, upstream)
            right = torch.autograd.grad(expected, exact, given[:, rows].double())
            for name, one, other in zip(("query", "key", "value", "sinks"), found, right, strict=False):
                yield deviation(f"gradient of {name}", one, other, tolerance)


def _case(model: str, dtype: torch.dtype, length: int, *, training: bool, peers: tuple[str, ...]) -> Case:
    heads, key_heads, head_dim = _SIZES[model]
    setting = Setting(
        dtype, length, heads=heads, key_heads=key_heads, head_dim=head_dim, pattern=Causal(), backward=training
    )
    contestants = (OURS, *peers)

    def prepare() -> PreparedCase:
        problem = _CappedProblem(model, setting)
        work = Work(problem.problem.operations, "GFLOP/s", arithmetic_peaks(dtype))
        return PreparedCase(work, {name: partial(problem.contestant, name) for name in contestants})

    line = f"{DTYPE_NAMES[dtype]} {model} {'training' if training else 'forward'}"
    targets = (Faster("transformers", _FASTER),) if peers and length == max(_LENGTHS) and not training else ()
    is_quick = length == min(_LENGTHS)
    return Case(
        f"{line} {length}", str(setting), prepare, contestants, targets, quick=is_quick, line=line, length=length
    )


_UNTIMED = tuple(
    _case(model, torch.float32, length, training=training, peers=())
    for model in _SIZES
    for training in (False, True)
    for length in _LONG_LENGTHS
)
SUITE = Suite(
    name="softcap-sinks",
    title="Softcap and sinks",
    description="Attention of Gemma 2 (softcap) and of gpt-oss (sinks), compared with the eager code of transformers.",
    cases=tuple(
        _case(model, dtype, length, training=training, peers=("transformers",))
        for model in _SIZES
        for dtype in (torch.float32, torch.bfloat16)
        for training in (False, True)
        for length in _LENGTHS
    ),
    scaling=tuple(
        ScalingTarget("memory", tuple(case.name for case in _UNTIMED if f"{model} {kind}" in case.name))
        for model in _SIZES
        for kind in ("forward", "training")
    ),
    untimed=_UNTIMED,
    notes=("Eager computes all pairs of queries and keys; operations are counted for the visible ones.",),
    kernels=kernel_sources.BACKWARD,
)
