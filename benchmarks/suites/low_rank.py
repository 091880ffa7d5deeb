"""Mechanisms of low rank and of features: Nystromformer, Linformer and Performer, each against its usual library.

    nystromformer    transformers' NystromformerSelfAttention: the projections of query, key and value, and the rest
    linformer        LinformerSelfAttention of the package linformer: a whole layer, or without its projections
    performer        FastAttention of the package performer-pytorch, which gets queries, keys and values

Width 512, 8 heads, float32, forward. Every result is compared with the equation in float64, for some queries.

The operations of one call, for n = 8,192 tokens, 8 heads of 64 (a multiply-add is two):

    nystromformer    4 n m d h = 1.1 GFLOP for each of two softmaxes with m = 64 landmarks; the projections of a layer
                     have 6 n w^2 = 12.9 GFLOP, 86% of all, and so bound the ratio: both compute them, regard by
                     oneDNN where that is faster (``linear_activation``), as its layers do
    linformer        4 n k d h = 4.3 GFLOP for the two projections to k = 256, and as many for attention to them; a
                     layer projects queries and outputs too, 4 n w^2 = 8.6 GFLOP, and k keys and values. The package
                     projects all n keys and values before it projects their length: 8.6 GFLOP more
    performer        4 n m d h = 4.5 GFLOP for the products with m = 266 features, and as many for their sums; and
                     2 n m h = 35 million exponentials, of 140 MB, which stay in a cache if they are summed in blocks
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import regard
from benchmarks import kernel_sources
from benchmarks.accuracy import Deviation, choose_rows, deviation
from benchmarks.case import LINEAR_SLOPE, OURS, Case, Contestant, PreparedCase, ScalingTarget, Suite, Work
from benchmarks.optional_imports import import_transformers, missing_package_error
from benchmarks.peaks import arithmetic_peaks
from benchmarks.targets import Faster
from regard import masks
from regard.layers.projection import linear_activation

_WIDTH, _HEADS, _HEAD_DIM = 512, 8, 64
_LANDMARKS, _FILTER, _PROJECTED, _FEATURES = 64, 65, 256, 266
_LENGTH = 8192
_GROWTH_LENGTHS = (1024, 8192, 131072)
_TOLERANCE = 2e-5
_PEER_EPSILON, _PEER_CAUSAL_EPSILON = 1e-4, 1e-6
"""performer-pytorch adds the first to every feature, after dividing those of keys by the largest exp(w . k) of their
head, and, if it is causal, the second to the sum of the features, which are divided by sqrt(features)."""


@dataclass(frozen=True)
class _Problem:
    """One call: a contestant's expected output for some rows in float64, the work, and the calls by contestant."""

    expected: Callable[[str, Tensor], Tensor]
    operations: float
    calls: dict[str, Callable[[], Callable[[], Tensor]]] = field(default_factory=dict)
    rows_dim: int = 2


def _contestant(problem: _Problem, name: str, length: int) -> Contestant:
    call = problem.calls[name]()

    def run() -> object:
        with torch.no_grad():
            return call()

    def deviations() -> Iterator[Deviation]:
        rows = choose_rows(length)
        with torch.no_grad():
            expected = problem.expected(name, rows)
            answer = call().index_select(problem.rows_dim, rows).double()
        yield deviation("output", answer, expected, _TOLERANCE)

    return Contestant(run, lambda: list(deviations()))


def _prepare(make: Callable[[int], _Problem], length: int) -> PreparedCase:
    torch.manual_seed(2021)
    problem = make(length)
    work = Work(problem.operations, "GFLOP/s", arithmetic_peaks(torch.float32))
    return PreparedCase(work, {name: partial(_contestant, problem, name, length) for name in problem.calls})


def _random_heads(length: int) -> list[Tensor]:
    """Queries, keys and values as a layer gives them: views of (batch, length, width)."""
    return [torch.randn(1, length, _WIDTH).unflatten(-1, (_HEADS, _HEAD_DIM)).transpose(1, 2) for _ in range(3)]


