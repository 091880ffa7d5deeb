"""Decoding in "native", a few queries against many keys: against the float64 oracle at the edges of tiles and chunks.

Inputs are multiples of 1/16 below 8, which every dtype represents exactly, so all dtypes share one oracle. In float64
and float32 a number that is computed by sums of L terms has an error of about L eps; half precision is computed in
float32 and rounded once at the end. Keys are processed in tiles of 64, and tiles in chunks of 512 keys, or of 1,024
keys for 4,096 keys or more.
"""

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from oracles import attention as oracle
from regard import masks, positions
from regard.kernels import extension

BATCH, HEADS, KEY_HEADS, HEAD_DIM, VALUE_DIM = 2, 6, 3, 5, 11
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
EDGES = [1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 511, 512, 513, 1025, 4095, 4096, 4097]


def sixteenths(*shape: int, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng([*shape, seed]).standard_normal(shape)
    return np.clip(np.round(drawn * 16) / 16, -7.9375, 7.9375)


@cache
def _tokens(queries: int, keys: int, sizes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    heads, key_heads, head_dim, value_dim = sizes
    return (
        sixteenths(BATCH, heads, queries, head_dim, seed=1),
        sixteenths(BATCH, key_heads, keys, head_dim, seed=2),
        sixteenths(BATCH, key_heads, keys, value_dim, seed=3),
    )


def tokens(
    queries: int,
    keys: int,
    *,
    heads: int = HEADS,
    key_heads: int = KEY_HEADS,
    head_dim: int = HEAD_DIM,
    value_dim: int = VALUE_DIM,
) -> list[np.ndarray]:
    return [array.copy() for array in _tokens(queries, keys, (heads, key_heads, head_dim, value_dim))]


def tensors(arrays: list[np.ndarray], dtype: torch.dtype) -> list[Tensor]:
    return [torch.from_numpy(array).to(dtype) for array in arrays]


def attend(*given, **options) -> Tensor:
    return regard.attention(*given, impl="native", **options)


def lse_of(query: Tensor, key: Tensor, value: Tensor, **terms) -> Tensor:
    """Return the lse that the kernel saves for a backward pass, besides the output."""
    output = query.new_empty(*query.shape[:3], value.shape[3])
    lse = query.new_empty(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
    extension.native.forward(query, key, value, output, lse, scale=query.shape[3] ** -0.5, **terms)
    return lse


def close(ours: Tensor, exact: np.ndarray, terms: int) -> None:
    """Assert that an output, whose values are below 8, agrees with the expected one."""
    dtype = ours.dtype
    wide = torch.finfo(torch.float32 if dtype.itemsize == 2 else dtype).eps
    rounding = torch.finfo(dtype).eps if dtype.itemsize == 2 else 0
    np.testing.assert_allclose(ours.double().numpy(), exact, rtol=0, atol=8 * (4 * terms * wide + rounding))


@pytest.fixture(autouse=True)
def _without_shape_checks(without_shape_checks) -> None:
    """Disable the shape checks, which take longer than the kernels."""


# ---- results ----


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("keys", EDGES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_query_at_the_edges_of_tiles_and_chunks(dtype, keys):
    given = tokens(1, keys)
    exact = oracle.observe(*given)
    ours = tensors(given, dtype)
    close(attend(*ours), exact.output, keys)
    # a score is a sum of HEAD_DIM products below 64; bfloat16 takes them in one instruction, which is as exact
    np.testing.assert_allclose(lse_of(*ours).double().numpy(), exact.lse, rtol=0, atol=2e-5)


def test_the_logarithm_is_exact_in_float64():
    given = tokens(3, 1025)
    lse = lse_of(*tensors(given, torch.float64))
    np.testing.assert_allclose(lse.numpy(), oracle.observe(*given).lse, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("queries", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize(("heads", "key_heads"), [(3, 3), (6, 2), (5, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_grouped_queries(dtype, heads, key_heads, queries):
    given = tokens(queries, 529, heads=heads, key_heads=key_heads)
    causal = np.tri(queries, 529, 529 - queries, dtype=bool)[None, None]
    exact, _ = oracle.attention(*given, causal)
    close(attend(*tensors(given, dtype), mask=masks.causal()), exact, 529)


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("head_dim", [1, 2, 7, 16, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 200, 255, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_width(dtype, head_dim):
    for queries in (1, 5):
        given = tokens(queries, 71, head_dim=head_dim, value_dim=257 - head_dim)
        close(attend(*tensors(given, dtype)), oracle.attention(*given)[0], 71 + head_dim)


def cells(queries: int, keys: int, heads: int, *, chance: float) -> Tensor:
    return torch.from_numpy(
        np.random.default_rng([queries, keys, heads]).random((BATCH, heads, queries, keys)) < chance
    )


MASKS = {
    "causal": lambda queries, keys: masks.causal(),
    "causal from the start": lambda queries, keys: masks.causal(align="start"),
    "window": lambda queries, keys: masks.window(70, 0),
    "window to both sides": lambda queries, keys: masks.window(3, 1),
    "padding": lambda queries, keys: masks.padding([keys, keys // 3]),
    "padding on the left": lambda queries, keys: masks.padding([keys - keys // 5, 1], side="left"),
    "cells": lambda queries, keys: masks.keep(cells(queries, keys, 1, chance=0.3)),
    "cells of each head": lambda queries, keys: masks.keep(cells(queries, keys, HEADS, chance=0.02)),
    "one row of cells": lambda queries, keys: masks.keep(cells(1, keys, 1, chance=0.5)[:1]),
    "tiles": lambda queries, keys: (masks.window(70, 0) | masks.global_tokens([0])) & masks.padding([keys, keys // 2]),
    "tiles of each head": lambda queries, keys: ~masks.keep(cells(queries, keys, HEADS, chance=0.7)),
}


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("keys", [64, 65, 513, 1031])
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("mask", MASKS)
def test_every_kind_of_mask(mask, queries, keys):
    made, given = MASKS[mask](queries, keys), tokens(queries, keys)
    allowed = made.dense(queries, keys)
    exact, _ = oracle.attention(*given, allowed.numpy())
    blind = ~allowed.expand(BATCH, HEADS, queries, keys).any(-1)
    for dtype in DTYPES:
        ours = attend(*tensors(given, dtype), mask=made)
        close(ours, exact, keys)
        assert not ours[blind].any()


BIASES = {
    "of each pair": (BATCH, HEADS, 3, 529),
    "of each key": (1, 1, 1, 529),
    "of each head": (1, HEADS, 1, 1),
    "of each query": (BATCH, 1, 3, 1),
}


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("of", DTYPES)
@pytest.mark.parametrize("bias", BIASES)
def test_a_bias(bias, of):
    given, added = tokens(3, 529), sixteenths(*BIASES[bias], seed=4)
    added.flat[::7] = -np.inf
    exact, _ = oracle.attention(*given, None, np.broadcast_to(added, (BATCH, HEADS, 3, 529)))
    for dtype in DTYPES:
        close(attend(*tensors(given, dtype), bias=torch.from_numpy(added).to(of)), exact, 529)


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("bias", ["alibi", "t5"])
def test_a_bias_by_distance(bias, queries):
    torch.manual_seed(7)
    made = positions.ALiBi(HEADS) if bias == "alibi" else positions.T5Buckets(HEADS)
    if bias == "t5":
        torch.nn.init.normal_(made.weight)
    given = tokens(queries, 529)
    with torch.no_grad():
        distances = torch.arange(529) - torch.arange(queries)[:, None] - (529 - queries)
        table = made.table(int(distances.min()), int(distances.max())).double()
        added = table[:, distances - distances.min()].numpy()[None]
        exact, _ = oracle.attention(*given, None, np.broadcast_to(added, (BATCH, HEADS, queries, 529)))
        for dtype in DTYPES:
            close(attend(*tensors(given, dtype), bias=made), exact, 529)


# ---- visibility ----


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_that_see_nothing(dtype):
    query, key, value = tensors(tokens(2, 600), dtype)
    nothing = torch.zeros(BATCH, dtype=torch.int64)
    some = torch.tensor([0, 513])
    assert not attend(query, key, value, mask=masks.padding([0, 0])).any()
    half = attend(query, key, value, mask=masks.padding([0, 513]))
    assert not half[0].any()
    assert not half[0].signbit().any()
    assert half[1].any()
    assert (lse_of(query, key, value, start=nothing, stop=nothing) == -torch.inf).all()
    lse = lse_of(query, key, value, start=nothing, stop=some)
    assert (lse[0] == -torch.inf).all()
    assert lse[1].isfinite().all()


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wild_token_breaks_who_may_see_it_and_no_one_else(dtype, side, bad):
    """Cases: all queries see the same keys, or different ones; at the end of a tile; and behind a mask."""
    queries, keys = 3, 600
    for at in (0, 63, 64, 511, 512, 597, 598, 599):
        given = tokens(queries, keys)
        quiet = attend(*tensors(given, dtype), mask=masks.causal())
        given[1 if side == "key" else 2][1, 1, at, -1] = bad
        ours = attend(*tensors(given, dtype), mask=masks.causal())
        broken = np.zeros(ours.shape[:3], bool)
        broken[1, 2:4] = at <= keys - queries + np.arange(queries)  # heads 2 and 3 share key head 1
        broken = torch.from_numpy(broken)
        assert ours[broken].isnan().all(), at
        assert torch.equal(ours[~broken], quiet[~broken]), at


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_forbidden_token_has_no_influence(dtype):
    """For any value of the token: bit for bit, and for every way to hide it."""
    keys = 600
    given = tensors(tokens(2, keys), dtype)
    allowed = cells(2, keys, 1, chance=0.5)
    allowed[..., ::5] = False
    forbidden = ~allowed.any(2)[:, 0]  # (batch, keys): hidden from all queries
    hidden = {
        "cells": (masks.keep(allowed), forbidden),
        "padding": (masks.padding([513, 1]), torch.arange(keys) >= torch.tensor([[513], [1]])),
        "window": (masks.window(65, 0), (torch.arange(keys) < keys - 67).expand(BATCH, keys)),
        "tiles": (~masks.keep(~allowed), forbidden),
    }
    for name, (mask, out) in hidden.items():
        quiet = attend(*given, mask=mask)
        for wild in (torch.nan, torch.inf, torch.finfo(dtype).max):
            query, key, value = (tensor.clone() for tensor in given)
            for side in (key, value):
                side.masked_fill_(out[:, None, :, None], wild)
            assert torch.equal(attend(query, key, value, mask=mask), quiet), (name, wild)


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wild_query_breaks_itself_where_it_sees_anything(dtype):
    given = tokens(3, 600)
    quiet = attend(*tensors(given, dtype), mask=masks.padding([600, 0]))
    given[0][:, 1, 2, 0] = np.nan
    given[0][:, 4, 0, -1] = np.inf
    ours = attend(*tensors(given, dtype), mask=masks.padding([600, 0]))
    assert ours[0, 1, 2].isnan().all()
    assert ours[0, 4, 0].isnan().all()
    ours[0, 1, 2], ours[0, 4, 0] = quiet[0, 1, 2], quiet[0, 4, 0]
    assert torch.equal(ours, quiet)


@pytest.mark.usefixtures("poison_scratch_memory")
def test_scores_beyond_the_dtype():
    """A score of Inf makes its query NaN; a score of -Inf hides the key."""
    query = torch.tensor([1e30, -1e30, 1.0])[None, None, :, None]
    key = torch.ones(1, 1, 600, 1)
    key[0, 0, 599] = 1e30
    value = torch.ones(1, 1, 600, 2)
    value[0, 0, 599] = 5.0
    output = attend(query, key, value, scale=1.0)
    assert output[0, 0, 0].isnan().all()
    assert torch.equal(output[0, 0, 1], torch.ones(2))
    assert torch.equal(output[0, 0, 2], torch.full((2,), 5.0))


@pytest.mark.usefixtures("poison_scratch_memory")
def test_large_values_stay_finite_where_no_sum_overflows():
    given = tokens(1, 700)
    given[2][:] = 2.0**100
    output = attend(*tensors(given, torch.float32))
    torch.testing.assert_close(output, torch.full_like(output, 2.0**100), rtol=1e-5, atol=0)


def test_overflow_in_strided_values_breaks_no_one_else():
    """Strided values are copied tile by tile; a non-finite value only affects the queries that see it."""
    query, key, value = tensors(tokens(2, 128, heads=1, key_heads=1), torch.float32)
    value[:, :, :64] = torch.finfo(torch.float32).max
    value[:, :, 127] = torch.nan
    value = value.transpose(2, 3).contiguous().transpose(2, 3)
    mask = masks.keep(torch.tensor([[True] * 128, [True] * 64 + [False] * 64])[None, None])
    output = attend(query, key, value, mask=mask)
    assert output[:, :, 0].isnan().all()
    assert not output[:, :, 1].isnan().any()


# ---- memory layout ----


def swapped(tensor: Tensor) -> Tensor:
    """Store as (batch, length, heads, width)."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def last_not_one(tensor: Tensor) -> Tensor:
    """Store with the length as the innermost dimension."""
    return tensor.transpose(2, 3).contiguous().transpose(2, 3)


def every_second(tensor: Tensor) -> Tensor:
    room = torch.full((*tensor.shape[:3], 2 * tensor.shape[3]), torch.nan, dtype=tensor.dtype)
    room[..., ::2] = tensor
    return room[..., ::2]


def offset(tensor: Tensor) -> Tensor:
    """Place an odd number of elements after the start of its memory, with NaN around it."""
    batch, heads, length, width = tensor.shape
    room = torch.full((batch, heads, length + 4, width + 3), torch.nan, dtype=tensor.dtype)
    room[:, :, 3:-1, 1:-2] = tensor
    return room[:, :, 3:-1, 1:-2]


def in_a_cache(tensor: Tensor) -> Tensor:
    """Place at the start of a buffer with room for more tokens."""
    room = torch.full((*tensor.shape[:2], 2 * tensor.shape[2], tensor.shape[3]), torch.nan, dtype=tensor.dtype)
    room[:, :, : tensor.shape[2]] = tensor
    return room[:, :, : tensor.shape[2]]


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("stored", [swapped, last_not_one, every_second, offset, in_a_cache])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_wherever_tokens_lie(dtype, stored):
    for queries in (1, 3):
        given = tensors(tokens(queries, 525, head_dim=67, value_dim=33), dtype)
        plain = attend(*given, mask=masks.causal())
        for strange in ([0], [1], [2], [0, 1, 2]):
            moved = [stored(tensor) if which in strange else tensor for which, tensor in enumerate(given)]
            assert torch.equal(attend(*moved, mask=masks.causal()), plain)


def test_keys_that_are_one_key_repeated():
    query, key, value = tensors(tokens(1, 1), torch.float32)
    output = attend(query, key.expand(-1, -1, 700, -1), value.expand(-1, -1, 700, -1))
    # 700 equal weights; their sum and the weighted values are both rounded
    torch.testing.assert_close(output, value.repeat_interleave(2, 1), rtol=1e-5, atol=0)


# ---- determinism ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_for_any_number_of_threads(dtype):
    given = tensors(tokens(3, 5001, head_dim=17), dtype)
    mask, before, found = masks.causal() & masks.padding([5001, 1234]), torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(attend(*given, mask=mask))
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sequence_does_not_depend_on_who_else_is_in_the_batch(dtype):
    query, key, value = tensors(tokens(1, 700), dtype)
    whole = attend(query, key, value)
    assert torch.equal(attend(query[1:], key[1:], value[1:]), whole[1:])
    assert torch.equal(attend(query[:, 2:4], key[:, 1:2], value[:, 1:2]), whole[:, 2:4])


# ---- gradients ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_backward_pass_goes_on_from_what_decoding_left(dtype):
    given = tokens(1, 529)
    upstream = sixteenths(BATCH, HEADS, 1, VALUE_DIM, seed=5)
    exact = oracle.backward(*given, upstream)
    leaves = [tensor.requires_grad_() for tensor in tensors(given, dtype)]
    attend(*leaves).backward(torch.from_numpy(upstream).to(dtype))
    eps = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    for leaf, theirs in zip(leaves, exact[:3], strict=True):
        largest = max(1.0, np.abs(theirs).max())
        np.testing.assert_allclose(leaf.grad.double().numpy(), theirs, rtol=0, atol=eps * largest)
