"""Indices beyond 2^31 elements, which 32 bits do not hold. Run by hand: ``make test-huge``; 5 GB of memory, a minute.

Most of these arrays are never touched as a whole: memory that nobody has written is not there yet, so what takes up
room is the few pages where something lies.
"""

import numpy as np
import pytest
import torch

from regard.kernels import extension, results

pytestmark = pytest.mark.huge
native = extension.native
HEADS, HEAD_DIM, VALUE_DIM, TOKENS = 2, 5, 3, 67
APART = 1 << 25  # elements from one token to the next: the last one lies beyond 2^31


def untouched(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Room that reads as zeros. NumPy asks the system for zeros, where torch would write them."""
    return torch.from_numpy(np.zeros(elements * dtype.itemsize, np.uint8)).view(dtype)


def far_apart(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers (batch, heads, length, width), each token APART elements from the one before it."""
    batch, _, length, width = tensor.shape
    assert length * APART > 1 << 31
    assert batch == 1
    return untouched(length * APART, tensor.dtype).as_strided(tensor.shape, (0, width, APART, 1)).copy_(tensor)


def tokens(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    widths = HEAD_DIM, HEAD_DIM, VALUE_DIM
    return [torch.randn(1, HEADS, TOKENS, width, generator=generator).to(dtype) for width in widths]


def computed(dtype: torch.dtype, place) -> list[torch.Tensor]:
    """Every result of forward, backward and observe, with all arrays where ``place`` puts them."""
    query, key, value = map(place, tokens(dtype))
    wide = results.accumulation_dtype(dtype)
    output, upstream, seen = (place(torch.ones(1, HEADS, TOKENS, VALUE_DIM).to(dtype)) for _ in range(3))
    lse, entropy = (torch.empty(1, HEADS, TOKENS, dtype=wide) for _ in range(2))
    received = torch.empty(1, HEADS, TOKENS, dtype=wide)
    native.forward(query, key, value, output, lse, low=-30, high=9, threads=2)
    gradients = [place(torch.ones_like(tensor)) for tensor in (query, key, value)]
    band = {"low": -30, "high": 9, "threads": 2}
    native.backward(upstream, query, key, value, output, lse, *gradients, None, None, **band)
    native.observe(query, key, value, seen, lse, entropy, received, None, None, None, None, **band)
    return [
        tensor.clone(memory_format=torch.contiguous_format) for tensor in (output, *gradients, seen, entropy, received)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_far_apart_are_those_close_together(dtype):
    far, close = computed(dtype, far_apart), computed(dtype, torch.clone)
    assert all(torch.equal(*pair) for pair in zip(far, close, strict=True))


def test_decoding_reads_to_the_last_key():
    """Keys of zeros weigh the same; of the values, the last and the first beyond 2^31 elements are not 0."""
    width, keys = 256, (1 << 23) + 71
    assert keys * width > 1 << 31
    key, value = (untouched(keys * width, torch.bfloat16).view(1, 1, keys, width) for _ in range(2))
    value[0, 0, -1], value[0, 0, 1 << 23] = 64.0, 128.0
    query = torch.ones(1, 1, 1, width, dtype=torch.bfloat16)
    output, lse = torch.empty_like(query), torch.empty(1, 1, 1)
    native.forward(query, key, value, output, lse, threads=2)
    torch.testing.assert_close(output.float(), torch.full(output.shape, 192.0 / keys), rtol=2**-8, atol=0)
    torch.testing.assert_close(lse, torch.full((1, 1, 1), float(keys)).log(), rtol=0, atol=1e-5)
    # the heaviest of all: its weight is 1 to the last bit
    key[0, 0, -1] = 1.0
    native.forward(query, key, value, output, lse, scale=1.0, threads=2)
    assert output.eq(64.0).all()


def test_pages_beyond_two_to_the_thirty_one():
    width, page_size = 256, 64
    pages = (1 << 17) + 3
    assert pages * page_size * width > 1 << 31
    key, value = (
        untouched(pages * page_size * width, torch.bfloat16).view(pages, 1, page_size, width) for _ in range(2)
    )
    value[-1, 0, 6] = 64.0
    query, table = torch.ones(1, 1, 1, width, dtype=torch.bfloat16), torch.tensor([[0, pages - 1]])
    output = torch.empty_like(query)
    native.paged(query, key, value, table, torch.tensor([page_size + 7]), output, None, threads=2)
    torch.testing.assert_close(output.float(), torch.full(output.shape, 64.0 / (page_size + 7)), rtol=2**-8, atol=0)


@pytest.mark.parametrize("what", ["dense", "bias"])
def test_cells_beyond_two_to_the_thirty_one(what):
    """The last query sees the last key alone, by a mask that allows no other, or a bias that outweighs the others."""
    length = 46_349
    assert length * length > 1 << 31
    cells = untouched(length * length, torch.bool if what == "dense" else torch.bfloat16).view(1, 1, length, length)
    cells[0, 0, -1, -1] = True if what == "dense" else 1000.0
    key, value = torch.zeros(1, 1, length, HEAD_DIM), torch.ones(1, 1, length, VALUE_DIM)
    value[0, 0, -1] = 13.0
    output, lse = torch.empty_like(value), torch.empty(1, 1, length)
    native.forward(key, key, value, output, lse, threads=2, **{what: cells})
    assert output[0, 0, -1].eq(13.0).all()
    # of the others: nothing is seen, or everything alike
    others = 0.0 if what == "dense" else 1 + 12 / length
    torch.testing.assert_close(output[0, 0, :-1], torch.full((length - 1, VALUE_DIM), others), rtol=0, atol=1e-5)


def test_more_results_than_two_to_the_thirty_one():
    """One key is all there is to see, so each query has its value, of 256 numbers."""
    queries, width = (1 << 23) + 67, 256
    assert queries * width > 1 << 31
    query = torch.ones(1, dtype=torch.bfloat16).expand(1, 1, queries, 1)
    key, value = torch.ones(1, 1, 1, 1, dtype=torch.bfloat16), torch.ones(1, 1, 1, width, dtype=torch.bfloat16)
    value *= torch.arange(width)
    output, lse = torch.empty(1, 1, queries, width, dtype=torch.bfloat16), torch.empty(1, 1, queries)
    native.forward(query, key, value, output, lse, threads=2)
    assert lse.eq(1.0).all()
    for first in range(0, queries, 1 << 18):
        assert (output[0, 0, first : first + (1 << 18)] == value[0, 0]).all()
