"""Additive attention, v . tanh(W_q q_i + W_k k_j), against the same formula written with broadcasting.

Bahdanau et al. 2015, section 3.1. Batch 8, 128 queries, 128 keys, a hidden layer of 256; one head. Both contestants
include the two projections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

import regard
from benchmarks.accuracy import TOLERANCES, Deviation, deviation
from benchmarks.case import Case, Contestant, PreparedCase, ScalingTarget, Suite, Work
from benchmarks.targets import Faster

_BATCH, _LENGTH, _WIDTH = 8, 128, 256
_FASTER = {"forward": 25.0, "training": 15.0}
_GROWTH_LENGTHS = (256, 512, 1024)


def broadcast(
    query: Tensor, key: Tensor, value: Tensor, query_weight: Tensor, key_weight: Tensor, score_vector: Tensor
) -> Tensor:
    """Compute it in the usual way, with a queries x keys x width tensor."""
    hidden = torch.tanh((query @ query_weight.mT)[:, :, :, None, :] + (key @ key_weight.mT)[:, :, None, :, :])
    return torch.softmax(hidden @ score_vector[0], dim=-1) @ value


@final
class _AdditiveProblem:
    """The tensors, and the contestants: regard's mechanism with an impl, and broadcasting."""

    def __init__(self, length: int, *, backward: bool) -> None:
        self.backward = backward
        self.generator = torch.Generator().manual_seed(2015)
        self.query, self.key, self.value = (self._random_leaf(_BATCH, 1, length, _WIDTH) for _ in range(3))
        self.query_weight, self.key_weight = (self._random_leaf(1, _WIDTH, _WIDTH, size=_WIDTH**-0.5) for _ in range(2))
        self.score_vector = self._random_leaf(1, _WIDTH, size=_WIDTH**-0.5)
        self.grad_output = torch.randn(self.query.shape, generator=self.generator)

    def contestant(self, name: str) -> Contestant:
        """Return the contestant of that name: "broadcast", or an impl."""
        attend = (lambda: broadcast(*self.leaves())) if name == "broadcast" else self._regard_attention(name)
        return Contestant(partial(self._solve, attend), lambda: list(self._deviations(attend)))

    def leaves(self) -> tuple[Tensor, ...]:
        """Return all tensors that get a gradient."""
        return (self.query, self.key, self.value, self.query_weight, self.key_weight, self.score_vector)

    def _regard_attention(self, impl: str) -> Callable[[], Tensor]:
        mechanism: Any = regard.mechanism("additive", heads=1, head_dim=_WIDTH, impl=impl)
        for name in ("query_weight", "key_weight", "score_vector"):
            delattr(mechanism, name)
            setattr(mechanism, name, getattr(self, name))
        return lambda: mechanism(self.query, self.key, self.value)

    def _solve(self, attend: Callable[[], Tensor]) -> object:
        """Solve once: the timed call."""
        if not self.backward:
            with torch.no_grad():
                return attend()
        return torch.autograd.grad(attend(), self.leaves(), self.grad_output)

    def _deviations(self, attend: Callable[[], Tensor]) -> Iterator[Deviation]:
        """Yield the deviations from the formula in float64."""
        allowed = TOLERANCES[torch.float32]
        exact = [leaf.detach().double().requires_grad_(self.backward) for leaf in self.leaves()]
        expected, output = broadcast(*exact), attend()
        yield deviation("output", output.detach(), expected.detach(), allowed)
        if self.backward:
            names = ("query", "key", "value", "query_weight", "key_weight", "score_vector")
            right = torch.autograd.grad(expected, exact, self.grad_output.double())
            found = torch.autograd.grad(output, self.leaves(), self.grad_output)
            for name, one, other in zip(names, found, right, strict=True):
                yield deviation(f"gradient of {name}", one, other, allowed)

    def _random_leaf(self, *shape: int, size: float = 1.0) -> Tensor:
        return (size * torch.randn(shape, generator=self.generator)).requires_grad_(self.backward)


def _prepare(kind: str, length: int) -> PreparedCase:
    problem = _AdditiveProblem(length, backward=kind == "training")
    work = Work(_BATCH * length * length * _WIDTH, "Gtanh/s")
    return PreparedCase(
        work, {name: partial(problem.contestant, name) for name in ("native", "reference", "broadcast")}
    )


def _case(kind: str, length: int = _LENGTH) -> Case:
    return Case(
        f"fp32 {kind} {length}",
        f"batch {_BATCH}, {length:,} queries and keys, width {_WIDTH}",
        partial(_prepare, kind, length),
        ("native", "broadcast"),
        (Faster("broadcast", _FASTER[kind]),),
        quick=True,
        length=length,
    )


SUITE = Suite(
    name="additive",
    title="Additive attention",
    description="Bahdanau attention, compared with torch operations that allocate a queries x keys x width tensor.",
    cases=tuple(_case(kind) for kind in _FASTER),
    scaling=(ScalingTarget("memory", tuple(f"fp32 training {length}" for length in _GROWTH_LENGTHS)),),
    untimed=tuple(_case("training", length) for length in _GROWTH_LENGTHS),
    notes=("training: forward and backward pass. Both implementations include the two projections.",),
    kernels=("additive/additive.cpp", "additive/additive_forward.h", "additive/additive_backward.h"),
)
