"""The scan family: causal linear attention, and the gated delta rule.

    linear           S_t = S_(t-1) + k_t v_t^T
    gated delta      S_t = (I - beta_t k_t k_t^T) decay_t S_(t-1) + beta_t k_t v_t^T,    o_t = S_t^T q_t

Linear attention is compared with a cumulative sum of k_t v_t^T in torch; the gated delta rule with the chunked form of
transformers, which is also torch, and with regard's exact causal attention. Width 512, 8 heads of 64, float32. The
features of linear attention are not timed: queries and keys are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import final

import torch
from torch import Tensor

import regard
from benchmarks.accuracy import TOLERANCES, Deviation, deviation
from benchmarks.case import LINEAR_SLOPE, Case, Contestant, PreparedCase, ScalingTarget, Suite, Work
from benchmarks.peaks import arithmetic_peaks
from benchmarks.targets import Faster
from regard import masks
from regard.kernels.implementations.scan import NATIVE
from regard.kernels.reference.scan import ScanRequest, scan_chunks

_HEADS, _HEAD_DIM, _CHUNK = 8, 64, 64
_LENGTHS = (2048, 4096, 16384)
_GROWTH_LENGTHS = (1024, 16384, 131072)
_GROWTH = ("linear training", "gated delta forward", "gated delta training")
_FASTER_THAN_CUMULATIVE_SUM = 20.0
_FASTER_THAN_TRANSFORMERS = 5.0
_FASTER_THAN_ATTENTION = 2.0
_EXACT_FROM = 4096  # tokens, from which on it is to be faster than exact attention


def operations(length: int, *, delta: bool, backward: bool) -> int:
    """Count the operations of one call: 2 for each product that the chunked form needs.

    In units of 64^3 products a chunk, where a triangle is half a unit: forward 3, with the delta rule 5. Backward
    computes the states again (1, or 3), and pairs and the delta rule's matrix (1/2 each); the gradients of the states
    take 2 1/2 (4), those of the tokens 3 1/2 (6).
    """
    forward, states, pairs, gradients = (5.0, 3.0, 1.0, 10.0) if delta else (3.0, 1.0, 0.5, 6.0)
    units = forward + (states + pairs + gradients if backward else 0.0)
    return int(2 * units * _HEADS * length * _CHUNK * _HEAD_DIM)


@final
class _ScanProblem:
    """The tensors, in the memory layout of layers (batch, length, heads, size), and the contestants."""

    def __init__(self, kind: str, length: int, *, backward: bool) -> None:
        self.kind, self.backward = kind, backward
        generator = torch.Generator().manual_seed(2020)

        def random(*size: int) -> Tensor:
            return torch.randn(1, length, _HEADS, *size, generator=generator)

        query, key, value = random(_HEAD_DIM), random(_HEAD_DIM), random(_HEAD_DIM)
        leaves = [query, torch.nn.functional.normalize(key, dim=-1), value]
        if kind == "gated delta":
            leaves += [-torch.nn.functional.softplus(random() - 2.0), random().sigmoid()]
        else:
            leaves[:2] = [torch.nn.functional.elu(part) + 1.0 for part in (query, key)]
        self.leaves = [leaf.requires_grad_(backward) for leaf in leaves]
        self.grad_output = random(_HEAD_DIM)

    def contestant(self, name: str) -> Contestant:
        """Return the contestant of that name."""
        compute = {
            "native": self._native,
            "cumulative-sum": self._cumulative_sum,
            "transformers": self._transformers,
            "attention": self._attention,
        }[name]
        compared = self._attention_deviations if name == "attention" else partial(self._deviations, compute)
        return Contestant(partial(self._solve, compute), lambda: list(compared()))

    def _native(self, leaves: list[Tensor]) -> Tensor:
        output: Tensor = NATIVE.compute(self._make_request(leaves)).output
        return output.transpose(1, 2)

    def _make_request(self, leaves: list[Tensor]) -> ScanRequest:
        query, key, value, *rest = (leaf.transpose(1, 2) for leaf in leaves)
        log_decay, beta = (one[..., None] for one in rest) if rest else (None, None)
        return ScanRequest(query, key, value, log_decay, beta, scale=_HEAD_DIM**-0.5)

    def _cumulative_sum(self, leaves: list[Tensor]) -> Tensor:
        query, key, value = leaves
        states = (key[..., :, None] * value[..., None, :]).cumsum(1)
        return (_HEAD_DIM**-0.5 * query[..., None, :] @ states)[..., 0, :]

    def _transformers(self, leaves: list[Tensor]) -> Tensor:
        from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

        output: Tensor = torch_chunk_gated_delta_rule(*leaves)[0]
        return output

    def _attention(self, leaves: list[Tensor]) -> Tensor:
        query, key, value = (leaf.transpose(1, 2) for leaf in leaves[:3])
        return regard.attention(query, key, value, mask=masks.causal(), impl="native").transpose(1, 2)

    def _solve(self, compute: Callable[[list[Tensor]], Tensor]) -> object:
        """Solve once: the timed call."""
        if not self.backward:
            with torch.no_grad():
                return compute(self.leaves)
        # Exact attention has neither decays nor rates.
        return torch.autograd.grad(compute(self.leaves), self.leaves, self.grad_output, allow_unused=True)

    def _attention_deviations(self) -> Iterator[Deviation]:
        """Yield the deviation of the last outputs of exact attention, which solves another problem, from float64."""
        query, key, value = (leaf.detach().double().transpose(1, 2) for leaf in self.leaves[:3])
        scores = _HEAD_DIM**-0.5 * query[:, :, -_CHUNK:] @ key.mT
        later = torch.ones(scores.shape[2:], dtype=torch.bool).triu(scores.shape[3] - _CHUNK + 1)
        expected = scores.masked_fill(later, -torch.inf).softmax(-1) @ value
        found = self._attention(self.leaves).detach().transpose(1, 2)[:, :, -_CHUNK:]
        yield deviation("last outputs", found, expected, TOLERANCES[torch.float32])

    def _deviations(self, compute: Callable[[list[Tensor]], Tensor]) -> Iterator[Deviation]:
        """Yield the deviations from plain torch in float64."""
        allowed = TOLERANCES[torch.float32]
        compares_gradients = self.backward and self.leaves[0].shape[1] <= max(_LENGTHS)  # in float64, 14 GB beyond it
        exact = [leaf.detach().double().requires_grad_(compares_gradients) for leaf in self.leaves]
        expected = scan_chunks(self._make_request(exact)).output.transpose(1, 2)
        output = compute(self.leaves)
        yield deviation("output", output.detach(), expected.detach(), allowed)
        if compares_gradients:
            right = torch.autograd.grad(expected, exact, self.grad_output.double())
            found = torch.autograd.grad(output, self.leaves, self.grad_output)
            for name, one, other in zip(("query", "key", "value", "log_decay", "beta"), found, right, strict=False):
                yield deviation(f"gradient of {name}", one, other, allowed)


def _prepare(kind: str, direction: str, length: int) -> PreparedCase:
    backward = direction == "training"
    problem = _ScanProblem(kind, length, backward=backward)
    names = ("native", "cumulative-sum") if kind == "linear" else ("native", "transformers", "attention")
    amount = operations(length, delta=kind != "linear", backward=backward)
    work = Work(amount, "GFLOP/s", arithmetic_peaks(torch.float32))
    return PreparedCase(work, {name: partial(problem.contestant, name) for name in names})


def _linear(length: int) -> Case:
    return Case(
        f"linear training {length}",
        f"batch 1, {_HEADS} heads of {_HEAD_DIM}, {length:,} tokens",
        partial(_prepare, "linear", "training", length),
        ("native", "cumulative-sum"),
        (Faster("cumulative-sum", _FASTER_THAN_CUMULATIVE_SUM),),
        line="linear training",
        length=length,
    )


def _delta(direction: str, length: int) -> Case:
    against_attention = length >= _EXACT_FROM and (direction, length) != ("training", max(_LENGTHS))
    targets: tuple[Faster, ...] = (Faster("transformers", _FASTER_THAN_TRANSFORMERS),)
    if against_attention:
        targets += (Faster("attention", _FASTER_THAN_ATTENTION),)
    return Case(
        f"gated delta {direction} {length}",
        f"batch 1, {_HEADS} heads of {_HEAD_DIM}, {length:,} tokens",
        partial(_prepare, "gated delta", direction, length),
        ("native", "transformers", *(("attention",) if against_attention else ())),
        targets,
        quick=length == min(_LENGTHS),
        line=f"gated delta {direction}",
        length=length,
    )


def _grown(line: str, length: int) -> Case:
    """A case of growth alone, at a length that is not compared."""
    kind, direction = line.rsplit(" ", 1)
    return Case(
        f"{line} {length}",
        f"batch 1, {_HEADS} heads of {_HEAD_DIM}, {length:,} tokens",
        partial(_prepare, kind, direction, length),
        ("native",),
        line=line,
        length=length,
    )


SUITE = Suite(
    name="scan",
    title="The scan family",
    description="Causal linear attention and the gated delta rule, compared with torch operations and exact attention.",
    cases=(
        _linear(max(_LENGTHS)),
        *(_delta(direction, length) for direction in ("forward", "training") for length in _LENGTHS),
        *(_grown(line, length) for line in _GROWTH for length in _GROWTH_LENGTHS if length not in _LENGTHS),
    ),
    scaling=tuple(
        ScalingTarget(what, tuple(f"{line} {length}" for length in _GROWTH_LENGTHS), slope=LINEAR_SLOPE)
        for what in ("time", "memory")
        for line in _GROWTH
    ),
    notes=(
        "training: forward and backward pass. Operations: a chunk of 64 tokens of a head of 64 takes 5 products of 64 "
        "x 64 x 64 forward and 19 forward and backward in the gated delta rule (3 and 10.5 in linear attention); each "
        "input and result is read or written once forward, and twice backward.",
    ),
    kernels=("scan/scan.cpp", "scan/scan_chunk.h", "scan/scan_backward.h"),
)