def _performer(length: int, *, causal: bool) -> _Problem:
    query, key, value = _random_heads(length)
    mechanism: Any = regard.mechanism("performer", heads=_HEADS, head_dim=_HEAD_DIM, features=_FEATURES)
    mask = masks.causal() if causal else None

    def expected(name: str, rows: Tensor) -> Tensor:
        weight, scale = mechanism.projection.double().mT * _HEAD_DIM**-0.25, _HEAD_DIM**-0.5 / 2
        of_query, of_key = query[:, :, rows].double() @ weight, key.double() @ weight
        norms = [scale * side.double().square().sum(-1, keepdim=True) for side in (query[:, :, rows], key)]
        if name == OURS:
            of_query, of_key = of_query - of_query.amax(-1, keepdim=True), of_key - norms[1]
            of_query, of_key = of_query.exp(), (of_key - of_key.amax()).exp()
        else:
            of_query = (of_query - norms[0] - of_query.amax(-1, keepdim=True)).exp() + _PEER_EPSILON
            of_key = (of_key - norms[1] - of_key.amax((-2, -1), keepdim=True)).exp() + _PEER_EPSILON
        products = of_query @ of_key.mT
        if causal:
            products = products * (torch.arange(length) <= rows[:, None])
        total = products.sum(-1, keepdim=True)
        if causal and name != OURS:
            total += _PEER_CAUSAL_EPSILON * _FEATURES**0.5 * of_query.sum(-1, keepdim=True)
        return products @ value.double() / total

    def peer() -> Callable[[], Tensor]:
        try:
            from performer_pytorch import FastAttention
        except ImportError:
            raise missing_package_error("performer-pytorch") from None
        fast = FastAttention(_HEAD_DIM, _FEATURES, causal=causal)
        fast.projection_matrix.copy_(mechanism.projection)
        return lambda: fast(query, key, value)

    return _Problem(
        expected,
        operations=8 * length * _FEATURES * _HEAD_DIM * _HEADS,
        calls={OURS: lambda: lambda: mechanism(query, key, value, mask), "performer-pytorch": peer},
    )


def _linformer(length: int, *, layer: bool) -> _Problem:
    tokens = torch.randn(1, length, _WIDTH)
    options = {"length": length, "projected": _PROJECTED}
    ours: Any = regard.MultiHeadAttention(_WIDTH, _HEADS, mechanism="linformer", mechanism_options=options)
    mechanism: Any = ours.mechanism
    with torch.no_grad():  # projected keys as large as keys, at any length
        for projection in mechanism.projections:
            projection.mul_((_PROJECTED / length) ** 0.5)
    for linear in (ours.query_projection, ours.key_projection, ours.value_projection, ours.output_projection):
        nn.init.zeros_(linear.bias)

    def split(given: Tensor) -> Tensor:
        return given.unflatten(-1, (_HEADS, _HEAD_DIM)).transpose(1, 2)

    def expected(name: str, rows: Tensor) -> Tensor:
        del name
        sides = [tokens.double()] * 3
        if layer:
            projections = (ours.query_projection, ours.key_projection, ours.value_projection)
            sides = [side @ one.weight.double().mT for side, one in zip(sides, projections, strict=True)]
        query, key, value = map(split, sides)
        key, value = mechanism.key_projection.double() @ key, mechanism.value_projection.double() @ value
        output = (query[:, :, rows] @ key.mT * _HEAD_DIM**-0.5).softmax(-1) @ value
        merged = output.transpose(1, 2).flatten(2)
        return merged @ ours.output_projection.weight.double().mT if layer else merged

    def native() -> Callable[[], Tensor]:
        if layer:
            return lambda: ours(tokens)
        return lambda: mechanism(split(tokens), split(tokens), split(tokens)).transpose(1, 2).flatten(2)

    def peer() -> Callable[[], Tensor]:
        try:
            from linformer import LinformerSelfAttention
        except ImportError:
            raise missing_package_error("linformer") from None
        theirs = LinformerSelfAttention(_WIDTH, length, k=_PROJECTED, heads=_HEADS).eval()
        with torch.no_grad():
            theirs.proj_k.copy_(mechanism.key_projection.mT)
            theirs.proj_v.copy_(mechanism.value_projection.mT)
            theirs.to_q.weight.copy_(ours.query_projection.weight)
            theirs.to_k.weight.copy_(ours.key_projection.weight)
            theirs.to_v.weight.copy_(ours.value_projection.weight)
            theirs.to_out.weight.copy_(ours.output_projection.weight)
            theirs.to_out.bias.zero_()
        if not layer:
            theirs.to_q = theirs.to_k = theirs.to_v = theirs.to_out = nn.Identity()
        return lambda: theirs(tokens)

    projections = 4 * (length + _PROJECTED) * _WIDTH**2 if layer else 0
    return _Problem(
        expected,
        operations=8 * length * _PROJECTED * _HEAD_DIM * _HEADS + projections,
        calls={OURS: native, "linformer": peer},
        rows_dim=1,
    )


