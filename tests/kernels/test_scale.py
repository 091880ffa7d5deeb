"""Scales near the largest and the smallest float, in every implementation, against the oracle in float64."""

import sys

import numpy as np
import pytest
import torch

import regard
from regard import masks, positions
from regard.conformance.oracles import attention as oracle
from regard.kernels.operators import paged_attention_op
from regard.kernels.operators.kernel_arguments import KernelArguments

HEADS, QUERIES, KEYS, HEAD_DIM = 2, 5, 7, 11
# A scale, and the size of queries and keys for which scaled scores are about 1.
SCALES = {
    "1e38": (1e38, 1e-19),
    "3e38": (3e38, 6e-20),
    "-3e38": (-3e38, 6e-20),
    "largest float": (float(np.finfo(np.float32).max), 6e-20),
    "1e-30": (1e-30, 1e15),
    "1e-40": (1e-40, 1e20),
    "-1e-44": (-1e-44, 1e22),
    "1e-46": (1e-46, 1e23),
}


def tokens(size, dtype=torch.float32, queries=QUERIES, keys=KEYS):
    generator = torch.Generator().manual_seed(11)
    query, key, value = (torch.randn(1, HEADS, n, HEAD_DIM, generator=generator) for n in (queries, keys, keys))
    return [(query * size).to(dtype), (key * size).to(dtype), value.to(dtype)]


def arrays(*tensors):
    return [tensor.detach().double().numpy() for tensor in tensors]


def bound(dtype, keys=KEYS):
    """Error bound of sums of HEAD_DIM and ``keys`` products of numbers below 5, and one rounding to the dtype."""
    wide = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    return 25 * (HEAD_DIM + keys) * wide + 5 * torch.finfo(dtype).eps


@pytest.mark.parametrize("impl", ["native", "sdpa", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", SCALES)
def test_extreme_scales(name, dtype, impl):
    scale, size = SCALES[name]
    leaves = [tensor.requires_grad_() for tensor in tokens(size, dtype)]
    output = regard.attention(*leaves, mask=masks.causal(), scale=scale, impl=impl)
    allowed = np.tri(QUERIES, KEYS, KEYS - QUERIES, dtype=bool)
    exact, _ = oracle.attention(*arrays(*leaves), allowed, scale=scale)
    assert np.abs(arrays(output)[0] - exact).max() <= bound(dtype)
    upstream = torch.ones_like(output)
    actual = arrays(*torch.autograd.grad(output, leaves, upstream))
    exacts = oracle.backward(*arrays(*leaves), *arrays(upstream), allowed, scale=scale)
    for ours, expected in zip(actual, exacts, strict=False):
        assert np.abs(ours - expected).max() <= 4 * bound(dtype) * np.abs(expected).max()


@pytest.mark.parametrize("scale", [1e38, 3e38, -3e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("queries", "keys"), [(QUERIES, KEYS), (1, 131)])
def test_native_with_overflowing_scores(scale, dtype, queries, keys):
    """The largest score gets all the weight, as in float64."""
    query, key, value = tokens(1.0, dtype, queries, keys)
    exact, _ = oracle.attention(*arrays(query, key, value), scale=scale)
    output = regard.attention(query, key, value, scale=scale, impl="native")
    assert np.array_equal(arrays(output)[0], exact)


@pytest.mark.parametrize("impl", ["native", "sdpa", "reference"])
@pytest.mark.parametrize("scale", [1e-46, sys.float_info.min, -5e-324, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scale_that_underflows_to_0(dtype, scale, impl):
    query, key, value = tokens(1.0, dtype)
    output = regard.attention(query, key, value, mask=masks.causal(), scale=scale, impl=impl)
    exact, _ = oracle.attention(*arrays(query, key, value), np.tri(QUERIES, KEYS, 2, dtype=bool), scale=0.0)
    assert output.dtype == dtype
    assert np.abs(arrays(output)[0] - exact).max() <= bound(dtype)


@pytest.mark.parametrize("impl", ["native", "reference"])
def test_statistics_with_extreme_scales(impl):
    for scale, size in SCALES.values():
        query, key, value = tokens(size)
        observation = regard.observe(query, key, value, scale=scale, top=2, impl=impl)
        exact = oracle.observe(*arrays(query, key, value), scale=scale, top=2)
        for name in ("output", "lse", "entropy", "received", "top_weights", "max_score"):
            off = np.abs(arrays(getattr(observation, name))[0] - getattr(exact, name)).max()
            assert off <= 4 * bound(torch.float32), (name, scale)


@pytest.mark.parametrize("name", SCALES)
def test_pages_with_extreme_scales(name):
    scale, size = SCALES[name]
    query, key, value = tokens(size)
    table, lengths = torch.tensor([[0]]), torch.tensor([KEYS])
    output = paged_attention_op.paged_attention(
        query, paged_attention_op.PagedKeysValues(key, value, table, lengths), KernelArguments(scale=scale)
    )
    assert np.abs(arrays(output)[0] - oracle.attention(*arrays(query, key, value), scale=scale)[0]).max() <= bound(
        torch.float32
    )


def test_extreme_scale_with_relative_positions():
    """A position that needs the query receives both, so their product is unchanged."""
    bias = positions.ShawRelative(HEAD_DIM, max_distance=3)
    query, key, value = tokens(1e22)
    actual = regard.attention(query, key, value, bias=bias, scale=1e-44, impl="reference")
    wide = (tensor.double() for tensor in (query, key, value))
    exact = regard.attention(*wide, bias=bias.double(), scale=1e-44, impl="reference")
    assert (actual.double() - exact).abs().max() <= bound(torch.float32)


@pytest.mark.parametrize("impl", ["native", "sdpa", "reference"])
def test_bias_gradient_without_keys_is_zero(impl):
    query, key, value = tokens(1.0, keys=0)
    t5 = positions.T5Buckets(HEADS)
    tensor = torch.full((1, HEADS, 1, 1), torch.inf, requires_grad=True)
    for bias, leaf in ((tensor, tensor), (t5, t5.weight)):
        output = regard.attention(query.requires_grad_(), key, value, bias=bias, impl=impl)
        assert torch.count_nonzero(output) == 0
        of_query, of_bias = torch.autograd.grad(output.sum(), (query, leaf))
        assert torch.count_nonzero(of_query) == torch.count_nonzero(of_bias) == 0
