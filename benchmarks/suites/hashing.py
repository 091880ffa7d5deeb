"""Reformer's attention against that of transformers, and its growth with length.

Both have two projections of width 512, of queries and keys together and of values, and attention with 8 heads.
transformers has 128 buckets, sorts tokens into chunks of 64 and attends to two chunks.

    reformer          exact attention inside 128 buckets of some 64 tokens, in any of the rounds
    reformer chunks   the same chunks as transformers, whose buckets it gets from a hash of its own

Operations for n = 8,192 tokens and r rounds (a multiply-add is two): two projections, 4 n 512^2 = 8.6 GFLOP, in the
same library for both; r hashes, 2 r n 512 64 = 0.5 r GFLOP; and attention, 4 r n 512 operations for each of 64 or 128
keys, 1.1 or 2.1 r GFLOP. Each round sorts queries, keys and values, 50 MB, and reads as much again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from benchmarks.case import LINEAR_SLOPE, Case, Contestant, PreparedCase, ScalingTarget, Suite, Work
from benchmarks.layer_rows import layer_contestant
from benchmarks.optional_imports import import_transformers
from benchmarks.peaks import arithmetic_peaks
from benchmarks.targets import Faster, Target
from regard.layers.projection import linear_activation
from regard.mechanisms import Reformer

WIDTH, HEADS, HEAD_DIM, BUCKETS, CHUNK, LENGTH = 512, 8, 64, 128, 64, 8192
GROWTH_LENGTHS = (1024, 8192, 131072)

Kind = Literal["reformer", "reformer chunks"]


@final
@dataclass(frozen=True)
class _Layer:
    """A module (1, length, width) -> (1, length, width), its weights by name, and the buckets it hashes to."""

    module: nn.Module
    weights: dict[str, Tensor]
    hash: Callable[[Tensor], Tensor]
    """Tokens (1, length, width) -> buckets (heads, length, rounds), of queries as the module rounds them."""
    chunk: int | None


@final
class _Attention(nn.Module):
    """regard's mechanism with the two projections that the class of transformers has."""

    def __init__(self, mechanism: Reformer) -> None:
        super().__init__()
        self.query_key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.mechanism = mechanism

    def forward(self, tokens: Tensor) -> Tensor:
        """Project the tokens and attend."""
        query, value = (_project(tokens, projection) for projection in (self.query_key, self.value))
        output: Tensor = self.mechanism(query, query, value)
        return output.transpose(1, 2).flatten(2)


def _project(tokens: Tensor, projection: nn.Linear) -> Tensor:
    """Project tokens (1, length, width) to (1, heads, length, head_dim)."""
    return linear_activation(tokens, projection).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)


@final
class _PeerAttention(nn.Module):
    """The attention of transformers."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute the output."""
        result: Tensor = self.attention(tokens).hidden_states
        return result


@cache
def _make_regard(kind: Kind, rounds: int, buckets: int | None) -> _Layer:
    torch.manual_seed(2020)
    chunk = CHUNK if kind == "reformer chunks" else None
    mechanism = Reformer(heads=HEADS, head_dim=HEAD_DIM, rounds=rounds, buckets=buckets, chunk=chunk)
    layer = _Attention(mechanism)

    def hash_tokens(tokens: Tensor) -> Tensor:
        query = _project(tokens, layer.query_key)
        return mechanism.make_request(query, query, query, None, None).inputs["query_buckets"][0]

    return _Layer(layer, dict(layer.named_parameters()), hash_tokens, chunk)


def _make_peer(kind: Kind, rounds: int, buckets: int | None) -> _Layer:
    import_transformers()
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    weights = _make_regard(kind, rounds, buckets).weights
    config = ReformerConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        attention_head_size=HEAD_DIM,
        lsh_attn_chunk_length=CHUNK,
        num_buckets=BUCKETS,
        num_hashes=rounds,
        lsh_attention_probs_dropout_prob=0.0,
        is_decoder=False,
        hash_seed=2020,
    )
    attention = LSHSelfAttention(config)
    attention.load_state_dict(weights)

    def hash_tokens(tokens: Tensor) -> Tensor:
        query = attention.query_key(tokens).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
        found: Tensor = attention._hash_vectors(query, rounds, None)[0].unflatten(1, (rounds, -1)).transpose(1, 2)
        return found

    return _Layer(_PeerAttention(attention), weights, hash_tokens, CHUNK)


@cache
def _make_tokens(length: int) -> tuple[Tensor, Tensor]:
    """Tokens and the gradient of the output, (1, length, width) each."""
    generator = torch.Generator().manual_seed(2020)
    tokens, upstream = (torch.randn(1, length, WIDTH, generator=generator) for _ in range(2))
    return tokens, upstream


def _contestant(layer: _Layer, length: int, *, training: bool) -> Contestant:
    tokens, upstream = _make_tokens(length)
    for parameter in layer.module.parameters():
        parameter.requires_grad_(training)
    weights = list(layer.module.parameters())
    return layer_contestant(layer.module, partial(_compute_rows, layer), tokens, upstream, weights, training=training)


