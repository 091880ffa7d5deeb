"""Layers for long texts, Longformer and BigBird, against those of transformers; and their growth with length.

A layer is four projections of width 512 and attention with 8 heads; Longformer has a window of 512 keys, BigBird blocks
of 64 tokens, three of them random. transformers has no output projection in these classes, and is given one.

    longformer           4 projections, 2 N 512^2 operations each, and 4 N 512 operations for each key of the window
    longformer global    one global token: 4 N 512 operations for each of 8 heads, since its query attends to the tokens
                         instead of two more projections of them, which transformers computes
    bigbird              4 projections, and 4 N 512 operations for each key in 3 + 3 + 2 blocks; for queries of the
                         first and last block, for every key

At 4,096 tokens that is 9 + 4, 9 + 4 and 9 + 5 GFLOP, and some 100 MB are read and written: arithmetic is the bound.
All of it grows in proportion to N.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor, nn

import regard
from benchmarks import kernel_sources
from benchmarks.accuracy import TOLERANCES, Deviation, choose_rows, deviation
from benchmarks.case import LINEAR_SLOPE, Case, Contestant, PreparedCase, ScalingTarget, Suite, Work
from benchmarks.layer_rows import layer_contestant
from benchmarks.optional_imports import import_transformers
from benchmarks.peaks import arithmetic_peaks
from benchmarks.targets import Faster, Target
from regard.mechanisms import BigBird, Longformer

WIDTH, HEADS, WINDOW, BLOCK, RANDOM_BLOCKS = 512, 8, 512, 64, 3
GROWTH_LENGTHS = (1024, 4096, 16384, 65536, 131072)

Kind = Literal["longformer", "longformer global", "bigbird"]
Multiplicity = Callable[[Tensor], Tensor]
"""Indices of queries -> how often each key counts in the softmax of each head (heads, rows, keys)."""


@final
@dataclass(frozen=True)
class _Layer:
    """A layer (1, length, width) -> (1, length, width), its weights by regard's names, and its pattern."""

    module: nn.Module
    weights: dict[str, Tensor]
    multiplicity: Multiplicity


