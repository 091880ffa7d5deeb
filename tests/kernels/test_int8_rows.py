"""Keys and values rounded to int8, read in place: against the float64 oracle on what the stored bytes stand for.

The oracle reads the bytes itself. Memory that no query may see is filled with bytes whose scale is NaN.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from any_threads import assert_same_bits
from regard.conformance.oracles import attention as oracle
from regard.kernels.int8_rows import SCALE_BYTES, round_rows, widen_rows
from regard.kernels.operators import paged_attention_op, sublayer_op
from regard.kernels.operators.kernel_arguments import KernelArguments
from regard.kernels.operators.paged_attention_op import PagedKeysValues
from regard.kernels.operators.sublayer_op import AttentionLayers, SublayerNorms

pytestmark = pytest.mark.usefixtures("without_shape_checks")  # which take longer than the kernels
KEY_HEADS, HEAD_DIM, VALUE_DIM = 3, 37, 67
DTYPES = [torch.float32, torch.bfloat16]
EDGES = [1, 2, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1025]


def numbers(rows: Tensor) -> np.ndarray:
    """What stored rows stand for, in float64."""
    stored = rows.numpy()
    scale = np.ascontiguousarray(stored[..., -SCALE_BYTES:]).view(np.float32)
    return stored[..., :-SCALE_BYTES].astype(np.float64) * scale


def tokens(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def store_in_pages(
    lengths: list[int], page_size: int, key_heads: int = KEY_HEADS
) -> tuple[PagedKeysValues, list[tuple]]:
    """Rounded sequences in shuffled pages, and the rows of each."""
    counts = [-(-length // page_size) for length in lengths]
    order = iter(np.random.default_rng(1).permutation(sum(counts) + 2).tolist())
    sides = [
        torch.full((sum(counts) + 2, key_heads, page_size, size + SCALE_BYTES), -1, dtype=torch.int8)
        for size in (HEAD_DIM, VALUE_DIM)
    ]
    table, sequences = torch.zeros(len(lengths), max(counts), dtype=torch.int32), []
    for entry, length in enumerate(lengths):
        rows = [round_rows(tokens(key_heads, length, size, seed=entry + size)) for size in (HEAD_DIM, VALUE_DIM)]
        sequences.append(tuple(rows))
        for number in range(counts[entry]):
            table[entry, number] = page = next(order)
            for side, whole in zip(sides, rows, strict=True):
                part = whole[:, number * page_size : (number + 1) * page_size]
                side[page, :, : part.shape[1]] = part
    return PagedKeysValues(*sides, table, torch.tensor(lengths)), sequences


def attend(query: Tensor, pages: PagedKeysValues, **terms) -> Tensor:
    return paged_attention_op.paged_attention(query, pages, KernelArguments(scale=HEAD_DIM**-0.5, **terms))


def assert_close(ours: Tensor, exact: np.ndarray, terms: int) -> None:
    wide = torch.finfo(torch.float32).eps
    rounding = 0 if ours.dtype is torch.float32 else torch.finfo(ours.dtype).eps
    np.testing.assert_allclose(ours.double().numpy(), exact, rtol=0, atol=8 * (4 * terms * wide + rounding))


# ---- rounding ----


def test_the_error_of_a_number_is_at_most_half_the_scale_of_its_row():
    rows = tokens(5, 7, 33, seed=1) * torch.logspace(-30, 30, 35).view(5, 7, 1)
    stored = round_rows(rows)
    largest = rows.abs().amax(dim=-1, keepdim=True).double().numpy()
    error = np.abs(numbers(stored) - rows.double().numpy())
    assert (error <= largest / 254 * (1 + 1e-5)).all()
    np.testing.assert_array_equal(widen_rows(stored, torch.float64).numpy(), numbers(stored).astype(np.float32))


def test_a_row_of_zeros_of_tiny_numbers_or_with_nan_changes_no_other_row():
    rows = tokens(6, 19, seed=2)
    expected = round_rows(rows)
    rows[1], rows[2] = 0, 1e-44
    rows[3, 5], rows[4, 18] = torch.nan, torch.inf
    stored = round_rows(rows)
    assert torch.equal(stored[[0, 5]], expected[[0, 5]])
    assert not stored[1].any()
    assert np.abs(numbers(stored[2])).max() < 1e-38
    assert np.isnan(numbers(stored[3:5])).all()


@pytest.mark.parametrize("head_dim", [1, 5, 16, 37, 64, 80])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_native_kernels_store_the_same_bits(dtype, head_dim):
    """Layers whose weights are the identity pass the tokens on as keys and values."""
    new = tokens(2, 3, head_dim, seed=3).to(dtype)
    new[0, 1], new[1, 1], new[1, 2, 0] = 0, new[1, 1] * 1e-30, torch.inf
    key = torch.full((2, 1, 5, head_dim + SCALE_BYTES), -1, dtype=torch.int8)
    value = key.clone()
    same = (torch.eye(head_dim, dtype=dtype), None, None, head_dim)
    layers = AttentionLayers(same, same, same, same)
    terms = KernelArguments(scale=1.0)
    with torch.no_grad():
        sublayer_op.attention(new, key, value, 1, layers, SublayerNorms(), None, terms)
    expected = round_rows(torch.nan_to_num(new, nan=torch.nan, posinf=torch.nan)[:, None])
    assert torch.equal(key[:, :, 2:], expected)
    assert torch.equal(value, key)
    assert (key[:, :, :2] == -1).all()


# ---- attention ----


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("page_size", [1, 7, 16, 64, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_query_at_the_edges_of_pages_tiles_and_chunks(dtype, page_size):
    pages, sequences = store_in_pages(EDGES, page_size)
    query = tokens(len(EDGES), 2 * KEY_HEADS, 1, HEAD_DIM, seed=4).to(dtype)
    ours = attend(query, pages)
    for entry, (key, value) in enumerate(sequences):
        exact, _ = oracle.attention(query[entry : entry + 1].double().numpy(), numbers(key)[None], numbers(value)[None])
        assert_close(ours[entry : entry + 1], exact, EDGES[entry] + HEAD_DIM)


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize(("group", "queries"), [(1, 64), (1, 65), (4, 3), (5, 13), (64, 1)])
@pytest.mark.parametrize("low", [None, -70])
def test_queries_of_grouped_heads_under_a_band(group, queries, low):
    lengths = [131, 140]
    pages, sequences = store_in_pages(lengths, 16, key_heads=2)
    query = tokens(2, 2 * group, queries, HEAD_DIM, seed=5)
    ours = attend(query, pages, low=low, high=0)
    for entry, (key, value) in enumerate(sequences):
        distance = np.arange(lengths[entry]) - (np.arange(queries) + lengths[entry] - queries)[:, None]
        allowed = (distance <= 0) & (distance >= (-np.inf if low is None else low))
        exact, _ = oracle.attention(
            query[entry : entry + 1].double().numpy(), numbers(key)[None], numbers(value)[None], allowed[None, None]
        )
        assert_close(ours[entry : entry + 1], exact, lengths[entry] + HEAD_DIM)


def test_softcap_and_sinks_are_those_of_attention_to_the_widened_rows():
    pages, sequences = store_in_pages([67], 16)
    query, sinks = tokens(1, 6, 2, HEAD_DIM, seed=6), tokens(1, 6, 1, 1, seed=7)
    ours = attend(query, pages, high=0, softcap=1.5, sinks=sinks)
    key, value = (torch.from_numpy(numbers(side))[None] for side in sequences[0])
    exact = regard.attention(
        query.double(), key, value, mask=regard.masks.causal(), softcap=1.5, sinks=sinks.double(), impl="reference"
    )
    assert_close(ours, exact.numpy(), 67 + HEAD_DIM)


def test_nan_reaches_the_queries_that_may_see_its_row_alone():
    pages, _ = store_in_pages([130], 16)
    clean = attend(tokens(1, 6, 3, HEAD_DIM, seed=8), pages, low=-5, high=0)
    page, slot = pages.page_table[0, 129 // 16], 129 % 16
    for side in (pages.key_pages, pages.value_pages):
        stored = side[page, 0, slot].clone()
        side[page, 0, slot] = round_rows(torch.full((1, side.shape[3] - SCALE_BYTES), torch.nan))[0]
        broken = attend(tokens(1, 6, 3, HEAD_DIM, seed=8), pages, low=-5, high=0)
        assert broken[0, :2, 2].isnan().all()
        assert torch.equal(broken[0, :, :2], clean[0, :, :2])
        assert torch.equal(broken[0, 2:], clean[0, 2:])
        side[page, 0, slot] = stored


def test_bits_depend_neither_on_threads_nor_on_other_texts():
    pages, _ = store_in_pages([1025, 700, 3], 16)
    query = tokens(3, 6, 1, HEAD_DIM, seed=9)
    assert_same_bits(lambda: attend(query, pages))
    alone = PagedKeysValues(pages.key_pages, pages.value_pages, pages.page_table[:1], pages.lengths[:1])
    assert torch.equal(attend(query[:1], alone), attend(query, pages)[:1])
