"""Indices beyond 2^31 elements, which do not fit 32 bits. Run by hand: ``make test-huge``; 5 GB of memory, a minute.

Most of these arrays are never written as a whole: the system allocates a page at its first write, so only the few pages
that are used take memory.
"""

import numpy as np
import pytest
import torch

from regard.kernels import extension, results

pytestmark = pytest.mark.huge
native = extension.native
HEADS, HEAD_DIM, VALUE_DIM, TOKENS = 2, 5, 3, 67
TOKEN_STRIDE = 1 << 25  # elements from one token to the next: the last one lies beyond 2^31


def lazily_zeroed(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros without allocated pages: NumPy requests zeroed memory from the system, where torch would write zeros."""
    return torch.from_numpy(np.zeros(elements * dtype.itemsize, np.uint8)).view(dtype)


def with_large_strides(tensor: torch.Tensor) -> torch.Tensor:
    """Copy (batch, heads, length, width) to memory in which tokens are TOKEN_STRIDE elements apart."""
    batch, _, length, width = tensor.shape
    assert length * TOKEN_STRIDE > 1 << 31
    assert batch == 1
    return (
        lazily_zeroed(length * TOKEN_STRIDE, tensor.dtype)
        .as_strided(tensor.shape, (0, width, TOKEN_STRIDE, 1))
        .copy_(tensor)
    )


def tokens(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    widths = HEAD_DIM, HEAD_DIM, VALUE_DIM
    return [torch.randn(1, HEADS, TOKENS, width, generator=generator).to(dtype) for width in widths]


def compute_results(dtype: torch.dtype, store) -> list[torch.Tensor]:
    """Return all results of forward, backward and observe, with arrays in the memory layout that ``store`` makes."""
    query, key, value = map(store, tokens(dtype))
    wide = results.accumulation_dtype(dtype)
    output, upstream, seen = (store(torch.ones(1, HEADS, TOKENS, VALUE_DIM).to(dtype)) for _ in range(3))
    lse, entropy, received = (torch.empty(1, HEADS, TOKENS, dtype=wide) for _ in range(3))
    normalizer = torch.empty(1, HEADS, TOKENS, 2, dtype=wide)
    native.forward(query, key, value, output, lse, normalizer=normalizer, low=-30, high=9, threads=2)
    gradients = [store(torch.ones_like(tensor)) for tensor in (query, key, value)]
    band = {"low": -30, "high": 9, "threads": 2}
    native.backward(upstream, query, key, value, output, normalizer, *gradients, None, None, **band)
    native.observe(query, key, value, seen, lse, entropy, received, None, None, None, None, **band)
    return [
        tensor.clone(memory_format=torch.contiguous_format) for tensor in (output, *gradients, seen, entropy, received)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_strides_give_the_same_results(dtype):
    far, close = compute_results(dtype, with_large_strides), compute_results(dtype, torch.clone)
    assert all(torch.equal(*pair) for pair in zip(far, close, strict=True))


def test_decoding_reads_to_the_last_key():
    """Keys of zeros have equal weights; only the last value and the first value beyond 2^31 elements are not 0."""
    width, keys = 256, (1 << 23) + 71
    assert keys * width > 1 << 31
    key, value = (lazily_zeroed(keys * width, torch.bfloat16).view(1, 1, keys, width) for _ in range(2))
    value[0, 0, -1], value[0, 0, 1 << 23] = 64.0, 128.0
    query = torch.ones(1, 1, 1, width, dtype=torch.bfloat16)
    output, lse = torch.empty_like(query), torch.empty(1, 1, 1)
    native.forward(query, key, value, output, lse, threads=2)
    torch.testing.assert_close(output.float(), torch.full(output.shape, 192.0 / keys), rtol=2**-8, atol=0)
    torch.testing.assert_close(lse, torch.full((1, 1, 1), float(keys)).log(), rtol=0, atol=1e-5)
    # the largest score: its weight is exactly 1
    key[0, 0, -1] = 1.0
    native.forward(query, key, value, output, lse, scale=1.0, threads=2)
    assert output.eq(64.0).all()


def test_pages_beyond_2_to_the_31_elements():
    width, page_size = 256, 64
    pages = (1 << 17) + 3
    assert pages * page_size * width > 1 << 31
    key, value = (
        lazily_zeroed(pages * page_size * width, torch.bfloat16).view(pages, 1, page_size, width) for _ in range(2)
    )
    value[-1, 0, 6] = 64.0
    query, table = torch.ones(1, 1, 1, width, dtype=torch.bfloat16), torch.tensor([[0, pages - 1]])
    output = torch.empty_like(query)
    native.paged(query, key, value, table, torch.tensor([page_size + 7]), None, output, None, threads=2)
    torch.testing.assert_close(output.float(), torch.full(output.shape, 64.0 / (page_size + 7)), rtol=2**-8, atol=0)


@pytest.mark.parametrize("argument", ["dense", "bias"])
def test_mask_and_bias_beyond_2_to_the_31_elements(argument):
    """The last query attends only to the last key, because of a mask, or of a bias that outweighs the others."""
    length = 46_349
    assert length * length > 1 << 31
    cells = lazily_zeroed(length * length, torch.bool if argument == "dense" else torch.bfloat16).view(
        1, 1, length, length
    )
    cells[0, 0, -1, -1] = True if argument == "dense" else 1000.0
    key, value = torch.zeros(1, 1, length, HEAD_DIM), torch.ones(1, 1, length, VALUE_DIM)
    value[0, 0, -1] = 13.0
    output, lse = torch.empty_like(value), torch.empty(1, 1, length)
    native.forward(key, key, value, output, lse, threads=2, **{argument: cells})
    assert output[0, 0, -1].eq(13.0).all()
    # the other queries see nothing, or all keys equally
    others = 0.0 if argument == "dense" else 1 + 12 / length
    torch.testing.assert_close(output[0, 0, :-1], torch.full((length - 1, VALUE_DIM), others), rtol=0, atol=1e-5)


def test_output_beyond_2_to_the_31_elements():
    """There is one key, so the output of each query is its value, of 256 numbers."""
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