@final
class _PeerLayer(nn.Module):
    """A self-attention module of transformers with its arguments, and an output projection."""

    def __init__(self, attention: nn.Module, arguments: dict[str, Any], output: nn.Linear) -> None:
        super().__init__()
        self.attention, self.arguments, self.output = attention, arguments, output

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute the layer."""
        result: Tensor = self.output(self.attention(tokens, **self.arguments)[0])
        return result


@cache
def _make_regard(kind: Kind, length: int) -> _Layer:
    torch.manual_seed(2020)
    options: dict[str, Any] = {"window": WINDOW, "global_tokens": [0] if kind == "longformer global" else []}
    if kind == "bigbird":
        options = {"block": BLOCK, "random_blocks": RANDOM_BLOCKS}
    layer = regard.MultiHeadAttention(WIDTH, HEADS, mechanism=kind.split()[0], mechanism_options=options)
    mechanism = layer.mechanism
    if isinstance(mechanism, Longformer):
        count = partial(_count_in_window, length, len(mechanism.global_tokens))
        return _Layer(layer, dict(layer.named_parameters()), count)
    assert isinstance(mechanism, BigBird)
    lists = mechanism.pattern(length)
    cells = partial(lists.dense, length, length)
    return _Layer(layer, dict(layer.named_parameters()), lambda rows: cells(rows=rows)[0].double())


def _count_in_window(length: int, global_tokens: int, rows: Tensor) -> Tensor:
    """Count keys in the window, and the first ones, which are global."""
    keys = torch.arange(length)
    near = (keys - rows[:, None]).abs() <= WINDOW // 2
    near[:, :global_tokens] = True
    near[rows < global_tokens] = True
    return near.expand(HEADS, -1, -1).double()


def _make_peer(kind: Kind, length: int) -> _Layer:
    import_transformers()
    ours = _make_regard(kind, length)
    output = nn.Linear(WIDTH, WIDTH)
    if kind == "bigbird":
        attention, arguments, multiplicity = _make_bigbird_peer(length)
    else:
        attention, arguments, multiplicity = _make_longformer_peer(length, 1 if kind == "longformer global" else 0)
    names = {
        "query": "query_projection",
        "key": "key_projection",
        "value": "value_projection",
        "query_global": "input_projections.global_query",
        "key_global": "input_projections.global_key",
        "value_global": "input_projections.global_value",
    }
    with torch.no_grad():
        for theirs, module in (*attention.named_children(), ("", output)):
            for part in ("weight", "bias"):
                module.get_parameter(part).copy_(ours.weights[f"{names.get(theirs, 'output_projection')}.{part}"])
    return _Layer(_PeerLayer(attention, arguments, output), ours.weights, multiplicity)


def _make_longformer_peer(length: int, global_tokens: int) -> tuple[nn.Module, dict[str, Any], Multiplicity]:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, attention_window=[WINDOW], attention_probs_dropout_prob=0.0
    )
    is_global = torch.zeros(1, length, dtype=torch.bool)
    is_global[:, :global_tokens] = True
    arguments = {
        "attention_mask": 10000.0 * is_global,
        "is_index_masked": torch.zeros(1, length, dtype=torch.bool),
        "is_index_global_attn": is_global,
        "is_global_attn": global_tokens > 0,
    }
    count = partial(_count_in_window, length, global_tokens)
    return LongformerSelfAttention(config, layer_id=0), arguments, count


def _make_bigbird_peer(length: int) -> tuple[nn.Module, dict[str, Any], Multiplicity]:
    """In eval mode it draws no blocks, so it is in training mode, without dropout; some of its keys count twice."""
    from transformers import BigBirdConfig, BigBirdModel
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

    config = BigBirdConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        block_size=BLOCK,
        num_random_blocks=RANDOM_BLOCKS,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=length,
    )
    peer = BigBirdBlockSparseAttention(config, seed=0).train()
    blocked, band, from_mask, to_mask = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, length), BLOCK)
    arguments = {
        "band_mask": band,
        "from_mask": from_mask,
        "to_mask": to_mask,
        "from_blocked_mask": blocked,
        "to_blocked_mask": blocked,
    }
    np.random.seed(0)
    draw = partial(peer._bigbird_block_rand_mask, length, length, BLOCK, BLOCK, RANDOM_BLOCKS, last_idx=1024)
    return peer, arguments, partial(_count_in_blocks, length, np.stack([draw() for _ in range(HEADS)]))


def _count_in_blocks(length: int, drawn: np.ndarray, rows: Tensor) -> Tensor:
    """Count keys of blocks near the query's, of the first and last, and of ``drawn`` (heads, blocks - 2, ..)."""
    blocks = length // BLOCK
    counts = torch.zeros(HEADS, len(rows), blocks, dtype=torch.float64)
    for place, row in enumerate(rows.tolist()):
        at = row // BLOCK
        if at in (0, blocks - 1):
            counts[:, place] = 1
            continue
        counts[:, place, sorted({0, blocks - 1, at - 1, at, at + 1})] = 1
        for head in range(HEADS):
            for other in drawn[head, at - 1]:
                counts[head, place, other] += 1
    return counts.repeat_interleave(BLOCK, dim=2)


@cache
def _make_tokens(length: int) -> tuple[Tensor, Tensor]:
    """Tokens and the gradient of the output, (1, length, width) each."""
    generator = torch.Generator().manual_seed(2020)
    tokens, upstream = (torch.randn(1, length, WIDTH, generator=generator) for _ in range(2))
    return tokens, upstream


