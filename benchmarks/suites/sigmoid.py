"""Sigmoid attention against regard's own softmax attention and against plain torch: forward, and forward and backward.

    native          sigmoid(q . k / sqrt(d) - log n) v in the kernels of exact attention
    native-dense    softmax(q . k / sqrt(d)) v, in the same kernels
    reference       the sigmoid in plain torch, in tiles of queries

Batch 1, 8 heads of 64. A sigmoid needs no maximum and no sum of a row, and the products are the same, so the kernel
should take no longer than that of the softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import final

import torch
from torch import Tensor

import regard
from benchmarks import kernel_sources
from benchmarks.accuracy import TOLERANCES, Deviation, choose_rows, deviation
from benchmarks.case import Case, Contestant, PreparedCase, Suite, Work
from benchmarks.peaks import arithmetic_peaks
from benchmarks.problem import DTYPE_NAMES
from benchmarks.targets import Faster, MaxTimeRatio
from regard import masks
from regard.masks.base import Mask

_HEADS, _HEAD_DIM = 8, 64
_LENGTHS = (512, 2048)
_DTYPES = (torch.float32, torch.bfloat16)
_MASKS: dict[str, Mask | None] = {"dense": None, "causal": masks.causal()}
_MIX = {
    impl: regard.mechanism("sigmoid", heads=_HEADS, head_dim=_HEAD_DIM, impl=impl) for impl in ("native", "reference")
}


@final
class _SigmoidProblem:
    """The tensors, in the memory layout of layers (batch, length, heads, size), and the contestants."""

    def __init__(self, dtype: torch.dtype, mask: Mask | None, length: int, *, backward: bool) -> None:
        self.mask, self.backward = mask, backward
        generator = torch.Generator().manual_seed(2025)

        def random() -> Tensor:
            return torch.randn(1, length, _HEADS, _HEAD_DIM, generator=generator).to(dtype).transpose(1, 2)

        self.leaves = [random().requires_grad_(backward) for _ in range(3)]
        self.grad_output = random()

    def contestant(self, name: str) -> Contestant:
        """Return the contestant of that name."""
        compute = self._softmax if name == "native-dense" else partial(_MIX[name], mask=self.mask)
        return Contestant(partial(self._solve, compute), lambda: list(self._deviations(compute)))

    def _softmax(self, *leaves: Tensor) -> Tensor:
        return regard.attention(*leaves, mask=self.mask, impl="native")

    def _solve(self, compute: Callable[..., Tensor]) -> object:
        """Solve once: the timed call."""
        if not self.backward:
            with torch.no_grad():
                return compute(*self.leaves)
        return torch.autograd.grad(compute(*self.leaves), self.leaves, self.grad_output)

    def _deviations(self, compute: Callable[..., Tensor]) -> Iterator[Deviation]:
        """Compare some rows with the formula in float64, and the gradients if only these rows have one."""
        length, tolerance = self.leaves[0].shape[2], TOLERANCES[self.grad_output.dtype]
        rows = choose_rows(length)
        exact = [leaf.detach().double().requires_grad_(self.backward) for leaf in self.leaves]
        allowed = torch.ones(length, length, dtype=torch.bool)
        allowed = (allowed if self.mask is None else self.mask.dense(length, length)[0, 0])[rows]
        scores = exact[0][:, :, rows] @ exact[1].mT * _HEAD_DIM**-0.5
        scores = scores.masked_fill(~allowed, -torch.inf)
        is_softmax = compute == self._softmax
        weights = scores.softmax(-1) if is_softmax else (scores - allowed.sum(-1, keepdim=True).log()).sigmoid()
        expected, output = weights @ exact[2], compute(*self.leaves)
        yield deviation("output", output[:, :, rows].detach(), expected.detach(), tolerance)
        if self.backward:
            upstream = torch.zeros_like(self.grad_output).index_copy(2, rows, self.grad_output[:, :, rows])
            found = torch.autograd.grad(output, self.leaves, upstream)
            right = torch.autograd.grad(expected, exact, self.grad_output[:, :, rows].double())
            for name, one, other in zip(("query", "key", "value"), found, right, strict=True):
                yield deviation(f"gradient of {name}", one, other, tolerance)


def _case(dtype: torch.dtype, pattern: str, length: int, *, training: bool) -> Case:
    def prepare() -> PreparedCase:
        problem = _SigmoidProblem(dtype, _MASKS[pattern], length, backward=training)
        pairs = length**2 if pattern == "dense" else length * (length + 1) // 2
        work = Work(4 * _HEADS * _HEAD_DIM * pairs * (3.5 if training else 1.0), "GFLOP/s", arithmetic_peaks(dtype))
        return PreparedCase(work, {name: partial(problem.contestant, name) for name in contestants})

    contestants = ("native", "native-dense", "reference")
    line = f"{DTYPE_NAMES[dtype]} {pattern} {'training' if training else 'forward'}"
    return Case(
        f"{line} {length}",
        f"batch 1, {_HEADS} heads of {_HEAD_DIM}, {length:,} tokens",
        prepare,
        contestants,
        (MaxTimeRatio("native-dense", 1.05), Faster("reference", 3.0)),
        quick=length == min(_LENGTHS),
        line=line,
        length=length,
    )


SUITE = Suite(
    name="sigmoid",
    title="Sigmoid attention",
    description="Sigmoid attention, compared with regard's own softmax attention, and with plain torch.",
    cases=tuple(
        _case(dtype, pattern, length, training=training)
        for dtype in _DTYPES
        for training in (False, True)
        for pattern in _MASKS
        for length in _LENGTHS
    ),
    notes=(
        "Softmax attention computes another result, with the same products of matrices.",
        "Operations: 4 x 64 for each pair of a query and a visible key, and 3.5 times as many forward and backward.",
    ),
    kernels=(*kernel_sources.BACKWARD, "attention/sigmoid.cpp", "attention/sigmoid_forward.h"),
)
