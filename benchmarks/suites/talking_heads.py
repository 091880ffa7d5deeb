"""Talking-heads attention, forward, and forward and backward: against timm, plain torch and our own exact attention.

    native          R softmax(P q . k / sqrt(d)) v, P and R over heads, in a kernel of its own
    timm            the attention of CaiT, whose projections are left out: it gets queries, keys and values
    reference       plain torch, in tiles of queries
    native-dense    softmax(q . k / sqrt(d)) v, in the kernels of exact attention

Batch 1, 8 heads of 64. Beside the two products of dot-product attention, each pair of a query and a key has two
products of 8 numbers with a matrix 8 x 8: an eighth more operations for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

import regard
from benchmarks.accuracy import TOLERANCES, Deviation, choose_rows, deviation
from benchmarks.case import Case, Contestant, PreparedCase, Suite, Work
from benchmarks.optional_imports import missing_package_error
from benchmarks.peaks import arithmetic_peaks
from benchmarks.problem import DTYPE_NAMES
from benchmarks.targets import Faster, MaxTimeRatio
from regard import masks
from regard.masks.base import Mask
from regard.mechanisms import TalkingHeads

_HEADS, _HEAD_DIM = 8, 64
_LENGTHS = (512, 2048)
_MASKS: dict[str, Mask | None] = {"dense": None, "causal": masks.causal()}


@final
class _TalkingHeadsProblem:
    """The tensors, (batch, length, 3, heads, head_dim) as timm has them, and the contestants."""

    def __init__(self, mask: Mask | None, length: int, *, backward: bool) -> None:
        self.mask, self.backward = mask, backward
        generator = torch.Generator().manual_seed(2020)
        self.tokens = torch.randn(1, length, 3, _HEADS, _HEAD_DIM, generator=generator).requires_grad_(backward)
        self.grad_output = torch.randn(1, length, _HEADS, _HEAD_DIM, generator=generator).transpose(1, 2)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(2020)
            self.mix = {
                impl: TalkingHeads(heads=_HEADS, head_dim=_HEAD_DIM, impl=impl) for impl in ("native", "reference")
            }
        self.mix["reference"].load_state_dict(self.mix["native"].state_dict())

    def contestant(self, name: str) -> Contestant:
        """Return the contestant of that name. Raises MissingPackageError if timm is missing."""
        compute = self._timm() if name == "timm" else partial(self._ours, name)
        exact = self._softmax_formula if name == "native-dense" else self._formula
        return Contestant(partial(self._solve, compute), lambda: list(self._deviations(compute, exact)))

    def _ours(self, name: str, tokens: Tensor) -> Tensor:
        sides = tokens.permute(2, 0, 3, 1, 4).unbind()
        if name == "native-dense":
            return regard.attention(*sides, mask=self.mask, impl="native")
        output: Tensor = self.mix[name](*sides, self.mask)
        return output

    def _timm(self) -> Callable[[Tensor], Tensor]:
        """The attention of CaiT with the same matrices, and with nothing before and after it."""
        try:
            from timm.models.cait import TalkingHeadAttn
        except ImportError:
            raise missing_package_error("timm", "timm torchvision") from None
        theirs: Any = TalkingHeadAttn(_HEADS * _HEAD_DIM, _HEADS).eval().requires_grad_(False)
        mine = self.mix["native"]
        with torch.no_grad():
            for linear, matrix in ((theirs.proj_l, mine.score_mixing), (theirs.proj_w, mine.weight_mixing)):
                linear.weight.copy_(matrix.T)
                linear.bias.zero_()
        theirs.proj = torch.nn.Identity()
        theirs.qkv = projected = _Projected()

        def compute(tokens: Tensor) -> Tensor:
            projected.tokens = tokens
            output: Tensor = theirs(tokens.flatten(2)[..., : _HEADS * _HEAD_DIM])
            return output.unflatten(2, (_HEADS, _HEAD_DIM)).transpose(1, 2)

        return compute

    def _solve(self, compute: Callable[[Tensor], Tensor]) -> object:
        """Solve once: the timed call."""
        if not self.backward:
            with torch.no_grad():
                return compute(self.tokens)
        return torch.autograd.grad(compute(self.tokens), self.tokens, self.grad_output)

    def _deviations(
        self, compute: Callable[[Tensor], Tensor], formula: Callable[[Tensor, Tensor], Tensor]
    ) -> Iterator[Deviation]:
        """Compare some rows with the formula in float64, and the gradients if only these rows have one."""
        rows, tolerance = choose_rows(self.tokens.shape[1]), TOLERANCES[torch.float32]
        exact = self.tokens.detach().double().requires_grad_(self.backward)
        expected, output = formula(exact, rows), compute(self.tokens)
        yield deviation("output", output[:, :, rows].detach(), expected.detach(), tolerance)
        if self.backward:
            upstream = torch.zeros_like(self.grad_output).index_copy(2, rows, self.grad_output[:, :, rows])
            (found,) = torch.autograd.grad(output, self.tokens, upstream)
            (right,) = torch.autograd.grad(expected, exact, self.grad_output[:, :, rows].double())
            for side, name in enumerate(("query", "key", "value")):
                yield deviation(f"gradient of {name}", found[:, :, side], right[:, :, side], tolerance)

    def _scores(self, tokens: Tensor, rows: Tensor) -> Tensor:
        query, key, _ = tokens.permute(2, 0, 3, 1, 4).unbind()
        return query[:, :, rows] @ key.mT * _HEAD_DIM**-0.5

    def _hide(self, scores: Tensor, rows: Tensor) -> Tensor:
        keys = scores.shape[3]
        return scores if self.mask is None else scores.masked_fill(~self.mask.dense(keys, keys)[:, :, rows], -torch.inf)

    def _formula(self, tokens: Tensor, rows: Tensor) -> Tensor:
        mix = self.mix["native"]
        before, after = (matrix.detach().double() for matrix in (mix.score_mixing, mix.weight_mixing))
        mixed = torch.einsum("bhij,hg->bgij", self._scores(tokens, rows), before)
        weights = torch.einsum("bgij,gf->bfij", self._hide(mixed, rows).softmax(-1), after)
        return weights @ tokens[:, :, 2].transpose(1, 2)

    def _softmax_formula(self, tokens: Tensor, rows: Tensor) -> Tensor:
        return self._hide(self._scores(tokens, rows), rows).softmax(-1) @ tokens[:, :, 2].transpose(1, 2)


@final
class _Projected(torch.nn.Module):
    """In place of a projection: returns tokens that are projected already."""

    tokens: Any = None

    def forward(self, tokens: Tensor) -> Tensor:
        """Return queries, keys and values (batch, length, 3 width)."""
        del tokens
        projected: Tensor = self.tokens.flatten(2)
        return projected


def _case(pattern: str, length: int, *, training: bool) -> Case:
    def prepare() -> PreparedCase:
        problem = _TalkingHeadsProblem(_MASKS[pattern], length, backward=training)
        pairs = length**2 if pattern == "dense" else length * (length + 1) // 2
        operations = 4 * _HEADS * (_HEAD_DIM + _HEADS) * pairs * (3.5 if training else 1.0)
        work = Work(operations, "GFLOP/s", arithmetic_peaks(torch.float32))
        return PreparedCase(work, {name: partial(problem.contestant, name) for name in contestants})

    # timm's attention takes no mask.
    contestants = ("native", *(("timm",) if pattern == "dense" else ()), "reference", "native-dense")
    line = f"{DTYPE_NAMES[torch.float32]} {pattern} {'training' if training else 'forward'}"
    return Case(
        f"{line} {length}",
        f"batch 1, {_HEADS} heads of {_HEAD_DIM}, {length:,} tokens",
        prepare,
        contestants,
        (Faster("timm", 2.0), Faster("reference", 2.0), MaxTimeRatio("native-dense", 2.5)),
        quick=length == min(_LENGTHS),
        line=line,
        length=length,
    )


SUITE = Suite(
    name="talking-heads",
    title="Talking-heads attention",
    description="Scores and weights are mixed across heads: compared with timm's CaiT, and with plain torch.",
    cases=tuple(
        _case(pattern, length, training=training)
        for training in (False, True)
        for pattern in _MASKS
        for length in _LENGTHS
    ),
    notes=(
        "timm gets queries, keys and values, without its projections. It takes no mask, so it has no causal case.",
        "regard, dense, is softmax attention without the mixing, another result.",
        "Operations: 4 x (64 + 8) for each pair of a query and a visible key of a head, and 3.5 times as many forward "
        "and backward.",
    ),
    kernels=(
        "talking_heads/talking_heads.cpp",
        "talking_heads/talking_heads_forward.h",
        "talking_heads/talking_heads_backward.h",
    ),
)
