"""The guard around torch's kernel, for inputs where that kernel gives NaN or lets hidden values reach other rows."""

import pytest
import torch

import regard
from regard import masks, positions
from regard.kernels.implementations.sdpa import ATTENTION
from regard.validation import make_request

LENGTH, HEAD_DIM = 61, 31


def tokens(dtype=torch.float32, length=LENGTH):
    return [torch.randn(1, 2, length, HEAD_DIM, dtype=dtype) for _ in range(3)]


@pytest.mark.parametrize("scale", [-0.3, 0.0, 0.2])
def test_causal_with_any_scale(scale):
    query, key, value = tokens(torch.float64)
    ours = regard.attention(query, key, value, mask=masks.causal(), scale=scale, impl="sdpa")
    exact = regard.attention(query, key, value, mask=masks.causal(), scale=scale, impl="reference")
    torch.testing.assert_close(ours, exact, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1e4, 1e8, 1e10, 1e12, 1e16, 1e30])
def test_large_hidden_keys_beside_empty_rows(size, dtype):
    """Left padding under a causal mask: its first queries see nothing, and its keys are seen by none."""
    query, key, value = tokens(dtype)
    hidden = LENGTH // 3
    mask = masks.causal() & masks.padding([LENGTH - hidden], side="left")
    large = key.clone()
    large[:, :, :hidden] *= size
    results = []
    for keys in (key, large):
        leaves = [tensor.clone().requires_grad_() for tensor in (query, keys, value)]
        output = regard.attention(*leaves, mask=mask, impl="sdpa")
        results.append([output.detach(), *torch.autograd.grad(output.sum(), leaves)])
    for plain, poisoned in zip(*results, strict=True):
        assert torch.equal(plain, poisoned)


@pytest.mark.parametrize("size", [1e8, 1e10])
def test_large_visible_keys_have_finite_gradients(size):
    query, key, value = tokens()
    leaves = [query.requires_grad_(), (key * size).requires_grad_(), value.requires_grad_()]
    gradients = torch.autograd.grad(regard.attention(*leaves, mask=masks.causal()).sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", ["alibi", "tensor of -200"])
def test_bias_is_not_rounded_to_half_precision(dtype, bias):
    length = 509
    query, key, value = tokens(dtype, length)
    biases = {"alibi": positions.ALiBi(2), "tensor of -200": torch.randn(1, 2, 1, length) - 200}
    mask = masks.padding([length // 2])
    ours = regard.attention(query, key, value, mask=mask, bias=biases[bias], impl="sdpa")
    exact = regard.attention(*(side.double() for side in (query, key, value)), mask=mask, bias=biases[bias])
    torch.testing.assert_close(ours.double(), exact, rtol=0, atol=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_finite_bias_does_not_mask(dtype):
    """-1e9 does not mask: a row that has it everywhere has the weights of a row without it."""
    query, key, value = tokens(dtype)
    bias = torch.full((1, 1, LENGTH, LENGTH), -1e9)
    output = regard.attention(query, key, value, bias=bias, impl="sdpa")
    without = regard.attention(*(side.double() for side in (query, key, value)), impl="reference")
    torch.testing.assert_close(output.double(), without, rtol=0, atol=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("constant", [1e2, -1e4, 1e6, -1e9])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_constant_for_each_row_changes_neither_output_nor_gradients(dtype, constant):
    leaves = [side.requires_grad_() for side in tokens(dtype)]
    results = []
    for added in (0.0, constant):
        bias = torch.full((1, 1, LENGTH, 1), added, requires_grad=True)
        output = regard.attention(*leaves, mask=masks.causal(), bias=bias, impl="sdpa")
        results.append([output, *torch.autograd.grad(output.sum(), [*leaves, bias])])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("impl", ["sdpa", "reference"])
@pytest.mark.parametrize("mask", [None, masks.window(None, None)])
def test_nan_in_a_query_affects_only_its_row(impl, mask):
    query, key, value = tokens()
    query[:, :, 7] = torch.nan
    leaves = [query, key.requires_grad_(), value.requires_grad_()]
    output = regard.attention(*leaves, mask=mask, impl=impl)
    assert output[:, :, 7].isnan().all()
    assert output[:, :, :7].isfinite().all()
    assert output[:, :, 8:].isfinite().all()
    gradients = torch.autograd.grad(output[:, :, :7].sum(), leaves[1:])
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("impl", ["sdpa", "reference"])
def test_nan_in_a_query_that_sees_nothing_gives_zero(impl):
    query, key, value = tokens()
    query[:, :, 0] = torch.nan
    mask = masks.causal() & masks.padding([LENGTH - 1], side="left")
    assert (regard.attention(query, key, value, mask=mask, impl=impl)[:, :, 0] == 0).all()
    observation = regard.observe(query, key, value, mask=mask)
    assert (observation.entropy[:, :, 0] == 0).all()
    assert (observation.lse[:, :, 0] == -torch.inf).all()


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_nonfinite_bias_affects_only_its_row(wrong):
    query, key, value = (tensor.requires_grad_() for tensor in tokens())
    bias = torch.zeros(1, 1, LENGTH, LENGTH)
    bias[0, 0, 3, 2] = wrong
    output = regard.attention(query, key, value, bias=bias)
    assert output[:, :, 3].isnan().all()
    gradients = torch.autograd.grad(output[:, :, 4:].sum(), (query, key, value))
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize(
    "name", [row.name for row in regard.catalogue() if row.bias and row.mechanism.traits.score_parts == 1]
)
@pytest.mark.parametrize(
    "bias", [positions.ALiBi(2), positions.T5Buckets(2), positions.ShawRelative(HEAD_DIM), torch.randn(1, 2, 1, LENGTH)]
)
def test_forward_and_observe_give_the_same_output(name, bias):
    layer = regard.mechanism(name, heads=2, head_dim=HEAD_DIM)
    query, key, value = tokens()
    observation = layer.observe(query, key, value, masks.causal(), bias=bias)
    torch.testing.assert_close(
        layer(query, key, value, masks.causal(), bias=bias), observation.output, rtol=0, atol=2e-5
    )


def test_random_blocks_of_one_head_broadcast_over_heads():
    mask = masks.random_blocks(1, block=2, heads=1) | masks.keep(torch.ones(1, 3, 5, 5, dtype=torch.bool))
    assert mask.dense(5, 5).shape == (1, 3, 5, 5)


def test_fullgraph_compilation_is_refused_with_the_reason(without_shape_checks):
    """torch.compile quotes the reason; tests/kernels/torch_compile_checks.py tests all cases, in a process."""
    request = make_request(*tokens(), mask=None, bias=None, scale=None)
    with pytest.raises(RuntimeError, match='"sdpa" reads tensor values on a CPU, which breaks the graph'):
        torch.compile(ATTENTION.compute, backend="eager", fullgraph=True)(request)
