"""Gradients for large scores: a constant added to all scores of a row changes neither softmax nor its gradients.

A large score is rounded, and the forward pass computes weights from rounded scores. The correct result of the backward
pass is therefore the gradient at those weights: ``Float64Reference`` computes it in float64, from the weights that
``observe`` returns. Some cases have a result by hand: equal scores, and one visible key.

Sums of L terms in the wide dtype (float32 for half precision) have an error of at most L * wide of the largest sum of
absolute terms, and a result in half precision eps / 2 of it more.
"""

import math
from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import regard
from any_threads import assert_same_bits
from regard import masks, positions
from regard.kernels import results

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
BATCH, HEADS, KEY_HEADS, HEAD_DIM, VALUE_DIM = 2, 4, 2, 19, 37


def tokens(dtype: torch.dtype, queries: int, keys: int, size: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(queries + keys)
    shapes = (HEADS, queries, HEAD_DIM), (KEY_HEADS, keys, HEAD_DIM), (KEY_HEADS, keys, VALUE_DIM)
    drawn = [torch.randn(BATCH, *shape, generator=generator) for shape in shapes]
    return [part.to(dtype).requires_grad_() for part in (drawn[0] * size, drawn[1] * size, drawn[2])]


def attend(*tensors: Tensor, **options) -> Tensor:
    return regard.attention(*tensors, **options, impl="native")


def gradients(output: Tensor, leaves: Sequence[Tensor], upstream: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(output, leaves, upstream))


def forward_weights(*tensors: Tensor, **options) -> Tensor:
    """Return the weights of the forward pass, (batch, heads, queries, keys) in float64."""
    queries = tensors[0].shape[2]
    with torch.no_grad():
        observation = regard.observe(*tensors, **options, top=1, rows=list(range(queries)), impl="native")
    return observation.rows.double()


class Float64Reference:
    """Weights in float64 with the given values, and with the derivatives of a softmax of scale * q . k + bias."""

    def __init__(self, weights: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None):
        self.leaves = [part.detach().double().requires_grad_() for part in (query, key, value)]
        wide_query, wide_key, self.value = self.leaves
        group = query.shape[1] // key.shape[1]
        self.key, self.value = (part.repeat_interleave(group, dim=1) for part in (wide_key, self.value))
        scores = wide_query @ self.key.transpose(-2, -1) * query.shape[3] ** -0.5
        if bias is not None:
            self.leaves.append(bias.detach().double().requires_grad_())
            scores = scores + self.leaves[-1]
        self.weights = torch.softmax(weights.log() + (scores - scores.detach()), dim=-1)

    def gradients(self, upstream: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self.weights @ self.value, self.leaves, upstream.double())


def assert_close(found: Sequence[Tensor], exact: Sequence[Tensor], terms: int, sizes: Sequence[float]) -> None:
    """Assert closeness within rounding, for sums of at most ``terms`` terms with total sizes ``sizes``."""
    for one, other, size in zip(found, exact, sizes, strict=True):
        allowed = terms * torch.finfo(results.accumulation_dtype(one.dtype)).eps + 8 * torch.finfo(one.dtype).eps / 2
        error = float((one.double() - other).abs().max()) / size
        assert error <= allowed, f"off by {error:.2e}, and {allowed:.2e} are allowed"


def bound_terms(tensors: Sequence[Tensor], upstream: Tensor, exact: Sequence[Tensor]) -> list[float]:
    """Upper bounds of the absolute terms of each gradient: dS is a difference of numbers as large as the largest D."""
    query, key, value = (float(part.detach().abs().max()) for part in tensors)
    largest = VALUE_DIM**0.5 * float(upstream.abs().max()) * value
    scale = HEAD_DIM**-0.5
    of_bias = [max(largest, float(part.abs().max())) for part in exact[3:]]
    queries = upstream.shape[2] * HEADS // KEY_HEADS
    return [scale * largest * key, scale * largest * query * queries**0.5, float(exact[2].abs().max()), *of_bias]


# ---- by hand ----


@pytest.mark.parametrize("impl", ["native", "reference", "sdpa"])
@pytest.mark.parametrize("constant", [-1e4, -1e9, 1e9, -3e38])
@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_scores_of_any_size_have_equal_gradients(dtype, constant, impl):
    """The usual additive mask over a padded row: each of 8 values gets an eighth of 8 ones."""
    zeros, value = torch.zeros(1, 1, 8, 4, dtype=dtype), torch.randn(1, 1, 8, 4).to(dtype).requires_grad_()
    bias = torch.full((1, 1, 1, 1), constant)
    regard.attention(zeros, zeros, value, bias=bias, impl=impl).sum().backward()
    assert float((value.grad.double() - 1).abs().max()) <= 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 1, 67, 1), (2, 4, 67, 71), (1, 4, 1, 71)])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_constant_bias_on_equal_scores_changes_no_bit(dtype, dropout, shape):
    query, key, value = tokens(dtype, 67, 71)
    query = torch.zeros_like(query).requires_grad_()
    mask, upstream = masks.causal() & masks.padding([71, 13]), torch.randn(BATCH, HEADS, 67, VALUE_DIM).to(dtype)
    results = []
    for constant in (0.0, -1e9):
        torch.manual_seed(5)
        bias = torch.full(shape, constant, requires_grad=True)
        output = attend(query, key, value, mask=mask, bias=bias, dropout=dropout)
        results.append(gradients(output, (query, key, value, bias), upstream))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def single_key_inputs(
    dtype: torch.dtype, queries: int, keys: int, size: float
) -> tuple[list[Tensor], regard.masks.Mask]:
    query, key, value = tokens(dtype, queries, keys)
    key = (key.detach() * size).to(dtype).requires_grad_()
    allowed = torch.zeros(1, 1, 1, keys, dtype=torch.bool)
    allowed[..., keys // 2] = True
    return [query, key, value], masks.keep(allowed)


@pytest.mark.parametrize(("queries", "keys"), [(67, 71), (1, 71), (3, 1031)])  # the last two decode in forward
@pytest.mark.parametrize("dtype", DTYPES)
def test_single_visible_key_has_weight_1_for_any_score(dtype, queries, keys):
    """dS, dQ and dK are 0, and the gradient of the value is the gradient of the output."""
    leaves, mask = single_key_inputs(dtype, queries, keys, 1e4 if dtype == torch.float16 else 1e20)
    upstream = torch.randn(BATCH, HEADS, queries, VALUE_DIM).to(dtype)
    of_query, of_key, of_value = gradients(attend(*leaves, mask=mask), leaves, upstream)
    assert not of_query.any()
    assert not of_key.any()
    exact = upstream.double().unflatten(1, (KEY_HEADS, -1)).sum((2, 3))
    terms = queries * HEADS // KEY_HEADS
    allowed = terms * torch.finfo(results.accumulation_dtype(dtype)).eps + torch.finfo(dtype).eps
    torch.testing.assert_close(of_value[:, :, keys // 2].double(), exact, rtol=0, atol=allowed * terms)


@pytest.mark.parametrize("dtype", DTYPES)
def test_statistics_of_a_single_visible_key_have_zero_gradients(dtype):
    """The weight is 1 and the entropy 0, for any score."""
    leaves, mask = single_key_inputs(dtype, 67, 71, 1e4 if dtype == torch.float16 else 1e20)
    observation = regard.observe(*leaves, mask=mask, top=2, rows=[0, 66], impl="native")
    of_weights = (
        (observation.entropy * 0.3).sum()
        + (observation.received * torch.arange(71)).sum()
        + observation.rows.square().sum()
    )
    total = observation.output.float().sum() + of_weights + observation.top_weights.sum()
    of_query, of_key, _ = torch.autograd.grad(total, leaves)
    assert not of_query.any()
    assert not of_key.any()


def test_cancelling_products_give_equal_weights():
    """q . k is a^2 - a^2, which decoding sums in another order: the rounding residue must not affect weights."""
    query, key = torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, 71, 16)
    query[..., 0], query[..., 1] = 1.1e10, -1.1e10
    key[..., :2] = 1.1e10
    value = torch.randn(1, 1, 71, 5, requires_grad=True)
    attend(query, key, value).sum().backward()
    assert (value.grad.double() * 71 - 1).abs().max() < 1e-5


# Near the largest float32, where a score times log2 e would be infinite: the largest score has all the weight.


@pytest.mark.parametrize("queries", [67, 1])  # the last one decodes
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bias_near_the_largest_float(dtype, queries):
    leaves = tokens(dtype, queries, 71)
    bias = (3.3e38 * torch.linspace(-1, 1, 71)[torch.randperm(71)]).requires_grad_()
    output = attend(*leaves, bias=bias.view(1, 1, 1, 71))
    largest = leaves[2][:, :, bias.argmax()].repeat_interleave(HEADS // KEY_HEADS, dim=1)
    assert torch.equal(output, largest[:, :, None].expand_as(output))
    assert not torch.autograd.grad(output.sum(), bias)[0].any()


def test_additive_scores_near_the_largest_float():
    mechanism = regard.mechanism("additive", heads=2, head_dim=7, inner=11, impl="native")
    query, key, value = torch.randn(1, 2, 67, 7), torch.randn(1, 2, 71, 7), torch.randn(1, 2, 71, 5)
    bias = 3.3e38 * torch.linspace(-1, 1, 71).view(1, 1, 1, 71)
    assert torch.equal(mechanism(query, key, value, bias=bias), value[:, :, -1:].expand(1, 2, 67, 5))


@pytest.mark.parametrize("scale", [1.0, -1.0])
@pytest.mark.parametrize("queries", [67, 1])
def test_products_near_the_largest_float(queries, scale):
    query, key, value = torch.zeros(1, 1, queries, 8), torch.zeros(1, 1, 71, 8), torch.randn(1, 1, 71, 5)
    query[..., 0], key[..., 0] = 1.8e19, torch.linspace(-1.8e19, 1.8e19, 71)
    observation = regard.observe(query, key, value, scale=scale, impl="native")
    for output in (observation.output, attend(query, key, value, scale=scale)):
        assert torch.equal(output, value[:, :, -1 if scale > 0 else 0][:, :, None].expand_as(output))
    torch.testing.assert_close(observation.lse, torch.full_like(observation.lse, 1.8e19**2))


# ---- against the gradient at the same weights ----


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (BATCH, 1, 67, 1), (1, HEADS, 67, 131)])
@pytest.mark.parametrize("constant", [1e2, -1e4, 1e6, -1e9])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_constant_added_to_scores(dtype, constant, shape):
    leaves = tokens(dtype, 67, 131)
    bias = (constant + torch.randn(shape)).requires_grad_()
    mask, upstream = masks.window(90, 3), torch.randn(BATCH, HEADS, 67, VALUE_DIM).to(dtype)
    found = gradients(attend(*leaves, mask=mask, bias=bias), (*leaves, bias), upstream)
    exact = Float64Reference(forward_weights(*leaves, mask=mask, bias=bias), *leaves, bias).gradients(upstream)
    shared = BATCH * HEADS * 67 * 131 // bias.numel()
    assert_close(found, exact, HEAD_DIM + VALUE_DIM + 131 * HEADS + shared, bound_terms(leaves, upstream, exact))


@pytest.mark.parametrize("size", [1e1, 1e2, 1e3, 1e8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_large_products(dtype, size):
    leaves = tokens(dtype, 67, 131, size)
    upstream = torch.randn(BATCH, HEADS, 67, VALUE_DIM).to(dtype)
    found = gradients(attend(*leaves, mask=masks.causal()), leaves, upstream)
    exact = Float64Reference(forward_weights(*leaves, mask=masks.causal()), *leaves).gradients(upstream)
    assert_close(found, exact, HEAD_DIM + VALUE_DIM + 131 * HEADS, bound_terms(leaves, upstream, exact))


@pytest.mark.parametrize("scale", [-30.0, 0.0, 1e-30])
def test_scales(scale):
    leaves = tokens(torch.float32, 67, 131, 100.0)
    upstream = torch.randn(BATCH, HEADS, 67, VALUE_DIM)
    found = gradients(attend(*leaves, scale=scale), leaves, upstream)
    weights = forward_weights(*leaves, scale=scale)
    exact = [part * scale * HEAD_DIM**0.5 for part in Float64Reference(weights, *leaves).gradients(upstream)]
    exact[2] = Float64Reference(weights, *leaves).gradients(upstream)[2]
    ratio = abs(scale) * HEAD_DIM**0.5
    of_query, of_key, of_value = bound_terms(leaves, upstream, exact)
    sizes = [max(of_query * ratio, 1e-30), max(of_key * ratio, 1e-30), of_value]
    assert_close(found, exact, HEAD_DIM + VALUE_DIM + 131 * HEADS, sizes)


@pytest.mark.parametrize("constant", [-1e4, 1e6, -1e9])
def test_statistics_with_an_added_constant(constant):
    """Statistics of given weights in float64; ln w only where w is not 0."""
    leaves = tokens(torch.float32, 67, 71)
    bias, chosen = constant + torch.randn(1, HEADS, 67, 71), torch.randn(71, dtype=torch.float64)
    options = {"mask": masks.causal(), "bias": bias}
    observation = regard.observe(*leaves, **options, top=1, rows=[5, 66], impl="native")
    total = (
        observation.entropy.sum()
        + (observation.received * chosen).sum()
        + observation.rows.square().sum()
        + observation.top_weights.sum()
    )
    truth = Float64Reference(forward_weights(*leaves, **options), *leaves, bias)
    weights = truth.weights
    entropy = -(weights * weights.masked_fill(weights == 0, 1.0).log()).sum()
    top = weights.gather(-1, observation.top_keys).sum()  # the first of equal weights, where amax would spread over all
    rows = weights[:, :, [5, 66]].square().sum() + (weights.sum(2) * chosen).sum() + top
    gradients = torch.autograd.grad(total, leaves[:2])
    exact = torch.autograd.grad(entropy + rows, truth.leaves[:2])
    largest = max(10.0, float(chosen.abs().max()))
    sizes = [largest * float(part.detach().abs().max()) * 67**0.5 for part in (leaves[1], leaves[0])]
    assert_close(gradients, exact, HEAD_DIM + 71 * HEADS, sizes)


@pytest.mark.parametrize("bias", ["ALiBi", "T5"])
def test_distance_biases(bias):
    leaves, upstream = tokens(torch.float32, 67, 131, 30.0), torch.randn(BATCH, HEADS, 67, VALUE_DIM)
    added = {"ALiBi": positions.ALiBi(HEADS), "T5": positions.T5Buckets(HEADS)}[bias]
    found = gradients(attend(*leaves, bias=added), leaves, upstream)
    exact = Float64Reference(forward_weights(*leaves, bias=added), *leaves).gradients(upstream)
    assert_close(found, exact, HEAD_DIM + VALUE_DIM + 131 * HEADS, bound_terms(leaves, upstream, exact))


@settings(max_examples=30, deadline=None)
@given(
    queries=st.sampled_from([1, 2, 5, 67]),
    keys=st.sampled_from([1, 7, 71, 131]),
    exponent=st.integers(0, 9),
    sign=st.sampled_from([-1, 1]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_random_constant_for_each_row(queries, keys, exponent, sign, dtype):
    leaves, upstream = tokens(dtype, queries, keys), torch.ones(BATCH, HEADS, queries, VALUE_DIM, dtype=dtype)
    upstream[..., ::2] *= -2
    bias = sign * 10.0**exponent * torch.rand(BATCH, HEADS, queries, 1)
    found = gradients(attend(*leaves, bias=bias), leaves, upstream)
    exact = Float64Reference(forward_weights(*leaves, bias=bias), *leaves, bias).gradients(upstream)[:3]
    assert_close(found, exact, HEAD_DIM + VALUE_DIM + keys + HEADS * queries, bound_terms(leaves, upstream, exact))


# ---- weights near 0 ----


@pytest.mark.parametrize("queries", [1, 67])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_weight_is_a_subnormal_number(queries, dtype):
    """A weight is exact, or exactly 0 if it is too small to matter: products with subnormal numbers are slow."""
    least = {torch.float32: 2.0**-100, torch.float64: 2.0**-900}[dtype]
    scores = -torch.linspace(0.0, -1.2 * math.log(torch.finfo(dtype).tiny), 131, dtype=dtype)
    query, key = torch.ones(1, 1, queries, 1, dtype=dtype), scores[None, None, :, None].requires_grad_()
    value = torch.eye(131, dtype=dtype)[None, None].requires_grad_()
    exact = (scores.double() - scores.double().logsumexp(0)).exp().detach()
    output = attend(query, key, value, scale=1.0)
    assert not output[..., exact < least / 4].any()
    exact = exact.to(dtype).expand(1, 1, queries, 131)[..., exact > 4 * least]
    # Rounding an exponent x changes e^x by |x| eps / 2 of itself; it is rounded at most 8 times, sums included.
    bound = 4 * float(scores.abs().max()) * torch.finfo(dtype).eps
    torch.testing.assert_close(output.detach()[..., : exact.shape[3]], exact, rtol=bound, atol=0.0)
    (of_key, of_value) = torch.autograd.grad(output[..., 0].sum(), [key, value])
    for gradient in (of_key, of_value):
        assert not ((gradient != 0) & (gradient.abs() < torch.finfo(dtype).tiny)).any()


# ---- the other kernels ----


@pytest.mark.parametrize("name", ["additive", "luong_concat", "luong_dot", "luong_general"])
@pytest.mark.parametrize("constant", [-1e4, -1e9])
def test_mechanisms_with_equal_scores(name, constant):
    """Equal queries and equal keys have equal scores: the gradients are those without the constant."""
    options = {"inner": 11, "impl": "native"} if name in ("additive", "luong_concat") else {}
    mechanism = regard.mechanism(name, heads=2, head_dim=7, **options)
    query, key = torch.ones(1, 2, 67, 7), torch.ones(1, 2, 71, 7)
    value = torch.randn(1, 2, 71, 5, requires_grad=True)
    results = []
    for added in (0.0, constant):
        output = mechanism(query, key, value, bias=torch.full((1, 1, 1, 1), added))
        results.append(torch.autograd.grad(output.sum(), value)[0])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=71 * torch.finfo(torch.float32).eps)


def test_additive_attention_to_a_single_key_has_zero_parameter_gradients():
    mechanism = regard.mechanism("additive", heads=2, head_dim=7, inner=11, impl="native")
    query, key, value = torch.randn(1, 2, 67, 7), torch.randn(1, 2, 71, 7), torch.randn(1, 2, 71, 5)
    output = mechanism(query, key, value, masks.padding([1]), bias=torch.full((1, 1, 1, 1), -1e9))
    output.backward(torch.randn_like(output))
    assert not any(parameter.grad.any() for parameter in mechanism.parameters())


@pytest.mark.parametrize(("queries", "keys"), [(67, 131), (3, 1031)])
def test_same_bits_with_any_number_of_threads(queries, keys):
    leaves = tokens(torch.float32, queries, keys, 1e8)

    def compute():
        output = attend(*leaves, bias=torch.full((1, 1, 1, 1), -1e9))
        return gradients(output, leaves, torch.ones_like(output))

    assert_same_bits(compute)
