"""Sigmoid attention in "native" beside ``test_score_kernels.py``: few queries, large scores, and small weights."""

import pytest
import torch

from kernels.score_kernels import DTYPES, HEAD_DIM, HEADS, KEY_HEADS, QUERIES, SIGMOID, make_tokens, normal, sigmoid
from mask_forms import BATCH, MASKS
from regard.errors import RefusedError
from sampled_parameters import parametrize_sample

DECODED = [(1, 1031), (2, 1031), (5, 4099)]
pytestmark = pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")


@parametrize_sample("mask, dtype", MASKS, DTYPES)
def test_few_queries_agree_with_the_formula(mask, dtype):
    """The decoding kernels compute the output, and the others its gradients."""
    for queries, keys in DECODED:
        for score_bias in (None, -2.5) if keys < 2000 else (None,):
            inputs = make_tokens(queries, keys, dtype=dtype)
            SIGMOID.assert_agrees(inputs, mask=MASKS[mask](queries, keys), score_bias=score_bias)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 67])
@pytest.mark.parametrize("size", [700.0, 1e4, 1e9, 1e30])
def test_large_scores_give_weights_of_0_and_1(size, queries, dtype):
    """Exactly, forward and backward: a sigmoid is flat there, so queries and keys get gradients of 0."""
    if dtype == torch.float16:
        size = min(size, 1e4)
    query = torch.ones(BATCH, HEADS, queries, 1, dtype=dtype, requires_grad=True)
    signs = torch.where(normal(BATCH, KEY_HEADS, 1031, 1, seed=3) > 0, 1.0, -1.0)
    key = (signs * size).to(dtype).requires_grad_()
    value = torch.ones(BATCH, KEY_HEADS, 1031, 3, dtype=dtype, requires_grad=True)
    output = sigmoid(query, key, value, score_bias=-1.0)
    counts = (signs > 0).sum(2).repeat_interleave(HEADS // KEY_HEADS, dim=1)[:, :, None]
    assert torch.equal(output, counts.to(dtype).expand_as(output))
    of_query, of_key, of_value = torch.autograd.grad(output, (query, key, value), torch.ones_like(output))
    assert not of_query.any()
    assert not of_key.any()
    ones = torch.where(signs > 0, float(queries * HEADS // KEY_HEADS), 0.0)
    assert torch.equal(of_value, ones.to(dtype).expand_as(of_value))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_small_weights_have_a_small_relative_error(dtype):
    """Also near 1, where 1 - w would have no correct digit: the derivative is that of the smaller of w and 1 - w."""
    scores = torch.linspace(-60, 60, 1031, dtype=torch.float64).to(dtype)
    query = torch.ones(1, HEADS, 1, 1, dtype=dtype)
    key = scores.view(1, 1, -1, 1).expand(1, HEADS, -1, -1)
    value = torch.eye(1031, dtype=dtype).expand(1, HEADS, -1, -1)[..., :640]
    for part in (slice(0, 640), slice(391, 1031)):
        bias = torch.zeros(1, 1, 1, 640, dtype=dtype, requires_grad=True)
        weights = sigmoid(query, key[:, :, part], value[:, :, :640], bias=bias, score_bias=0.0)
        exact = scores[part].double()
        eps = torch.finfo(dtype).eps
        error = (weights[0, 0, 0].double() / exact.sigmoid() - 1).abs()
        assert (error <= (8 + exact.abs()) * eps).all()
        (slope,) = torch.autograd.grad(weights[0, 0].sum(), bias)
        error = (slope[0, 0, 0].double() / (exact.sigmoid() * (-exact).sigmoid()) - 1).abs()
        assert (error <= (16 + exact.abs()) * eps).all()


@pytest.mark.parametrize("queries", [1, QUERIES])
def test_overflow_of_all_scores(queries):
    _, key, value = make_tokens(queries, 1031)
    overflow = torch.full((1, HEADS, queries, HEAD_DIM), 1e200, dtype=torch.float64).expand(BATCH, -1, -1, -1)
    assert sigmoid(overflow, key * 1e200, value).isnan().all()


def test_too_wide_heads_are_refused():
    with pytest.raises(RefusedError, match=r"(?s)'native' refuses.*at most 640"):
        sigmoid(*make_tokens(head_dim=641))


def test_scale_of_a_wide_head_in_float16():
    """Products of float16 numbers overflow float16, and not the kernels' sums."""
    inputs = [part * 200 for part in make_tokens(dtype=torch.float16)]
    assert sigmoid(*inputs).isfinite().all()