def _compute_rows(layer: _Layer, tokens: Tensor, rows: Tensor) -> Tensor:
    """Compute some rows of the layer in float64 from its equation, with the buckets of its hash."""
    weights = {name: one.detach() for name, one in layer.weights.items()}

    def project(name: str, of: Tensor) -> Tensor:
        weight = weights[f"{name}.weight"].to(of.dtype)
        return (of @ weight.T).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)

    with torch.no_grad():
        buckets = layer.hash(tokens.detach().float())
    counts = _count_keys(buckets, rows, layer.chunk)
    query, value = (project(name, tokens)[0] for name in ("query_key", "value"))
    key = query / (query.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    scores = query[:, rows] @ key.mT * HEAD_DIM**-0.5 + counts.log()
    return (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)[None]


def _count_keys(buckets: Tensor, rows: Tensor, chunk: int | None) -> Tensor:
    """Count how often each query of ``rows`` meets each key (heads, rows, keys), except its own."""
    heads, length, rounds = buckets.shape
    if chunk is None:
        counts = (buckets[:, rows, None] == buckets[:, None]).any(-1).double()
    else:
        counts = torch.zeros(heads, len(rows), length, dtype=torch.float64)
        order = buckets.argsort(dim=1, stable=True).transpose(1, 2).flatten(1).unflatten(1, (-1, chunk))
        place = buckets.argsort(dim=1, stable=True).argsort(dim=1) + torch.arange(rounds) * length
        for number in range(rounds):
            own = place[:, rows, number] // chunk
            for at in (own, (own - 1) % order.shape[1]):
                met = order.gather(1, at[..., None].expand(-1, -1, chunk))
                counts.scatter_add_(2, met, torch.ones_like(met, dtype=torch.float64))
    return counts.scatter(2, rows.expand(heads, -1)[..., None], 0.0)


def _count_operations(kind: Kind, rounds: int, length: int, *, training: bool) -> float:
    """Count operations. Backward has twice as many as forward for a projection, and 2.5 times as many for attention."""
    keys = 2 * CHUNK if kind == "reformer chunks" else LENGTH // BUCKETS
    projections, attention = 4 * WIDTH * (3 if training else 1), 4 * rounds * keys * (3.5 if training else 1)
    return length * WIDTH * (projections + attention + rounds * BUCKETS)


def _case(
    kind: Kind, rounds: int, length: int, by: float | None, *, training: bool = False, quick: bool = False
) -> Case:
    """A case with ``by`` as its target; None is a case of growth, without a peer and with buckets by length."""
    targets: tuple[Target, ...] = () if by is None else (Faster("transformers", by),)
    contestants = ("native",) if by is None else ("native", "transformers")
    buckets = None if by is None else BUCKETS

    def prepare() -> PreparedCase:
        operations = _count_operations(kind, rounds, length, training=training)
        work = Work(operations, "GFLOP/s", arithmetic_peaks(torch.float32))
        makers: dict[str, Any] = {"native": _make_regard, "transformers": _make_peer}

        def make(name: str) -> Contestant:
            return _contestant(makers[name](kind, rounds, buckets), length, training=training)

        return PreparedCase(work, {name: partial(make, name) for name in contestants})

    number = f"{rounds} round{'' if rounds == 1 else 's'}"
    name = f"{kind} {number} {'training' if training else 'forward'} {length}"
    sizes = f"1 text of {length:,} tokens, width {WIDTH}, {HEADS} heads, {number}"
    return Case(name, sizes, prepare, contestants, targets, quick=quick, length=length)


_KINDS: tuple[Kind, ...] = ("reformer", "reformer chunks")
_COMPARED = tuple(
    _case(kind, rounds, LENGTH, 2.0, training=training, quick=rounds == 1 and not training)
    for kind in _KINDS
    for rounds in (1, 4)
    for training in (False, True)
)
_GROWTH = tuple(_case("reformer", 2, length, None) for length in GROWTH_LENGTHS)

SUITE = Suite(
    name="hashing",
    title="Attention in hash buckets: Reformer",
    description="Reformer's attention, compared with transformers; and growth of time and memory with length.",
    cases=(*_COMPARED, *_GROWTH),
    scaling=tuple(
        ScalingTarget(
            what,
            tuple(case.name for case in _GROWTH),
            slope=LINEAR_SLOPE,
        )
        for what in ("time", "memory")
    ),
    notes=(
        f"transformers has {BUCKETS} buckets and chunks of {CHUNK} tokens. `reformer chunks` computes the same from "
        "buckets of its own; `reformer` attends exactly inside buckets instead, which is regard's default.",
        "The two projections, which both compute, are 8.6 GFLOP forward at 8,192 tokens; a round adds 0.5 for its "
        "hash, and 1.1 for attention inside buckets or 2.1 inside chunks. Sorting moves memory and is not counted.",
        f"Growth is compared over {GROWTH_LENGTHS[0]:,} to {GROWTH_LENGTHS[-1]:,} tokens, with the number of buckets "
        f"chosen by length: in logarithms a slope of at most {LINEAR_SLOPE}.",
    ),
)