def _contestant(kind: Kind, length: int, make: Callable[[Kind, int], _Layer], *, training: bool) -> Contestant:
    layer, (tokens, upstream) = make(kind, length), _make_tokens(length)
    for parameter in layer.module.parameters():
        parameter.requires_grad_(training)
    unread = "global" if kind == "longformer" else " "  # without global tokens, their projections have no gradient
    named = layer.module.named_parameters()
    weights = [one for name, one in named if name.endswith("weight") and unread not in name]
    return layer_contestant(layer.module, partial(_compute_rows, layer), tokens, upstream, weights, training=training)


def _compute_rows(layer: _Layer, tokens: Tensor, rows: Tensor) -> Tensor:
    """Compute some rows of the layer in float64 from its equation."""
    weights = {name: one.detach().double() for name, one in layer.weights.items()}

    def project(name: str, of: Tensor) -> Tensor:
        return nn.functional.linear(of, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def mix(names: list[str], at: Tensor, counts: Tensor) -> Tensor:
        query, key, value = (
            project(name, of)[0].unflatten(-1, (HEADS, -1)).transpose(0, 1)
            for name, of in zip(names, (tokens[:, at], tokens, tokens), strict=True)
        )
        scores = query @ key.mT * query.shape[-1] ** -0.5 + counts.log()
        return (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)

    counts = layer.multiplicity(rows)
    mixed = mix([f"{side}_projection" for side in ("query", "key", "value")], rows, counts)
    if "input_projections.global_query.weight" in weights and bool(counts[:, 0].all()):
        names = [f"input_projections.global_{side}" for side in ("query", "key", "value")]
        mixed = torch.cat([mix(names, rows[:1], counts[:, :1]), mixed[1:]])
    return project("output_projection", mixed)[None]


def _count_operations(kind: Kind, length: int, *, training: bool) -> float:
    """Count operations. Backward has twice as many as forward for a projection, and 2.5 times as many for attention."""
    pairs = _count_bigbird_pairs(length) if kind == "bigbird" else _count_window_pairs(length)
    if kind == "longformer global":
        pairs += HEADS * length  # keys and values of the global token are as wide as the tokens
    of_projections, of_pairs = length * 4 * 2 * WIDTH * (3 if training else 1), 4 * (3.5 if training else 1)
    return WIDTH * (of_projections + pairs * of_pairs)


def _count_window_pairs(length: int) -> int:
    """Count the pairs of a query and a key in a head of Longformer; a global key adds less than 1%."""
    side = WINDOW // 2
    return length * (WINDOW + 1) - side * (side + 1)


def _count_bigbird_pairs(length: int) -> int:
    """Count the pairs of a query and a key in a head: blocks are in the window, random or global only once."""
    blocks = length // BLOCK
    own = (blocks - 2) * (3 + RANDOM_BLOCKS + 2) - 2  # the second block and the last but one are next to a global one
    return (own + 2 * blocks) * BLOCK**2


def _layer_case(kind: Kind, length: int, by: float | None, *, training: bool = False, quick: bool = False) -> Case:
    targets: tuple[Target, ...] = () if by is None else (Faster("transformers", by),)

    def prepare() -> PreparedCase:
        work = Work(_count_operations(kind, length, training=training), "GFLOP/s", arithmetic_peaks(torch.float32))
        makers = {"native": _make_regard, "transformers": _make_peer}
        run = partial(_contestant, kind, length, training=training)
        return PreparedCase(work, {name: partial(run, makers[name]) for name in contestants})

    contestants = ("native",) if by is None else ("native", "transformers")
    name = f"{kind} {'training' if training else 'forward'} {length}"
    sizes = f"1 text of {length:,} tokens, width {WIDTH}, {HEADS} heads"
    return Case(name, sizes, prepare, contestants, targets, quick=quick, length=length)


def _attention_case(length: int, by: float) -> Case:
    """Longformer's attention alone, against our own dense attention."""

    def prepare() -> PreparedCase:
        generator = torch.Generator().manual_seed(2020)
        tokens = [torch.randn(1, HEADS, length, WIDTH // HEADS, generator=generator) for _ in range(3)]
        mechanism = regard.mechanism(
            "longformer", heads=HEADS, head_dim=WIDTH // HEADS, window=WINDOW, global_tokens=[]
        )
        work = Work(WIDTH * 4 * _count_window_pairs(length), "GFLOP/s", arithmetic_peaks(torch.float32))
        rows = choose_rows(length)
        makers: dict[str, Callable[[], Tensor]] = {
            "native": lambda: mechanism(*tokens),
            "native-dense": lambda: regard.attention(*tokens),
        }

        def make(name: str) -> Contestant:
            run = makers[name]

            def compare() -> list[Deviation]:
                query, key, value = (one.double() for one in tokens)
                scores = query[:, :, rows] @ key.mT * (WIDTH // HEADS) ** -0.5
                far = (torch.arange(length) - rows[:, None]).abs() > WINDOW // 2
                scores = scores.masked_fill(far, -torch.inf) if name == "native" else scores
                return [deviation("output", run()[:, :, rows], scores.softmax(-1) @ value, TOLERANCES[torch.float32])]

            return Contestant(run, compare)

        return PreparedCase(work, {name: partial(make, name) for name in makers})

    sizes = f"batch 1, {HEADS} heads of {WIDTH // HEADS}, {length:,} queries and keys, no global token"
    targets = (Faster("native-dense", by),)
    return Case(f"longformer attention {length}", sizes, prepare, ("native", "native-dense"), targets, length=length)


_GROWTH: dict[Kind, tuple[Case, ...]] = {
    kind: tuple(_layer_case(kind, length, None) for length in GROWTH_LENGTHS)
    for kind in ("longformer global", "bigbird")
}
_COMPARED = (
    _attention_case(4096, 5.0),
    _layer_case("longformer", 4096, 5.0, quick=True),
    _layer_case("longformer", 16384, 5.0),
    _layer_case("longformer global", 4096, 5.0, quick=True),
    _layer_case("longformer global", 16384, 5.0),
    _layer_case("longformer global", 4096, 4.0, training=True),
    _layer_case("longformer global", 16384, 4.0, training=True),
    _layer_case("bigbird", 4096, 10.0, quick=True),
    _layer_case("bigbird", 4096, 6.0, training=True),
)
_NAMES = {case.name for case in _COMPARED}

SUITE = Suite(
    name="long_inputs",
    title="Layers for long texts: Longformer and BigBird",
    description="Layers with sparse attention, compared with transformers; and growth of time and memory with length.",
    cases=(*_COMPARED, *(case for cases in _GROWTH.values() for case in cases if case.name not in _NAMES)),
    scaling=tuple(
        ScalingTarget(what, tuple(case.name for case in cases), slope=LINEAR_SLOPE)
        for what in ("time", "memory")
        for cases in _GROWTH.values()
    ),
    notes=(
        f"Longformer has a window of {WINDOW} keys, and one global token in cases with that word; BigBird has blocks "
        f"of {BLOCK} tokens, {RANDOM_BLOCKS} of them random. transformers draws random blocks in training mode only, "
        "so its BigBird is in that mode, without dropout.",
        "The projections, which both compute, are 8.6 of 12.8 GFLOP forward at 4,096 tokens for Longformer, and 8.6 of "
        "13.8 for BigBird; forward and backward three times that, of 40 and 44. Their time at the peak bounds every "
        "ratio. A global token has keys and values of its own: transformers computes 4.3 GFLOP more for them. In "
        "regard its one query attends to the tokens themselves, with 0.07 GFLOP; on AMD EPYC of family 26 "
        "it was measured before that, and its rates include those 4.3 GFLOP.",
        f"Growth is compared over {GROWTH_LENGTHS[0]:,} to {GROWTH_LENGTHS[-1]:,} tokens: in logarithms a slope of at "
        f"most {LINEAR_SLOPE}.",
    ),
    kernels=(*kernel_sources.BACKWARD, *kernel_sources.FEW_QUERIES, *kernel_sources.LINEAR),
)
