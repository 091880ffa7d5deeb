"""Sigmoid attention beside the conformance suite: tiles of plain torch, the bias, decoding, and derivatives.

tests/kernels/test_sigmoid.py tests the kernels.
"""

import math

import numpy as np
import pytest
import torch

import regard
from regard import masks
from regard.conformance.oracles import sigmoid as oracle
from regard.errors import OptionError
from regard.kernels.reference import query_tiles
from regard.mechanisms import Sigmoid

HEADS, HEAD_DIM, KEYS = 2, 5, 13


def make_inputs(queries: int = KEYS, *, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(queries)
    return tuple(torch.randn(2, HEADS, n, HEAD_DIM, dtype=dtype, generator=generator) for n in (queries, KEYS, KEYS))


@pytest.fixture
def mechanism() -> Sigmoid:
    return Sigmoid(heads=HEADS, head_dim=HEAD_DIM)


@pytest.fixture
def reference() -> Sigmoid:
    return Sigmoid(heads=HEADS, head_dim=HEAD_DIM, impl="reference")


@pytest.fixture
def in_tiles(monkeypatch) -> None:
    monkeypatch.setattr(query_tiles, "_TILE_BYTES", 3 * 2 * HEADS * KEYS * 8)  # three queries


@pytest.mark.parametrize("impl", ["native", "reference"])
@pytest.mark.parametrize("bias", [None, -1.7])
@pytest.mark.parametrize("queries", [1, 7, KEYS])
def test_agrees_with_the_equation(in_tiles, bias, queries, impl) -> None:
    inputs = make_inputs(queries)
    mechanism = Sigmoid(heads=HEADS, head_dim=HEAD_DIM, score_bias=bias, impl=impl)
    allowed = np.arange(KEYS) <= np.arange(queries)[:, None] + KEYS - queries
    expected, weights = oracle.attention(*(one.numpy() for one in inputs), allowed, bias)
    np.testing.assert_allclose(mechanism(*inputs, masks.causal()).numpy(), expected, rtol=1e-12, atol=1e-14)
    actual = mechanism.weights(*inputs[:2], mask=masks.causal()).numpy()
    np.testing.assert_allclose(actual, weights, rtol=1e-12, atol=1e-14)


def test_tiles_change_no_gradient(reference, monkeypatch) -> None:
    inputs, results = make_inputs(), []
    for tile_bytes in (query_tiles._TILE_BYTES, 3 * 2 * HEADS * KEYS * 8):
        monkeypatch.setattr(query_tiles, "_TILE_BYTES", tile_bytes)
        leaves = [one.clone().requires_grad_() for one in inputs]
        output = reference(*leaves, masks.causal())
        results.append((output, *torch.autograd.grad(output.square().sum(), leaves)))
    for whole, tiled in zip(*results, strict=True):
        torch.testing.assert_close(tiled, whole, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("impl", ["native", "reference"])
def test_dropout_is_the_same_in_the_backward_pass(in_tiles, impl) -> None:
    """The output is linear in the values, so it equals its own derivative along them."""
    mechanism = Sigmoid(heads=HEADS, head_dim=HEAD_DIM, dropout=0.4, impl=impl)
    query, key, value = make_inputs()
    value.requires_grad_()
    torch.manual_seed(5)
    output = mechanism(query, key, value)
    (gradient,) = torch.autograd.grad(output.sum(), value)
    torch.testing.assert_close((gradient * value).sum(), output.sum())


def test_first_and_second_derivatives(in_tiles) -> None:
    mechanism, reference = (Sigmoid(heads=HEADS, head_dim=2, impl=impl) for impl in ("auto", "reference"))
    inputs = tuple(one[:1, :, :4, :2].requires_grad_() for one in make_inputs())
    assert torch.autograd.gradcheck(lambda *parts: mechanism(*parts, masks.causal()), inputs)
    assert torch.autograd.gradcheck(lambda *parts: reference(*parts, masks.causal()), inputs)
    assert torch.autograd.gradgradcheck(lambda *parts: reference(*parts, masks.causal()), inputs)


def test_padding_does_not_change_the_default_bias(mechanism) -> None:
    query, key, value = make_inputs()
    padded = mechanism(query, key, value, masks.padding([KEYS - 4, KEYS - 4]))
    torch.testing.assert_close(padded, mechanism(query, key[:, :, :-4], value[:, :, :-4]))


def test_equal_scores_weigh_about_as_much_as_in_softmax(mechanism) -> None:
    query, key, _ = (torch.zeros_like(one) for one in make_inputs())
    weights = mechanism.weights(query, key)
    torch.testing.assert_close(weights, torch.full_like(weights, 1 / (KEYS + 1)))


def test_largest_scores_are_exact(mechanism) -> None:
    query, key, value = make_inputs(dtype=torch.float32)
    weights = mechanism.weights(1e6 * query, key)
    scores = query @ key.transpose(-2, -1)
    torch.testing.assert_close(weights, (scores > 0).float())
    assert mechanism(1e6 * query, key, value).isfinite().all()


def test_layer_with_a_distance_bias() -> None:
    layer = regard.MultiHeadAttention(10, 2, mechanism="sigmoid", position=regard.positions.ALiBi(2))
    with regard.record(layer) as seen:
        layer(torch.randn(2, 7, 10), mask=masks.causal())
    distances = torch.arange(7)[:, None] - torch.arange(7)
    scores = seen[0].query @ seen[0].key.transpose(-2, -1) * 5**-0.5
    scores = scores - torch.tensor([2.0**-4, 2.0**-8])[:, None, None] * distances.abs()  # Press et al. 2022
    expected = (scores - torch.arange(1, 8).log()[:, None]).sigmoid().tril()
    torch.testing.assert_close(seen[0].weights(), expected)


@pytest.mark.parametrize("bias", [math.nan, math.inf, "log"])
def test_invalid_bias(bias) -> None:
    with pytest.raises(OptionError, match=r"(?s)score_bias.*expected: .*number"):
        regard.mechanism("sigmoid", heads=2, head_dim=3, score_bias=bias)
