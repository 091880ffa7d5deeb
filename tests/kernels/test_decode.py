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
from any_threads import assert_same_bits
from regard import masks, positions
from regard.conformance.oracles import attention as oracle
from regard.kernels import extension
from sixteenths import sixteenths

BATCH, HEADS, KEY_HEADS, HEAD_DIM, VALUE_DIM = 2, 6, 3, 5, 11
pytestmark = pytest.mark.usefixtures("without_shape_checks")  # which take longer than the kernels
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
EDGES = [1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 511, 512, 513, 1025, 4095, 4096, 4097]


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


def attend(*inputs, **options) -> Tensor:
    return regard.attention(*inputs, impl="native", **options)


def compute_lse(query: Tensor, key: Tensor, value: Tensor, **arguments) -> Tensor:
    """Return the lse that the kernel saves for a backward pass, besides the output."""
    output = query.new_empty(*query.shape[:3], value.shape[3])
    lse = query.new_empty(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
    extension.native.forward(query, key, value, output, lse, scale=query.shape[3] ** -0.5, **arguments)
    return lse


def assert_close(ours: Tensor, exact: np.ndarray, terms: int) -> None:
    """Assert that an output, whose values are below 8, agrees with the expected one."""
    dtype = ours.dtype
    wide = torch.finfo(torch.float32 if dtype.itemsize == 2 else dtype).eps
    rounding = torch.finfo(dtype).eps if dtype.itemsize == 2 else 0
    np.testing.assert_allclose(ours.double().numpy(), exact, rtol=0, atol=8 * (4 * terms * wide + rounding))


# ---- results ----


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("keys", EDGES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_query_at_the_edges_of_tiles_and_chunks(dtype, keys):
    inputs = tokens(1, keys)
    exact = oracle.observe(*inputs)
    ours = tensors(inputs, dtype)
    assert_close(attend(*ours), exact.output, keys)
    # a score is a sum of HEAD_DIM products below 64; bfloat16 takes them in one instruction, which is as exact
    np.testing.assert_allclose(compute_lse(*ours).double().numpy(), exact.lse, rtol=0, atol=2e-5)


def test_lse_is_exact_in_float64():
    inputs = tokens(3, 1025)
    lse = compute_lse(*tensors(inputs, torch.float64))
    np.testing.assert_allclose(lse.numpy(), oracle.observe(*inputs).lse, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("queries", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize(("heads", "key_heads"), [(3, 3), (6, 2), (5, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_grouped_queries(dtype, heads, key_heads, queries):
    inputs = tokens(queries, 529, heads=heads, key_heads=key_heads)
    causal = np.tri(queries, 529, 529 - queries, dtype=bool)[None, None]
    exact, _ = oracle.attention(*inputs, causal)
    assert_close(attend(*tensors(inputs, dtype), mask=masks.causal()), exact, 529)


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize(
    "head_dim", [1, 2, 7, 16, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 200, 255, 256, 257, 576, 640]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_head_and_value_dims(dtype, head_dim):
    for queries in (1, 5):
        inputs = tokens(queries, 71, head_dim=head_dim, value_dim=641 - head_dim)
        assert_close(attend(*tensors(inputs, dtype)), oracle.attention(*inputs)[0], 71 + head_dim)


def random_cells(queries: int, keys: int, heads: int, *, probability: float) -> Tensor:
    return torch.from_numpy(
        np.random.default_rng([queries, keys, heads]).random((BATCH, heads, queries, keys)) < probability
    )


MASKS = {
    "causal": lambda queries, keys: masks.causal(),
    "causal from the start": lambda queries, keys: masks.causal(align="start"),
    "window": lambda queries, keys: masks.window(70, 0),
    "window to both sides": lambda queries, keys: masks.window(3, 1),
    "padding": lambda queries, keys: masks.padding([keys, keys // 3]),
    "padding on the left": lambda queries, keys: masks.padding([keys - keys // 5, 1], side="left"),
    "cells": lambda queries, keys: masks.keep(random_cells(queries, keys, 1, probability=0.3)),
    "cells of each head": lambda queries, keys: masks.keep(random_cells(queries, keys, HEADS, probability=0.02)),
    "one row of cells": lambda queries, keys: masks.keep(random_cells(1, keys, 1, probability=0.5)[:1]),
    "tiles": lambda queries, keys: (masks.window(70, 0) | masks.global_tokens([0])) & masks.padding([keys, keys // 2]),
    "tiles of each head": lambda queries, keys: ~masks.keep(random_cells(queries, keys, HEADS, probability=0.7)),
}


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("keys", [64, 65, 513, 1031])
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("value_dim", [VALUE_DIM, 67])  # 67 are read in columns, with AVX2
@pytest.mark.parametrize("mask", MASKS)
def test_mask_kinds(mask, value_dim, queries, keys):
    mask_object, inputs = MASKS[mask](queries, keys), tokens(queries, keys, value_dim=value_dim)
    allowed = mask_object.dense(queries, keys)
    exact, _ = oracle.attention(*inputs, allowed.numpy())
    blind = ~allowed.expand(BATCH, HEADS, queries, keys).any(-1)
    for dtype in DTYPES:
        ours = attend(*tensors(inputs, dtype), mask=mask_object)
        assert_close(ours, exact, keys)
        assert not ours[blind].any()


BIASES = {
    "of each pair": (BATCH, HEADS, 3, 529),
    "of each key": (1, 1, 1, 529),
    "of each head": (1, HEADS, 1, 1),
    "of each query": (BATCH, 1, 3, 1),
}


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("bias_dtype", DTYPES)
@pytest.mark.parametrize("bias", BIASES)
def test_bias_shapes_and_dtypes(bias, bias_dtype):
    inputs, bias_array = tokens(3, 529), sixteenths(*BIASES[bias], seed=4)
    bias_array.flat[::7] = -np.inf
    exact, _ = oracle.attention(*inputs, None, np.broadcast_to(bias_array, (BATCH, HEADS, 3, 529)))
    for dtype in DTYPES:
        assert_close(attend(*tensors(inputs, dtype), bias=torch.from_numpy(bias_array).to(bias_dtype)), exact, 529)


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("bias", ["alibi", "t5"])
def test_distance_biases(bias, queries):
    torch.manual_seed(7)
    position = positions.ALiBi(HEADS) if bias == "alibi" else positions.T5Buckets(HEADS)
    if bias == "t5":
        torch.nn.init.normal_(position.weight)
    inputs = tokens(queries, 529)
    with torch.no_grad():
        distances = torch.arange(529) - torch.arange(queries)[:, None] - (529 - queries)
        table = position.table(int(distances.min()), int(distances.max())).double()
        added = table[:, distances - distances.min()].numpy()[None]
        exact, _ = oracle.attention(*inputs, None, np.broadcast_to(added, (BATCH, HEADS, queries, 529)))
        for dtype in DTYPES:
            assert_close(attend(*tensors(inputs, dtype), bias=position), exact, 529)


# ---- visibility ----


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_rows_are_zero(dtype):
    query, key, value = tensors(tokens(2, 600), dtype)
    nothing = torch.zeros(BATCH, dtype=torch.int64)
    some = torch.tensor([0, 513])
    assert not attend(query, key, value, mask=masks.padding([0, 0])).any()
    half = attend(query, key, value, mask=masks.padding([0, 513]))
    assert not half[0].any()
    assert not half[0].signbit().any()
    assert half[1].any()
    assert (compute_lse(query, key, value, start=nothing, stop=nothing) == -torch.inf).all()
    lse = compute_lse(query, key, value, start=nothing, stop=some)
    assert (lse[0] == -torch.inf).all()
    assert lse[1].isfinite().all()


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nonfinite_token_affects_only_queries_that_see_it(dtype, side, bad):
    """Cases: all queries see the same keys, or different ones; at the end of a tile; and behind a mask."""
    queries, keys = 3, 600
    for at in (0, 63, 64, 511, 512, 597, 598, 599):
        inputs = tokens(queries, keys)
        clean = attend(*tensors(inputs, dtype), mask=masks.causal())
        inputs[1 if side == "key" else 2][1, 1, at, -1] = bad
        ours = attend(*tensors(inputs, dtype), mask=masks.causal())
        affected = np.zeros(ours.shape[:3], bool)
        affected[1, 2:4] = at <= keys - queries + np.arange(queries)  # heads 2 and 3 share key head 1
        affected = torch.from_numpy(affected)
        assert ours[affected].isnan().all(), at
        assert torch.equal(ours[~affected], clean[~affected]), at


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_token_has_no_influence(dtype):
    """For any value of the token: bit for bit, and for every way to hide it."""
    keys = 600
    inputs = tensors(tokens(2, keys), dtype)
    allowed = random_cells(2, keys, 1, probability=0.5)
    allowed[..., ::5] = False
    forbidden = ~allowed.any(2)[:, 0]  # (batch, keys): hidden from all queries
    hidden = {
        "cells": (masks.keep(allowed), forbidden),
        "padding": (masks.padding([513, 1]), torch.arange(keys) >= torch.tensor([[513], [1]])),
        "window": (masks.window(65, 0), (torch.arange(keys) < keys - 67).expand(BATCH, keys)),
        "tiles": (~masks.keep(~allowed), forbidden),
    }
    for name, (mask, out) in hidden.items():
        quiet = attend(*inputs, mask=mask)
        for wild in (torch.nan, torch.inf, torch.finfo(dtype).max):
            query, key, value = (tensor.clone() for tensor in inputs)
            for side in (key, value):
                side.masked_fill_(out[:, None, :, None], wild)
            assert torch.equal(attend(query, key, value, mask=mask), quiet), (name, wild)


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("dtype", DTYPES)
def test_nonfinite_query_affects_only_its_own_row(dtype):
    inputs = tokens(3, 600)
    clean = attend(*tensors(inputs, dtype), mask=masks.padding([600, 0]))
    inputs[0][:, 1, 2, 0] = np.nan
    inputs[0][:, 4, 0, -1] = np.inf
    ours = attend(*tensors(inputs, dtype), mask=masks.padding([600, 0]))
    assert ours[0, 1, 2].isnan().all()
    assert ours[0, 4, 0].isnan().all()
    ours[0, 1, 2], ours[0, 4, 0] = clean[0, 1, 2], clean[0, 4, 0]
    assert torch.equal(ours, clean)


@pytest.mark.usefixtures("poison_scratch_memory")
def test_overflowing_scores():
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
    inputs = tokens(1, 700)
    inputs[2][:] = 2.0**100
    output = attend(*tensors(inputs, torch.float32))
    torch.testing.assert_close(output, torch.full_like(output, 2.0**100), rtol=1e-5, atol=0)


def test_overflow_in_strided_values_affects_only_queries_that_see_it():
    """Strided values are copied tile by tile; a non-finite value affects only the queries that see it."""
    query, key, value = tensors(tokens(2, 128, heads=1, key_heads=1), torch.float32)
    value[:, :, :64] = torch.finfo(torch.float32).max
    value[:, :, 127] = torch.nan
    value = value.transpose(2, 3).contiguous().transpose(2, 3)
    mask = masks.keep(torch.tensor([[True] * 128, [True] * 64 + [False] * 64])[None, None])
    output = attend(query, key, value, mask=mask)
    assert output[:, :, 0].isnan().all()
    assert not output[:, :, 1].isnan().any()


# ---- memory layout ----


def length_before_heads(tensor: Tensor) -> Tensor:
    """Store as (batch, length, heads, width)."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def length_innermost(tensor: Tensor) -> Tensor:
    """Store with the length as the innermost dimension."""
    return tensor.transpose(2, 3).contiguous().transpose(2, 3)


def every_second_element(tensor: Tensor) -> Tensor:
    room = torch.full((*tensor.shape[:3], 2 * tensor.shape[3]), torch.nan, dtype=tensor.dtype)
    room[..., ::2] = tensor
    return room[..., ::2]


def unaligned(tensor: Tensor) -> Tensor:
    """Place an odd number of elements after the start of its memory, with NaN around it."""
    batch, heads, length, width = tensor.shape
    room = torch.full((batch, heads, length + 4, width + 3), torch.nan, dtype=tensor.dtype)
    room[:, :, 3:-1, 1:-2] = tensor
    return room[:, :, 3:-1, 1:-2]


def in_a_larger_buffer(tensor: Tensor) -> Tensor:
    """Place at the start of a buffer with room for more tokens, as in a cache."""
    room = torch.full((*tensor.shape[:2], 2 * tensor.shape[2], tensor.shape[3]), torch.nan, dtype=tensor.dtype)
    room[:, :, : tensor.shape[2]] = tensor
    return room[:, :, : tensor.shape[2]]


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize(
    "stored", [length_before_heads, length_innermost, every_second_element, unaligned, in_a_larger_buffer]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_in_any_memory_layout(dtype, stored):
    for queries in (1, 3):
        inputs = tensors(tokens(queries, 525, head_dim=67, value_dim=33), dtype)
        plain = attend(*inputs, mask=masks.causal())
        for strange in ([0], [1], [2], [0, 1, 2]):
            moved = [stored(tensor) if which in strange else tensor for which, tensor in enumerate(inputs)]
            assert torch.equal(attend(*moved, mask=masks.causal()), plain)


def test_expanded_key_with_stride_0():
    query, key, value = tensors(tokens(1, 1), torch.float32)
    output = attend(query, key.expand(-1, -1, 700, -1), value.expand(-1, -1, 700, -1))
    # 700 equal weights; their sum and the weighted values are both rounded
    torch.testing.assert_close(output, value.repeat_interleave(2, 1), rtol=1e-5, atol=0)


# ---- determinism ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_with_any_number_of_threads(dtype):
    inputs = tensors(tokens(3, 5001, head_dim=17), dtype)
    assert_same_bits(lambda: attend(*inputs, mask=masks.causal() & masks.padding([5001, 1234])))


@pytest.mark.parametrize("dtype", DTYPES)
def test_result_of_a_sequence_is_independent_of_its_batch(dtype):
    query, key, value = tensors(tokens(1, 700), dtype)
    whole = attend(query, key, value)
    assert torch.equal(attend(query[1:], key[1:], value[1:]), whole[1:])
    assert torch.equal(attend(query[:, 2:4], key[:, 1:2], value[:, 1:2]), whole[:, 2:4])


# ---- gradients ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_backward_after_decoding(dtype):
    inputs = tokens(1, 529)
    upstream = sixteenths(BATCH, HEADS, 1, VALUE_DIM, seed=5)
    exact = oracle.backward(*inputs, upstream)
    leaves = [tensor.requires_grad_() for tensor in tensors(inputs, dtype)]
    attend(*leaves).backward(torch.from_numpy(upstream).to(dtype))
    eps = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    for leaf, theirs in zip(leaves, exact[:3], strict=True):
        largest = max(1.0, np.abs(theirs).max())
        np.testing.assert_allclose(leaf.grad.double().numpy(), theirs, rtol=0, atol=eps * largest)
