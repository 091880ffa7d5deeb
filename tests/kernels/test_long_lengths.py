"""Every kernel family at lengths beyond two ranges of key tiles, against plain torch in float64, forward and backward.

Numbers of queries and keys are far apart in half of the cases, and bands are aligned with the first and with the last
tokens: what the ranges of a band are cut to depends on both. Scratch memory is NaN. ``rounding`` bounds the errors;
``test_fuzz`` draws memory layouts, for exact attention.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import regard
from hypothesis_examples import examples
from kernels.rounding import assert_within_rounding
from long_lengths import length_pairs, many
from regard import masks
from regard.kernels import extension
from regard.kernels.implementations.chosen_blocks import ChosenBlocksRequest
from regard.kernels.implementations.gathered_keys import GatheredKeysRequest
from regard.kernels.operators.block_importance_op import choose_blocks
from regard.kernels.operators.highest_keys_op import highest_keys
from regard.kernels.operators.kernel_arguments import KernelArguments, to_kernel_arguments
from regard.kernels.operators.paged_attention_op import PagedKeysValues, paged_attention
from regard.kernels.reference.bucket_attention import BucketRequest
from regard.kernels.reference.scan import ScanRequest
from regard.kernels.request import Request, Terms
from regard.kernels.select import select
from regard.masks.base import Mask

long_settings = settings(
    examples(40, without_slow=4), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
seeds = st.integers(0, 2**32)
dtypes = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])
wide_dtypes = st.sampled_from([torch.float64, torch.float32])

pytestmark = pytest.mark.usefixtures("without_shape_checks")


@pytest.fixture(autouse=True, scope="module")
def poison_scratch_memory() -> Iterator[None]:
    extension.native.poison(True)
    yield
    extension.native.poison(False)


class Draws:
    """Random numbers of one seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def bools(self, probability: float, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator) < probability


