"""Biases against the oracle, forward and backward: every broadcast, -inf, and the scale."""

import itertools
from functools import cache

import numpy as np
import pytest
import torch

import regard
from regard import masks
from regard.conformance.oracles import attention as oracle

BATCH, HEADS, QUERIES, KEYS = 2, 3, 5, 7
SCALE = 0.7
MASKS = {
    "none": None,
    "causal": masks.causal(align="start"),
    "rows that see nothing": masks.window(1, 0, align="start") & masks.padding([7, 2]),
}


def tensors(key_heads: int = HEADS) -> list[torch.Tensor]:
    shapes = [(BATCH, HEADS, QUERIES, 11), (BATCH, key_heads, KEYS, 11), (BATCH, key_heads, KEYS, 2)]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def arrays(*inputs: torch.Tensor) -> list[np.ndarray]:
    return [tensor.detach().numpy() for tensor in inputs]


@cache
def broadcast_cases(mask):
    """NumPy arrays of query, key, value, bias and the output's gradient; with the oracle's output and gradients."""
    allowed = None if MASKS[mask] is None else MASKS[mask].dense(QUERIES, KEYS).numpy()
    cases = []
    for is_broadcast, key_heads in itertools.product(itertools.product([False, True], repeat=4), (1, HEADS)):
        query, key, value = arrays(*tensors(key_heads))
        shape = [1 if one else size for one, size in zip(is_broadcast, (BATCH, HEADS, QUERIES, KEYS), strict=True)]
        bias, upstream = arrays(*(torch.randn(one, dtype=torch.float64) for one in (shape, (*query.shape[:3], 2))))
        output, _ = oracle.attention(query, key, value, allowed, bias, SCALE)
        gradients = oracle.backward(query, key, value, upstream, allowed, bias, SCALE)
        cases.append(((query, key, value, bias, upstream), (output, *gradients[:4])))
    return cases


@pytest.mark.parametrize("impl", ["reference", "native", "sdpa", "auto"])
@pytest.mark.parametrize("mask", MASKS)
def test_gradients_of_broadcast_biases(impl, mask, without_shape_checks):
    for inputs, expected in broadcast_cases(mask):
        *leaves, upstream = (torch.from_numpy(one) for one in inputs)
        query, key, value, bias = (leaf.requires_grad_() for leaf in leaves)
        output = regard.attention(query, key, value, mask=MASKS[mask], bias=bias, scale=SCALE, impl=impl)
        output.backward(upstream)
        np.testing.assert_allclose(output.detach(), expected[0], atol=1e-13)
        for leaf, exact in zip(leaves, expected[1:], strict=True):
            np.testing.assert_allclose(leaf.grad, exact, atol=1e-12, err_msg=f"{bias.shape} {key.shape}")


@pytest.mark.parametrize("impl", ["reference", "native", "sdpa", "auto"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", [(1, 1, QUERIES, KEYS), (1, 1, QUERIES, 1), (BATCH, 1, 1, KEYS)])
def test_minus_infinity_masks(impl, mask, shape):
    """-inf hides keys as the mask does; a row of only -inf gives 0, with gradients of 0."""
    mask = MASKS[mask]
    allowed = None if mask is None else mask.dense(QUERIES, KEYS).numpy()
    query, key, value = tensors()
    bias = torch.randn(shape, dtype=torch.float64)
    bias[..., -1:, :] = -torch.inf
    bias[..., :1] = -torch.inf
    bias.requires_grad_()
    output = regard.attention(query, key, value, mask=mask, bias=bias, impl=impl)
    theirs, _ = oracle.attention(*arrays(query, key, value), allowed, bias.detach().numpy())
    np.testing.assert_allclose(output.detach(), theirs, atol=1e-13)
    output.sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in (query, key, value, bias))
    assert not bias.grad[bias == -torch.inf].any()


@pytest.mark.parametrize("impl", ["reference", "native", "sdpa"])
@pytest.mark.parametrize("scale", [0.0, -1.3, 1.0, 2.5])
def test_scale(impl, scale):
    query, key, value = tensors()
    ours = regard.attention(query, key, value, scale=scale, impl=impl)
    theirs, _ = oracle.attention(*arrays(query, key, value), scale=scale)
    np.testing.assert_allclose(ours.detach(), theirs, atol=1e-13)


def test_float32_bias_with_half_precision_inputs():
    query, key, value = (tensor.detach().bfloat16() for tensor in tensors())
    bias = torch.randn(1, HEADS, QUERIES, KEYS)
    for impl in ("reference", "native", "sdpa"):
        ours = regard.attention(query, key, value, bias=bias, impl=impl)
        assert ours.dtype == torch.bfloat16
        inputs = [tensor.double().numpy() for tensor in (query, key, value)]
        theirs, _ = oracle.attention(*inputs, bias=bias.double().numpy())
        # the output, the weights and the bias are each rounded to 8 bits
        assert np.abs(ours.double().numpy() - theirs).max() <= 3 * 2**-8 * np.abs(inputs[2]).max()