def _nystromformer(length: int, *, convolution: int | None) -> _Problem:
    tokens = torch.randn(1, length, _WIDTH)
    options: Any = {"landmarks": _LANDMARKS, "convolution": convolution, "initial_norm": "batch"}
    mechanism: Any = regard.mechanism("nystromformer", heads=_HEADS, head_dim=_HEAD_DIM, **options)
    projections = [nn.Linear(_WIDTH, _WIDTH) for _ in range(3)]

    def split(given: Tensor) -> Tensor:
        return given.unflatten(-1, (_HEADS, _HEAD_DIM)).transpose(1, 2)

    def expected(name: str, rows: Tensor) -> Tensor:
        del name
        sides = (tokens.double() @ one.weight.double().mT + one.bias.double() for one in projections)
        query, key, value = map(split, sides)
        means = [side.unflatten(2, (_LANDMARKS, -1)).mean(3) for side in (query, key)]
        scale = _HEAD_DIM**-0.5
        matrix = (scale * means[0] @ means[1].mT).softmax(-1)
        inverse, identity = matrix.mT / matrix.sum(-2).max(), torch.eye(_LANDMARKS, dtype=torch.float64)
        for _ in range(6):
            product = matrix @ inverse
            inverse = inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
        mixed = inverse @ ((scale * means[0] @ key.mT).softmax(-1) @ value)
        output = (scale * query[:, :, rows] @ means[1].mT).softmax(-1) @ mixed
        if convolution is not None:
            padded = nn.functional.pad(value, (0, 0, convolution // 2, convolution // 2))
            windows = torch.stack([padded[:, :, row : row + convolution] for row in rows.tolist()], dim=2)
            output += (windows * mechanism.convolution.double()[:, None, :, None]).sum(3)
        return output.transpose(1, 2).flatten(2)

    def native() -> Tensor:
        query, key, value = (split(linear_activation(tokens, one)) for one in projections)
        mixed: Tensor = mechanism(query, key, value)
        return mixed.transpose(1, 2).flatten(2)

    def peer() -> Callable[[], Tensor]:
        transformers = import_transformers()
        from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

        config = transformers.NystromformerConfig(
            hidden_size=_WIDTH,
            num_attention_heads=_HEADS,
            num_landmarks=_LANDMARKS,
            segment_means_seq_len=length,
            conv_kernel_size=convolution or 1,
        )
        theirs = NystromformerSelfAttention(config).eval()
        if convolution is None:  # which the layer supports and its config does not
            theirs.conv_kernel_size = None
        for one, other in zip((theirs.query, theirs.key, theirs.value), projections, strict=True):
            one.load_state_dict(other.state_dict())
        if convolution is not None:
            theirs.conv.weight.data.copy_(mechanism.convolution[:, None, :, None])
        return lambda: theirs(tokens)[0]

    filters = 0 if convolution is None else 2 * convolution
    return _Problem(
        expected,
        operations=6 * length * _WIDTH**2 + (8 * _LANDMARKS + filters) * length * _WIDTH,
        calls={OURS: lambda: native, "transformers": peer},
        rows_dim=1,
    )


_MAKERS: dict[str, tuple[Callable[[int], _Problem], str, float]] = {
    "nystromformer": (partial(_nystromformer, convolution=None), "transformers", 1.5),
    "nystromformer convolution": (partial(_nystromformer, convolution=_FILTER), "transformers", 1.5),
    "linformer": (partial(_linformer, layer=False), "linformer", 2.0),
    "linformer layer": (partial(_linformer, layer=True), "linformer", 2.0),
    "performer": (partial(_performer, causal=False), "performer-pytorch", 2.0),
    "performer causal": (partial(_performer, causal=True), "performer-pytorch", 10.0),
}
"""By name of the case: its maker, its peer, and how many times as fast as the peer it should be."""


def _case(name: str, length: int) -> Case:
    make, peer, faster = _MAKERS[name]
    raced = length == _LENGTH
    return Case(
        f"fp32 {name} {length}",
        f"{length:,} tokens of width {_WIDTH}, {_HEADS} heads",
        partial(_prepare, make, length),
        (OURS, peer) if raced else (OURS,),
        (Faster(peer, faster),) if raced else (),
        quick=raced,
        line=name,
        length=length,
    )


def _growth(what: Any, name: str) -> ScalingTarget:
    lengths = _GROWTH_LENGTHS
    return ScalingTarget(what, tuple(f"fp32 {name} {length}" for length in lengths), slope=LINEAR_SLOPE)


SUITE = Suite(
    name="low_rank",
    title="Low rank and features",
    description="Nystromformer, Linformer and Performer, each compared with the library that is usually used for it.",
    cases=tuple(_case(name, length) for name in _MAKERS for length in _GROWTH_LENGTHS),
    scaling=tuple(_growth(what, name) for what in ("time", "memory") for name in _MAKERS),
    notes=(
        "nystromformer: 64 landmarks, with the projections of query, key and value, which both compute and which are "
        "12.9 of 15.0 GFLOP at 8,192 tokens; convolution: of 65 values. "
        "linformer: 256 projected keys, a layer with its four projections, or what is between them; a layer of regard "
        "projects tokens along their length first, with 17.4 GFLOP in place of 25.8 at 8,192 tokens; on AMD "
        "EPYC of family 26 it was measured before that. performer: 266 features; performer-pytorch adds 0.0001 to "
        "each, and is compared with the equation that this makes.",
        f"Time and memory may grow with length to the power of {LINEAR_SLOPE}.",
    ),
    kernels=(
        *kernel_sources.FORWARD,
        *kernel_sources.FEW_QUERIES,
        *kernel_sources.LINEAR,
        "scan/feature_attention.h",
        "convolution/token_convolution.h",
    ),
)