@st.composite
def mask_of(draw: st.DrawFn, queries: int, keys: int) -> Mask | None:
    """A mask: bands of both alignments, intervals, cells, and tiles."""
    align = draw(st.sampled_from(["start", "end"]))
    left, right = (draw(st.sampled_from([0, 1, 3, 63, 64, 65, 200, 511, 700])) for _ in range(2))
    kinds = {
        "none": lambda: None,
        "causal": lambda: masks.causal(align=align),
        "window": lambda: masks.window(left, right, align=align),
        "left": lambda: masks.window(left, 0, align=align),
        "right": lambda: masks.window(None, right, align=align),
        "padding": lambda: masks.causal(align=align) & masks.padding([keys - keys // 3]),
        "cells": lambda: masks.window(left, right, align=align) & masks.keep((torch.arange(keys) % 3 > 0)[None]),
        "tiles": lambda: masks.window(left, 1, align=align) | masks.global_tokens([0, min(queries, keys) - 1]),
    }
    return kinds[draw(st.sampled_from(sorted(kinds)))]()


def heads_of(tokens: Sequence[Tensor]) -> int:
    return tokens[0].shape[1] // tokens[1].shape[1]


def check(
    ours: Callable[..., Tensor],
    exact: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    dtype: torch.dtype,
    terms: float,
    *,
    wide: Sequence[bool] = (),
) -> None:
    """Compare an output and the gradients of all inputs; ``wide`` inputs are in the dtype of sums."""
    of_sums = torch.float64 if dtype == torch.float64 else torch.float32
    kinds = [of_sums if is_wide else dtype for is_wide in (*wide, *[False] * len(inputs))][: len(inputs)]
    rounded = [part.to(kind).requires_grad_() for part, kind in zip(inputs, kinds, strict=True)]
    doubled = [part.detach().double().requires_grad_() for part in rounded]
    found, expected = ours(*rounded), exact(*doubled)
    upstream = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view_as(expected).to(found.dtype)
    assert_within_rounding("output", found.detach(), expected.detach(), terms, dtype)
    gradients = torch.autograd.grad(found, rounded, upstream)
    exact_gradients = torch.autograd.grad(expected, doubled, upstream.double())
    for index, (one, other) in enumerate(zip(gradients, exact_gradients, strict=True)):
        of_input = max(1.0, expected.numel() / other.numel()) if other.numel() < doubled[0].numel() else 1.0
        assert_within_rounding(f"gradient of input {index}", one, other, terms * of_input, dtype)


@st.composite
def attention_inputs(draw: st.DrawFn, *, max_width: int = 19) -> tuple[list[Tensor], Mask | None, float]:
    """Query, key and value, a mask, and the terms of the longest sum."""
    (queries, keys), draws = draw(length_pairs), Draws(draw(seeds))
    key_heads, group, head_dim, value_dim = (draw(st.integers(1, most)) for most in (2, 2, max_width, max_width))
    shapes = (key_heads * group, queries, head_dim), (key_heads, keys, head_dim), (key_heads, keys, value_dim)
    terms = head_dim + value_dim + max(keys, group * queries)
    return [draws.normal(1, *shape) for shape in shapes], draw(mask_of(queries, keys)), terms


@long_settings
@given(inputs=attention_inputs(), dtype=dtypes, bias=st.sampled_from([None, "key", "query", "pair"]), seed=seeds)
def test_attention(inputs: tuple, dtype: torch.dtype, bias: str | None, seed: int) -> None:
    tokens, mask, terms = inputs
    (heads, queries), keys, draws = tokens[0].shape[1:3], tokens[1].shape[2], Draws(seed)
    shapes = {"key": (1, heads, 1, keys), "query": (1, 1, queries, 1), "pair": (1, 1, queries, keys)}
    added = [] if bias is None else [draws.normal(*shapes[bias])]

    def attend(impl: str) -> Callable[..., Tensor]:
        return lambda query, key, value, *bias: regard.attention(
            query, key, value, mask=mask, bias=bias[0] if bias else None, impl=impl
        )

    check(attend("native"), attend("reference"), [*tokens, *added], dtype, terms, wide=[False] * 3 + [True])


@long_settings
@given(inputs=attention_inputs(), dtype=dtypes, dropout=st.sampled_from([0.0, 0.3]))
def test_softcap_and_sinks(inputs: tuple, dtype: torch.dtype, dropout: float) -> None:
    """With dropout the same seed drops the same weights in every dtype, so "native" in float64 is what is expected."""
    tokens, mask, terms = inputs
    sinks = torch.linspace(-1, 1, tokens[0].shape[1], dtype=torch.float64)

    def attend(impl: str) -> Callable[..., Tensor]:
        def call(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor) -> Tensor:
            torch.manual_seed(7)
            options = {"mask": mask, "softcap": 3.0, "sinks": sinks, "dropout": dropout, "impl": impl}
            return regard.attention(query, key, value, **options)

        return call

    exact = attend("native" if dropout else "reference")
    check(attend("native"), exact, [*tokens, sinks], dtype, terms / (1 - dropout), wide=[False] * 3 + [True])


@long_settings
@given(inputs=attention_inputs(), dtype=dtypes)
def test_statistics(inputs: tuple, dtype: torch.dtype) -> None:
    tokens, mask, terms = inputs
    rows = [0, tokens[0].shape[2] - 1]

    def observe(impl: str) -> Callable[..., Tensor]:
        def call(*tokens: Tensor) -> Tensor:
            seen = regard.observe(*tokens, mask=mask, top=3, rows=rows, impl=impl)
            lse = seen.lse.masked_fill(seen.lse == -torch.inf, 0.0)
            # In half precision scores are often equal, and which of their keys is at the top is not defined.
            top = seen.top_weights.detach() if dtype.itemsize == 2 else seen.top_weights
            parts = (lse, seen.entropy, seen.received, top, seen.rows, seen.output)
            return torch.cat([part.flatten().to(seen.entropy.dtype) for part in parts])

        return call

    # An entropy adds ln n to the terms of each weight; received weights are sums over queries.
    check(observe("native"), observe("reference"), tokens, dtype, terms * math.log(terms))


@long_settings
@given(
    inputs=attention_inputs(max_width=3),
    dtype=dtypes,
    name=st.sampled_from(["sigmoid", "additive", "talking_heads"]),
    dropout=st.sampled_from([0.0, 0.3]),
)
def test_mechanisms_with_kernels_of_their_own(inputs: tuple, dtype: torch.dtype, name: str, dropout: float) -> None:
    """As above, with dropout "native" in float64 is what is expected."""
    tokens, mask, terms = inputs
    heads, head_dim = tokens[0].shape[1], tokens[0].shape[3]
    torch.manual_seed(3)
    exact_impl = "native" if dropout else "reference"
    built = [
        regard.mechanism(name, heads=heads, head_dim=head_dim, dropout=dropout, impl=impl)
        for impl in ("native", exact_impl)
    ]
    built[1].load_state_dict(built[0].state_dict())
    built[1].double()
    if dtype == torch.float64:
        built[0].double()

    def attend(index: int) -> Callable[..., Tensor]:
        def call(*tokens: Tensor) -> Tensor:
            torch.manual_seed(7)
            return built[index](*tokens, mask)

        return call

    check(attend(0), attend(1), tokens, dtype, (terms + 2 * heads) / (1 - dropout))


@long_settings
@given(
    lengths=length_pairs,
    dtype=wide_dtypes,
    seed=seeds,
    align=st.sampled_from(["start", "end"]),
    closed=st.sampled_from([0.0, 0.01, 0.2]),
)
def test_forgetting(lengths: tuple[int, int], dtype: torch.dtype, seed: int, align: str, closed: float) -> None:
    (queries, keys), draws, heads = lengths, Draws(seed), 2
    shapes = (queries, 7), (keys, 7), (keys, 5), (keys, 1)
    query, key, value, forget = (draws.normal(1, heads, *shape) for shape in shapes)
    forget = forget.masked_fill(draws.bools(closed, *forget.shape), -1e5)
    mechanism = regard.mechanism("forgetting", heads=heads, head_dim=7)
    high = min(keys - queries, 0) if align == "start" else keys - queries

    def exact(query: Tensor, key: Tensor, value: Tensor, forget: Tensor) -> Tensor:
        gates = torch.nn.functional.logsigmoid(forget[..., 0])
        # The last key of query i is i + high; sums run from there back to each key, so that no sums are subtracted.
        last = torch.arange(queries) + high
        hidden = torch.arange(keys) > last[:, None]
        used = (gates.expand(queries, 1, heads, keys).permute(1, 2, 0, 3)).masked_fill(hidden, 0.0)
        behind = torch.nn.functional.pad(used[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)
        scores = (query @ key.mT / math.sqrt(7) + behind).masked_fill(hidden, -torch.inf)
        empty = hidden.all(-1)[:, None]
        return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0) @ value

    def ours(query: Tensor, key: Tensor, value: Tensor, forget: Tensor) -> Tensor:
        return mechanism(query, key, value, masks.causal(align=align), forget=forget)

    # A score has an error of half an ulp of the decays of its block.
    check(ours, exact, [query, key, value, forget], dtype, keys + 12 + 1024)


@long_settings
@given(inputs=attention_inputs(), count=st.sampled_from([1, 5, 64, 130]), dtype=wide_dtypes, seed=seeds)
def test_gathered_keys(inputs: tuple, count: int, dtype: torch.dtype, seed: int) -> None:
    tokens, _, terms = inputs
    queries, keys = tokens[0].shape[2], tokens[1].shape[2]
    order = torch.rand((1, 1, queries, keys), generator=Draws(seed).generator).argsort(-1)
    positions = order[..., :count].sort(-1).values.int()
    positions[:, :, ::5, count // 2 :] = -1

    def attend(name: str) -> Callable[..., Tensor]:
        def call(*tokens: Tensor) -> Tensor:
            request = GatheredKeysRequest(
                Request(*tokens, Terms(scale=0.3)),
                positions,
                lambda one: select("attention", "reference", one).compute(one),
            )
            return select("gathered keys", name, request).compute(request)

        return call

    check(attend("native"), attend("masked"), tokens, dtype, terms)


@long_settings
@given(
    inputs=attention_inputs(), block=st.sampled_from([64, 128]), dtype=wide_dtypes, seed=seeds, stopped=st.booleans()
)
def test_chosen_blocks(inputs: tuple, block: int, dtype: torch.dtype, seed: int, stopped: bool) -> None:
    tokens, _, terms = inputs
    (heads, queries), keys = tokens[0].shape[1:3], tokens[1].shape[2]
    stop = torch.tensor([keys - keys // 3]) if stopped else None
    last = (torch.arange(queries) + keys - queries).clamp(max=keys - 1 if stop is None else int(stop) - 1)
    before = torch.arange(-(-keys // block)) < torch.div(last, block, rounding_mode="floor")[:, None]
    chosen = Draws(seed).bools(0.3, 1, heads, *before.shape) & before

    def attend(name: str) -> Callable[..., Tensor]:
        def call(*tokens: Tensor) -> Tensor:
            request = ChosenBlocksRequest(
                Request(*tokens, Terms(scale=0.3)),
                chosen,
                block,
                lambda one: select("attention", "reference", one).compute(one),
                stop,
            )
            return select("chosen blocks", name, request).compute(request)

        return call

    check(attend("native"), attend("masked"), tokens, dtype, terms)


@long_settings
@given(
    lengths=length_pairs,
    compressed_block=st.sampled_from([1, 8, 32]),
    shared=st.sampled_from([1, 2, 8]),
    factor=st.sampled_from([1, 2, 7]),
    count=st.sampled_from([2, 3, 4, 15]),
    group=st.integers(1, 3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=seeds,
)
def test_block_importance(
    lengths: tuple[int, int],
    compressed_block: int,
    shared: int,
    factor: int,
    count: int,
    group: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    """A choice that is said to be certain is the choice by weights in float64: Yuan et al. 2025, equations 8 to 10."""
    (queries, keys), draws, key_heads = lengths, Draws(seed), 2
    assume(keys >= compressed_block >= shared)
    stride, strides = compressed_block // shared, shared * factor
    block = stride * strides
    compressed_count = (keys - compressed_block) // stride + 1
    query = draws.normal(1, key_heads * group, queries, 7).to(dtype)
    compressed = draws.normal(1, key_heads, compressed_count, 7).float() * 0.5
    visible = (torch.arange(queries) + keys - queries + 1).clamp(0, keys)[None]
    blocks = -(-keys // block)
    options = {"block": block, "compressed_block": compressed_block, "stride": stride, "count": count}
    chosen, certain = choose_blocks(query, compressed, visible, blocks=blocks, **options)

    whole = (visible[0] - compressed_block).div(stride, rounding_mode="floor").add(1).clamp(0, compressed_count)
    hidden = torch.arange(compressed_count) >= whole[:, None]
    scores = (query.double() @ compressed.double().repeat_interleave(group, 1).mT).masked_fill(hidden, -torch.inf)
    weights = scores.softmax(-1).nan_to_num(0.0).unflatten(1, (key_heads, group)).sum(2)
    importance = weights.new_zeros(1, key_heads, queries, blocks)
    for at in range(shared):  # a compressed key counts once for each of its strides in a block
        importance.index_add_(3, (torch.arange(compressed_count) + at) // strides, weights)
    own = (visible[0] - 1).div(block, rounding_mode="floor")
    before = torch.arange(blocks) < own[:, None]
    always = before & ((torch.arange(blocks) == 0) | (torch.arange(blocks) == own[:, None] - 1))
    rank = importance.masked_fill(always, torch.inf).masked_fill(~before, -torch.inf)
    order = rank.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    expected = torch.zeros_like(chosen).scatter_(3, order, True) & before
    assert torch.equal(chosen[certain], expected[certain])


@long_settings
@given(
    inputs=attention_inputs(),
    rounds=st.integers(1, 3),
    buckets=st.sampled_from([2, 7, 40]),
    dtype=wide_dtypes,
    seed=seeds,
    high=st.sampled_from([None, "causal"]),
)
def test_bucket_attention(
    inputs: tuple, rounds: int, buckets: int, dtype: torch.dtype, seed: int, high: str | None
) -> None:
    tokens, _, terms = inputs
    tokens = [tokens[0], *(part.repeat_interleave(heads_of(tokens), dim=1) for part in tokens[1:])]
    (heads, queries), keys, generator = tokens[0].shape[1:3], tokens[1].shape[2], Draws(seed).generator
    codes = [torch.randint(0, buckets, (1, heads, length, rounds), generator=generator) for length in (queries, keys)]
    codes[1][:, :, ::7] = -1

    def attend(name: str) -> Callable[..., Tensor]:
        def call(*tokens: Tensor) -> Tensor:
            request = BucketRequest(*tokens, *codes, buckets, None if high is None else keys - queries, scale=0.3)
            return select("bucket attention", name, request).compute(request).output

        return call

    check(attend("native"), attend("reference"), tokens, dtype, terms)


@long_settings
@given(
    length=many,
    dtype=dtypes,
    seed=seeds,
    channels=st.sampled_from([None, 1, 0]),
    delta=st.booleans(),
    closed=st.sampled_from([0.0, 0.02]),
)
def test_scan(length: int, dtype: torch.dtype, seed: int, channels: int | None, delta: bool, closed: float) -> None:
    draws, heads, head_dim, value_dim = Draws(seed), 2, 5, 7
    query, key, value = (draws.normal(1, heads, length, size) for size in (head_dim, head_dim, value_dim))
    key = key / key.norm(dim=-1, keepdim=True)
    shape = (1, heads, length, 1 if channels == 1 else head_dim)
    decay = -torch.nn.functional.softplus(draws.normal(*shape))
    decay = decay.masked_fill(draws.bools(closed, *shape), -1e5)
    inputs = [query, key, value]
    inputs += [] if channels is None else [decay]
    inputs += [draws.normal(1, heads, length, 1).sigmoid()] if delta else []

    def scan(name: str) -> Callable[..., Tensor]:
        def call(query: Tensor, key: Tensor, value: Tensor, *others: Tensor) -> Tensor:
            rest = list(others)
            log_decay = rest.pop(0) if channels is not None else None
            request = ScanRequest(query, key, value, log_decay, rest.pop(0) if delta else None, scale=0.3)
            return select("scan", name, request).compute(request).output

        return call

    terms = head_dim + value_dim + length
    check(scan("native"), scan("reference"), inputs, dtype, terms, wide=[False] * 3 + [True] * 2)


@long_settings
@given(
    queries=st.sampled_from([1, 2, 5, 33, 70]),
    lengths=st.lists(st.one_of(st.sampled_from([0, 1, 64]), many), min_size=1, max_size=3),
    page_size=st.sampled_from([1, 7, 16, 64, 100]),
    dtype=dtypes,
    band=st.sampled_from([(None, None), (None, 0), (-63, 0), (-700, 5)]),
    seed=seeds,
)
def test_pages(queries: int, lengths: list[int], page_size: int, dtype: torch.dtype, band: tuple, seed: int) -> None:
    draws, counts = Draws(seed), [-(-length // page_size) for length in lengths]
    query = draws.normal(len(lengths), 2, queries, 7).to(dtype)
    key, value = (draws.normal(sum(counts) + 1, 1, page_size, size).to(dtype) for size in (7, 5))
    order = iter(torch.randperm(sum(counts) + 1, generator=draws.generator).tolist())
    table = torch.full((len(lengths), max(counts) + 1), 2**31 - 1, dtype=torch.int32)
    for entry, count in enumerate(counts):
        table[entry, :count] = torch.tensor([next(order) for _ in range(count)])
    pages = PagedKeysValues(key, value, table, torch.tensor(lengths))
    low, high = band
    found = paged_attention(query, pages, KernelArguments(scale=0.4, low=low, high=high))
    mask = None if band == (None, None) else masks.window(None if low is None else -low, high)
    for entry, length in enumerate(lengths):
        rows = table[entry, : counts[entry]].long()
        of_entry = [part[rows].transpose(0, 1).flatten(1, 2)[None, :, :length].double() for part in (key, value)]
        exact = regard.attention(query[entry : entry + 1].double(), *of_entry, mask=mask, scale=0.4, impl="reference")
        assert_within_rounding("output", found[entry : entry + 1], exact, 12 + length, dtype)


@long_settings
@given(lengths=length_pairs, count=st.sampled_from([1, 17, 64, 300]), seed=seeds, data=st.data())
def test_highest_keys(lengths: tuple[int, int], count: int, seed: int, data: st.DataObject) -> None:
    """Scores of whole numbers are exact in float32, and many are equal: of these the first keys are chosen."""
    (queries, keys), draws = lengths, Draws(seed)
    query, key = (draws.normal(1, 2, length, 5).round().float() for length in lengths)
    mask = data.draw(mask_of(queries, keys))
    request = Request(query, key, key, Terms(mask))
    found = highest_keys(query, key, None, None, to_kernel_arguments(request), count=count, heads=2, summed=False)
    scores = query.double() @ key.double().mT
    if mask is not None:
        scores = scores.masked_fill(~mask.dense(queries, keys, device=query.device), -torch.inf)
    order = scores.sort(dim=-1, descending=True, stable=True)
    chosen = order.indices[..., :count].masked_fill(order.values[..., :count] == -torch.inf, keys).sort(-1).values
    padded = torch.nn.functional.pad(chosen.masked_fill(chosen == keys, -1), (0, count - chosen.shape[-1]), value=-1)
    assert torch.equal(found.long(), padded)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("queries", [1, 8, 65])
@pytest.mark.parametrize("mask", [masks.causal(align="start"), masks.window(3, 5, align="start")], ids=repr)
def test_gradients_of_few_queries_that_see_the_first_keys(mask: Mask, queries: int, dtype: torch.dtype) -> None:
    """The band reaches no query from the later ranges of keys, and their gradients are 0."""
    tokens = [Draws(queries + length).normal(1, 1, length, 16) for length in (queries, 1000, 1000)]

    def attend(impl: str) -> Callable[..., Tensor]:
        return lambda *tokens: regard.attention(*tokens, mask=mask, impl=impl)

    check(attend("native"), attend("reference"), tokens, dtype, 1032)
