"""Error of a contestant's result relative to float64. The speed of a wrong result is not reported.

Some batch entries and some query rows are computed in float64, with all keys: this detects a wrong result, and is cheap
at any length. For gradients, the gradient of the output is 0 in the other rows, so sums over queries are known.

    deviation = |answer - expected| / |expected|            norms over all compared numbers

With dropout, results are random, but have known properties (for one mask, everything below is linear in it):

    z = (output - expected) / standard deviation            has a mean square of 1
    gradients                                               have the expected ones as their means
    <dO, O> = <dV, V>   and   <dQ, Q> = <dK, K>             hold if backward drops what forward dropped
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from benchmarks.problem import Problem

AttentionCall = Callable[[], Tensor]

TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Allowed deviations: some tens of roundings of the dtype in float32, a few in half precision."""
_BIAS_TOLERANCE_FACTOR = 5
"""Factor of the tolerance for a bias's gradient, which sums terms of all queries and keys that cancel in each row."""
_SUM_TOLERANCE = 0.05
"""Allowed difference of two sums that are equal except for rounding; with different masks it is about 0.4."""
_NUM_CHECKED_ROWS = 33


@final
@dataclass(frozen=True)
class Deviation:
    """Relative error of one result, and the allowed error."""

    what: str
    size: float
    allowed: float

    @property
    def is_wrong(self) -> bool:
        """Whether the error is larger than allowed, or NaN."""
        return not self.size <= self.allowed


def choose_rows(length: int) -> Tensor:
    """Choose the rows that are compared, evenly spaced; the first and the last are among them."""
    return torch.linspace(0, length - 1, min(_NUM_CHECKED_ROWS, length)).round().long()


def deviation(what: str, answer: Tensor, expected: Tensor, allowed: float) -> Deviation:
    """Compute the distance of a result from the expected one, relative to the norm of the expected one."""
    if answer.shape != expected.shape:
        return Deviation(f"{what} of shape {tuple(answer.shape)} for {tuple(expected.shape)}", math.inf, allowed)
    size = (answer.double() - expected).norm() / expected.norm()
    return Deviation(what, float(size), allowed)


@final
class Float64Reference:
    """Attention in float64 for some entries and rows of a problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem, setting = problem, problem.setting
        self.entries = torch.tensor(sorted({0, setting.batch - 1}))
        self.rows = choose_rows(setting.queries)
        group = setting.heads // problem.key_heads
        self.query = self._select_entries(problem.query)[:, :, self.rows].requires_grad_(setting.backward)
        self.key, self.value = (
            self._select_entries(one).requires_grad_(setting.backward) for one in (problem.key, problem.value)
        )
        self.weight = None if problem.bias is None else problem.bias.weight.detach().double().requires_grad_()
        key, value = (one.repeat_interleave(group, dim=1) for one in (self.key, self.value))
        scores = problem.scale * self.query @ key.transpose(-2, -1) + self._compute_bias()
        cells = setting.pattern.cells(self.entries, self.rows, problem.keys)
        scores = scores if cells is None else scores.masked_fill(~cells, -torch.inf)
        self.weights = torch.softmax(scores, dim=-1)
        self.output = self.weights @ value
        variance = setting.dropout / (1 - setting.dropout) * (self.weights**2 @ value**2)
        self.dropout_std = variance.sqrt().detach()

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of all inputs, for a gradient of the output that is 0 except in the selected rows."""
        leaves = {"query": self.query, "key": self.key, "value": self.value}
        leaves |= {} if self.weight is None else {"bias": self.weight}
        grad_output = self.problem.grad_output[self.entries][:, :, self.rows].double()
        found = torch.autograd.grad(self.output, list(leaves.values()), grad_output, retain_graph=True)
        gradients = dict(zip(leaves, found, strict=True))
        whole = torch.zeros(*self.problem.query[self.entries].shape, dtype=torch.float64)
        whole[:, :, self.rows] = gradients["query"]
        return gradients | {"query": whole}

    def grad_output(self) -> Tensor:
        """Return the gradient of the output for ``gradients``, (batch, heads, queries, value_dim)."""
        sparse = torch.zeros_like(self.problem.grad_output)
        for entry in self.entries:
            sparse[entry, :, self.rows] = self.problem.grad_output[entry, :, self.rows]
        return sparse

    def select_rows(self, output: Tensor) -> Tensor:
        """Select the entries and rows of an output that ``self.output`` has, in float64."""
        return output.detach()[self.entries][:, :, self.rows].double()

    def _select_entries(self, tensor: Tensor) -> Tensor:
        return tensor.detach()[self.entries].double()

    def _compute_bias(self) -> Tensor | float:
        if self.weight is None or self.problem.bias is None:
            return 0.0
        distance = torch.arange(self.problem.keys) - self.rows[:, None]
        return self.weight[self.problem.bias.bucket(distance)].permute(2, 0, 1)


def deviations(problem: Problem, attend: AttentionCall) -> Iterator[Deviation]:
    """Yield the deviations of the output, and of the gradients if the problem has a backward pass."""
    expected = Float64Reference(problem)
    if problem.setting.dropout:
        yield from _dropout_deviations(problem, expected, attend)
        return
    allowed = TOLERANCES[problem.setting.dtype]
    output = attend()
    yield _nonfinite_deviation(output)
    yield deviation("output", expected.select_rows(output), expected.output.detach(), allowed)
    if problem.setting.backward:
        trained = problem.leaves
        found = torch.autograd.grad(output, list(trained.values()), expected.grad_output())
        for (name, right), gradient in zip(expected.gradients().items(), found, strict=True):
            times = _BIAS_TOLERANCE_FACTOR if name == "bias" else 1
            yield deviation(
                f"gradient of {name}", _select_gradient_entries(expected, name, gradient), right, times * allowed
            )


def _dropout_deviations(problem: Problem, expected: Float64Reference, attend: AttentionCall) -> Iterator[Deviation]:
    """Yield the deviations for dropout, which the module docstring defines."""
    output = attend()
    yield _nonfinite_deviation(output)
    distance = (expected.select_rows(output) - expected.output.detach()) / expected.dropout_std
    yield Deviation("size of the noise that dropout adds", abs(float((distance**2).mean()) - 1), 0.1)
    grad_output = expected.grad_output()
    found = torch.autograd.grad(output, list(problem.leaves.values()), grad_output)
    gradients = dict(zip(problem.leaves, found, strict=True))
    for name, right in expected.gradients().items():
        mine = _select_gradient_entries(expected, name, gradients[name])
        yield Deviation(f"mean gradient of {name}", abs(float((mine * right).sum() / (right**2).sum()) - 1), 0.05)
    values, of_values = gradients["value"] * problem.value, grad_output * output
    yield _sum_deviation("<dO, O> and <dV, V>", of_values, values)
    queries, keys = (gradients[name] * getattr(problem, name) for name in ("query", "key"))
    yield _sum_deviation("<dQ, Q> and <dK, K>", queries, keys)


def _sum_deviation(what: str, left: Tensor, right: Tensor) -> Deviation:
    """Compare the sums of two tensors; the difference is relative to the sum that random signs would give."""
    left, right = left.detach().double(), right.detach().double()
    return Deviation(what, abs(float((left.sum() - right.sum()) / left.norm())), _SUM_TOLERANCE)


def _select_gradient_entries(expected: Float64Reference, name: str, gradient: Tensor) -> Tensor:
    return gradient.double() if name == "bias" else gradient[expected.entries].double()


def _nonfinite_deviation(output: Tensor) -> Deviation:
    return Deviation("numbers that are not finite", float((~output.isfinite()).sum()), 0.0)
