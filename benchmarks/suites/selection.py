"""Mechanisms that choose keys, against regard's own exact causal attention: forward, and forward and backward.

    moba     the own block of 512 tokens and the 2 best others: at most 1,536 keys of each query
    top_k    the 256 highest scores: the yardstick, which computes all scores
    dsa      the 512 highest scores of an indexer with 4 heads of 32
    nsa      compressed blocks, 16 chosen blocks of 64, and a window of 512

Width 512, 8 heads of 64, float32. Queries and keys follow a slow random walk, so that neighbours are alike, as in
texts; which blocks are chosen together does not change the work, only how evenly it is spread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

import regard
from benchmarks import kernel_sources
from benchmarks.accuracy import TOLERANCES, Deviation, choose_rows, deviation
from benchmarks.case import LINEAR_SLOPE, Case, Contestant, PreparedCase, ScalingTarget, Suite, Work
from benchmarks.peaks import arithmetic_peaks
from benchmarks.targets import Faster, Target
from regard import masks
from regard.kernels.reference.attention import compute_output, make_dot_product_problem
from regard.kernels.request import Request, Terms
from regard.mechanisms.chosen_keys import ChosenKeysMechanism, visible_keys
from regard.mechanisms.nsa import NativeSparseAttention

_HEADS, _HEAD_DIM = 8, 64
_LENGTHS = (4096, 16384)
_GROWTH_LENGTHS = (16384, 65536)
_OPTIONS: dict[str, dict[str, Any]] = {
    "moba": {"block": 512, "chosen_blocks": 3},
    "top_k": {"keys": 256},
    "dsa": {"keys": 512},
    "nsa": {},
}


def count_keys(name: str, length: int) -> int:
    """Count the keys that all queries of a head attend to."""
    options = _OPTIONS[name]
    position = torch.arange(length)
    if "keys" in options:
        return int((position + 1).clamp(max=options["keys"]).sum())
    if name == "nsa":
        compressed = ((position + 1 - 32) // 16 + 1).clamp(min=0)
        blocks = (position // 64).clamp(max=15) * 64 + position % 64 + 1
        return int((compressed + blocks + (position + 1).clamp(max=512)).sum())
    block = options["block"]
    earlier = (position // block).clamp(max=options["chosen_blocks"] - 1)
    return int((earlier * block + position % block + 1).sum())


@final
class _SelectionProblem:
    """The tensors, in the memory layout of layers (batch, length, heads, size), and the contestants."""

    def __init__(self, name: str, length: int, *, backward: bool) -> None:
        self.backward = backward
        mechanism = regard.mechanism(name, heads=_HEADS, head_dim=_HEAD_DIM, **_OPTIONS[name])
        assert isinstance(mechanism, ChosenKeysMechanism)
        self.mechanism = mechanism
        generator = torch.Generator().manual_seed(2025)

        def random() -> Tensor:
            return torch.randn(1, length, _HEADS, _HEAD_DIM, generator=generator)

        walk = random().cumsum(1)
        walk = (walk - walk.mean(1, keepdim=True)) / walk.std(1, keepdim=True)
        leaves = walk + random(), walk + random(), random()
        self.leaves = [leaf.transpose(1, 2).requires_grad_(backward) for leaf in leaves]
        self.grad_output = random().transpose(1, 2)
        self.inputs: dict[str, Tensor] = {}
        if name == "dsa":
            walk = walk[:, :, :1, :32]
            self.inputs = {
                "index_query": (walk + random()[:, :, :4, :32]).transpose(1, 2),
                "index_key": (walk + random()[:, :, :1, :32]).transpose(1, 2),
                "index_weight": random()[:, :, :4, :1].transpose(1, 2),
            }

    def contestant(self, name: str) -> Contestant:
        """Return the contestant of that name."""
        compute = self._ours if name == "native" else self._dense
        return Contestant(partial(self._solve, compute), lambda: list(self._deviations(compute)))

    def _ours(self, leaves: list[Tensor]) -> Tensor:
        output: Tensor = self.mechanism(*leaves, masks.causal(), **self.inputs)
        return output

    def _dense(self, leaves: list[Tensor]) -> Tensor:
        return regard.attention(*leaves, mask=masks.causal(), impl="native")

    def _solve(self, compute: Callable[[list[Tensor]], Tensor]) -> object:
        """Solve once: the timed call."""
        if not self.backward:
            with torch.no_grad():
                return compute(self.leaves)
        return torch.autograd.grad(compute(self.leaves), self.leaves, self.grad_output)

    def _deviations(self, compute: Callable[[list[Tensor]], Tensor]) -> Iterator[Deviation]:
        """Compare some rows with plain torch in float64, and the gradients if only these rows have one."""
        length = self.leaves[0].shape[2]
        rows = choose_rows(length)
        exact = [leaf.detach().double().requires_grad_(self.backward) for leaf in self.leaves]
        expected = self._expect(exact, rows, compute)
        output = compute(self.leaves)
        yield deviation("output", output[:, :, rows].detach(), expected.detach(), TOLERANCES[torch.float32])
        if self.backward:
            upstream = torch.zeros_like(self.grad_output).index_copy(2, rows, self.grad_output[:, :, rows])
            found = torch.autograd.grad(output, self.leaves, upstream)
            right = torch.autograd.grad(expected, exact, self.grad_output[:, :, rows].double())
            for name, one, other in zip(("query", "key", "value"), found, right, strict=True):
                yield deviation(f"gradient of {name}", one, other, TOLERANCES[torch.float32])

    def _expect(self, exact: list[Tensor], rows: Tensor, compute: Callable[[list[Tensor]], Tensor]) -> Tensor:
        """Compute some rows in float64: by plain torch under the choice; nsa, whose branches are gated, as it is."""
        if isinstance(self.mechanism, NativeSparseAttention) and compute == self._ours:
            return self._ours(exact)[:, :, rows]
        query, key, value = self.leaves
        request = self.mechanism.make_request(query, key, value, masks.causal(), None, self.inputs)
        choose = self.mechanism.choose if compute == self._ours else visible_keys
        with torch.no_grad():
            mask = masks.keep(choose(request, rows))
        wide = Request(exact[0][:, :, rows], exact[1], exact[2], Terms(mask, scale=self.mechanism.scale))
        return compute_output(make_dot_product_problem(wide), dtype=torch.float64)


def _case(name: str, length: int, *, training: bool = False, by: float | None = None, quick: bool = False) -> Case:
    def prepare() -> PreparedCase:
        problem = _SelectionProblem(name, length, backward=training)
        operations = 4 * _HEADS * _HEAD_DIM * count_keys(name, length) * (3.5 if training else 1.0)
        work = Work(operations, "GFLOP/s", arithmetic_peaks(torch.float32))
        return PreparedCase(work, {one: partial(problem.contestant, one) for one in contestants})

    contestants = ("native", "native-dense") if length in _LENGTHS else ("native",)
    targets: tuple[Target, ...] = () if by is None else (Faster("native-dense", by),)
    line = f"{name} {'training' if training else 'forward'}"
    sizes = f"batch 1, {_HEADS} heads of {_HEAD_DIM}, {length:,} tokens, causal"
    return Case(f"{line} {length}", sizes, prepare, contestants, targets, quick=quick, line=line, length=length)


SUITE = Suite(
    name="selection",
    title="Exact attention on chosen keys",
    description="Mechanisms that choose keys or blocks of keys for each query, compared with exact causal attention.",
    cases=(
        _case("moba", 4096, by=1.0, quick=True),
        _case("moba", 16384, by=3.0),
        _case("moba", 4096, training=True, by=1.0),
        _case("moba", 16384, training=True, by=3.0),
        _case("top_k", 4096),
        _case("top_k", 16384),
        _case("top_k", 16384, training=True, by=1.0),
        _case("dsa", 4096),
        _case("dsa", 16384, by=1.0),
        _case("dsa", 16384, training=True, by=1.0),
        _case("nsa", 4096),
        _case("nsa", 16384),
        _case("nsa", 16384, training=True),
    ),
    scaling=(
        ScalingTarget("memory", tuple(f"moba forward {length}" for length in _GROWTH_LENGTHS), slope=LINEAR_SLOPE),
    ),
    untimed=(_case("moba", max(_GROWTH_LENGTHS)),),
    notes=(
        "Operations: 4 x 64 for each key that a query attends to, and 3.5 times as many forward and backward; the "
        "scores that choose are not counted. The choice is part of the time.",
        "Exact causal attention computes another result, and has 1.9 times the keys of moba at 4,096 tokens and 6.6 "
        "times at 16,384.",
    ),
    kernels=(
        *kernel_sources.BACKWARD,
        "selection/choice.cpp",
        "selection/chosen_blocks.cpp",
        "selection/chosen_blocks_backward.cpp",
        "selection/gathered_keys.cpp",
        "selection/selection_kernels.cpp",
    ),
)
