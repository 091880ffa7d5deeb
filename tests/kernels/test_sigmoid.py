"""Sigmoid attention in "native": output and every gradient against the formula in float64; torch's contract.

    w_ij = sigmoid(scale q_i . k_j + bias_ij + b_i)         Ramapuram et al. 2025, section 2

b_i is a number, or -log of the number of keys that query i may attend to. Inputs are rounded to the dtype first, so
that the formula has the same inputs. The conformance suite and test_isas.py compare the kernels with the NumPy oracle.

A result that is computed by sums of L terms in the wide dtype (float32 for half precision) has an error of at most
L * wide of the largest term; at most 8 intermediate numbers are rounded to the dtype.
"""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from kernels.opcheck_cases import parametrize_opcheck
from mask_forms import BATCH, MASKS, random_cells
from regard import masks, positions
from regard.contract import Frame
from regard.errors import OptionError, RefusedError
from regard.kernels import results
from regard.kernels.implementations.sigmoid import SIGMOID_ATTENTION
from regard.kernels.operators.kernel_arguments import KernelArguments, to_kernel_arguments
from regard.validation import make_request
from sampled_parameters import parametrize_sample

HEADS, KEY_HEADS, QUERIES, KEYS, HEAD_DIM, VALUE_DIM = 6, 3, 7, 11, 19, 13
LENGTHS = [(1, 1), (5, 7), (63, 65), (64, 64), (65, 63), (7, 257), (131, 3)]
DECODED = [(1, 1031), (2, 1031), (5, 4099)]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
SCALE = HEAD_DIM**-0.5


def random_tensor(*shape: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng([*shape, seed]).standard_normal(shape))


def tokens(
    queries: int = QUERIES,
    keys: int = KEYS,
    *,
    head_dim: int = HEAD_DIM,
    value_dim: int = VALUE_DIM,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """Random query, key and value in the memory layout of layers, (batch, length, heads, size)."""
    shapes = (queries, HEADS, head_dim), (keys, KEY_HEADS, head_dim), (keys, KEY_HEADS, value_dim)
    return [random_tensor(BATCH, *shape, seed=1).to(dtype).transpose(1, 2).requires_grad_() for shape in shapes]


def upstream(output: Tensor) -> Tensor:
    return random_tensor(*output.shape, seed=5).to(output.dtype)


def formula(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    *,
    allowed: Tensor | None = None,
    score_bias: float | None = None,
) -> Tensor:
    """Compute the output by the paper's formula."""
    group = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(group, dim=1) for part in (key, value))
    scores = query @ key.transpose(-2, -1) * query.shape[3] ** -0.5
    scores = scores if bias is None else scores + bias
    seen = torch.ones_like(scores, dtype=torch.bool) if allowed is None else allowed.expand_as(scores)
    counted = -seen.sum(-1, keepdim=True).clamp(min=1).to(scores).log() if score_bias is None else score_bias
    return torch.where(seen, torch.sigmoid(scores + counted), 0.0) @ value


def sigmoid(*inputs: Tensor, mask=None, bias=None, score_bias=None, **options) -> Tensor:
    query = inputs[0]
    mechanism = regard.mechanism(
        "sigmoid", heads=HEADS, head_dim=query.shape[3], score_bias=score_bias, impl="native", **options
    )
    output: Tensor = mechanism(*inputs, mask, bias=bias)
    return output


def tolerance(inputs: list[Tensor]) -> float:
    """Number of terms of the longest sums, times eps of the wide dtype, and 8 roundings to the dtype."""
    query, key, value = inputs[:3]
    terms = query.shape[3] + value.shape[3] + max(key.shape[2], HEADS // KEY_HEADS * query.shape[2])
    wide = torch.finfo(results.accumulation_dtype(query.dtype)).eps
    return terms * wide + 4 * torch.finfo(query.dtype).eps


def assert_agrees(inputs: list[Tensor], bias: Tensor | None = None, *, mask=None, score_bias=None, terms=1) -> None:
    """Compare the output and all gradients with the formula in float64."""
    leaves = [*inputs] if bias is None else [*inputs, bias]
    exact_leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
    cells = None if mask is None else mask.dense(inputs[0].shape[2], inputs[1].shape[2])
    exact = formula(*exact_leaves, allowed=cells, score_bias=score_bias)
    output = sigmoid(*inputs, mask=mask, bias=bias, score_bias=score_bias)
    assert output.dtype == inputs[0].dtype
    found = [output.detach(), *torch.autograd.grad(output, leaves, upstream(output))]
    wanted = [exact.detach(), *torch.autograd.grad(exact, exact_leaves, upstream(output).double())]
    for name, one, other in zip(("output", "query", "key", "value", "bias"), found, wanted, strict=False):
        largest = max(1.0, float(other.abs().max())) if other.numel() else 1.0
        allowed = tolerance(inputs) * largest * (terms if name == "bias" else 1)
        torch.testing.assert_close(
            one.double(), other, rtol=0, atol=allowed, msg=lambda text, name=name: f"{name}: {text}"
        )


# Results


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
def test_output_and_gradients_agree_with_the_formula(mask, dtype):
    for queries, keys in LENGTHS:
        if mask == "tiles" and keys < 5:
            continue
        assert_agrees(tokens(queries, keys, dtype=dtype), mask=MASKS[mask](queries, keys))


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@parametrize_sample("mask, dtype", MASKS, DTYPES)
def test_few_queries_agree_with_the_formula(mask, dtype):
    """The decoding kernels compute the output, and the others its gradients."""
    for queries, keys in DECODED:
        for score_bias in (None, -2.5) if keys < 2000 else (None,):
            inputs = tokens(queries, keys, dtype=dtype)
            assert_agrees(inputs, mask=MASKS[mask](queries, keys), score_bias=score_bias)


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(1, 7), (7, 1), (67, 131), (640, 17), (17, 640)])
def test_head_sizes(sizes, dtype):
    head_dim, value_dim = sizes
    inputs = tokens(67, 71, head_dim=head_dim, value_dim=value_dim, dtype=dtype)
    assert_agrees(inputs, mask=masks.causal(), score_bias=0.5)


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 67, 71), (BATCH, 1, 1, 71), (1, HEADS, 67, 1), (BATCH, HEADS, 67, 71)])
def test_bias_shapes(shape, dtype):
    """A bias of -inf gives a weight of 0, but counts as a visible key."""
    bias = random_tensor(*shape, seed=7).to(dtype)
    bias[torch.from_numpy(np.random.default_rng(5).random(shape) < 0.2)] = -torch.inf
    terms = BATCH * HEADS * 67 * 71 // bias.numel()
    assert_agrees(tokens(67, 71, dtype=dtype), bias.requires_grad_(), mask=masks.causal(), terms=terms)


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("mask", MASKS)
def test_gradient_of_a_distance_bias(mask):
    bias = positions.T5Buckets(HEADS, buckets=8, max_distance=13).double()
    for queries, keys in LENGTHS[1:]:
        inputs, chosen = tokens(queries, keys), MASKS[mask](queries, keys)
        cells = None if chosen is None else chosen.dense(queries, keys)
        added = bias.scores(inputs[0], Frame(queries, keys), torch.arange(queries), SCALE)
        both = []
        for output in (sigmoid(*inputs, mask=chosen, bias=bias), formula(*inputs, added, allowed=cells)):
            (trained,) = torch.autograd.grad(output, bias.weight, upstream(output))
            both.append((output, trained / max(1.0, queries * keys)))
        for one, other in zip(*both, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=tolerance(inputs))


# Large scores


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 67])
@pytest.mark.parametrize("size", [700.0, 1e4, 1e9, 1e30])
def test_large_scores_give_weights_of_0_and_1(size, queries, dtype):
    """Exactly, forward and backward: a sigmoid is flat there, so queries and keys get gradients of 0."""
    if dtype == torch.float16:
        size = min(size, 1e4)
    query = torch.ones(BATCH, HEADS, queries, 1, dtype=dtype, requires_grad=True)
    signs = torch.where(random_tensor(BATCH, KEY_HEADS, 1031, 1, seed=3) > 0, 1.0, -1.0)
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


@pytest.mark.usefixtures("without_shape_checks")
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


# NaN and Inf


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_nonfinite_token_affects_only_rows_that_see_it(name, number, dtype):
    """Rows that see it are NaN and excluded from the backward pass; all others are as if the token were zeros."""
    at, mask, index = 31, masks.window(40, 3), ("query", "key", "value").index(name)
    clean = [part.detach().clone() for part in tokens(67, 71, dtype=dtype)]
    for part in clean[:1] if name == "query" else clean[1:]:
        part[:, :, at] = 0
    bad = [part.clone() for part in clean]
    bad[index][1, 1, at, 2] = number
    affected = torch.zeros(BATCH, HEADS, 67, dtype=torch.bool)
    if name == "query":
        affected[1, 1, at] = True
    else:
        affected[1, 2:4] = mask.dense(67, 71)[..., at]
    computed = []
    for inputs in (clean, bad):
        leaves = [part.requires_grad_() for part in inputs]
        output = sigmoid(*leaves, mask=mask)
        kept = output.masked_fill(affected[..., None], 0.0)
        computed.append([kept, *torch.autograd.grad(kept, leaves, upstream(output))])
        if inputs is bad:
            assert output[affected].isnan().all()
    assert all(map(torch.equal, *computed))
    hidden = sigmoid(*bad, mask=masks.padding([71, 0]))
    assert not hidden[1].any()
    assert all(part.isfinite().all() for part in torch.autograd.grad(hidden.sum(), bad))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("queries", [1, QUERIES])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_nonfinite_score_affects_only_its_row(number, queries):
    inputs = tokens(queries, 1031)
    bias = torch.zeros(1, HEADS, queries, 1031)
    bias[:, 3, -1, 5] = number
    output = sigmoid(*inputs, bias=bias)
    rows = torch.zeros(BATCH, HEADS, queries, dtype=torch.bool)
    rows[:, 3, -1] = True
    assert output[rows].isnan().all()
    assert output[~rows].isfinite().all()
    assert sigmoid(*inputs, bias=bias, mask=masks.padding([5, 4])).isfinite().all()
    overflow = torch.full((1, HEADS, queries, HEAD_DIM), 1e200, dtype=torch.float64).expand(BATCH, -1, -1, -1)
    assert sigmoid(overflow, inputs[1] * 1e200, inputs[2]).isnan().all()


# Dropout, threads


@pytest.mark.usefixtures("without_shape_checks")
def test_dropout_drops_weights_and_scales_the_others():
    query, key, _ = tokens(67, 71)
    value = torch.eye(71, dtype=torch.float64).expand(BATCH, KEY_HEADS, 71, 71)
    weights = sigmoid(query, key, value)
    dropped = sigmoid(query, key, value, dropout=0.25)
    kept = dropped > 0
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.75, rtol=0, atol=1e-14)
    share = 1 - kept.double().mean().item()
    assert abs(share - 0.25) < 4 * (0.25 * 0.75 / kept.numel()) ** 0.5


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [(131, 257), (1, 4099)])
def test_same_bits_with_any_number_of_threads(lengths, dtype):
    inputs, before = tokens(*lengths, dtype=dtype), torch.get_num_threads()
    bias = torch.zeros(1, 1, 1, lengths[1], requires_grad=True)
    computed = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for dropout in (0.0, 0.3):
            torch.manual_seed(43)
            output = sigmoid(
                *inputs, bias=bias, mask=masks.causal() & masks.padding([lengths[1], 130]), dropout=dropout
            )
            computed.append([output, *torch.autograd.grad(output, [*inputs, bias], upstream(output))])
    torch.set_num_threads(before)
    for other in computed[2:]:
        assert any(all(map(torch.equal, other, first)) for first in computed[:2])


# The operators


def leaf(*shape: int) -> Tensor:
    return random_tensor(*shape, seed=11).requires_grad_()


SIZES = {
    "tiles": {"queries": 67, "keys": 67, "value_dim": 2, "head_dim": 2},
    "no keys": {"keys": 0},
    "no queries": {"queries": 0},
    "no values": {"value_dim": 0},
}


def arguments(inputs: list[Tensor], mask=None, bias=None, dropout: float = 0.0) -> KernelArguments:
    return to_kernel_arguments(make_request(*inputs, mask=mask, bias=bias, scale=SCALE, dropout=dropout))


TERMS = {
    "nothing": lambda given: arguments(given),
    "band and interval": lambda given: arguments(given, masks.window(5, 1) & masks.padding([11, 4])),
    "cells": lambda given: arguments(given, masks.keep(random_cells(QUERIES, KEYS))),
    "tiles": lambda given: arguments(given, masks.documents(torch.arange(67) // 5) | masks.global_tokens([0])),
    "bias": lambda given: arguments(given, masks.causal(), leaf(1, HEADS, 1, KEYS)),
    "bias of another dtype": lambda given: arguments(given, bias=torch.zeros(BATCH, 1, QUERIES, KEYS).requires_grad_()),
    "table": lambda given: arguments(given)._replace(table=leaf(HEADS, 2 * KEYS), table_lowest=-KEYS),
    "dropout": lambda given: arguments(given, masks.causal(), dropout=0.3),
    "no keys": lambda given: arguments(given, masks.causal()),
    "no queries": lambda given: arguments(given, masks.causal()),
    "no values": lambda given: arguments(given, masks.causal(), leaf(1, 1, QUERIES, 1)),
}


@parametrize_opcheck(TERMS, default_kinds=["bias"])
def test_operators_pass_opcheck(name, utilities, without_shape_checks):
    inputs = tokens(**SIZES.get(name, {}))
    named = TERMS[name](inputs)
    for score_bias in (None, -1.5):
        torch.library.opcheck(
            torch.ops.regard.sigmoid_attention.default, (*inputs, score_bias, *named), test_utils=utilities
        )
    plain = [part.detach() if isinstance(part, Tensor) else part for part in (*inputs, *named)]
    output, normalizer = torch.ops.regard.sigmoid_attention.default(*plain[:3], None, *plain[3:])
    expected = (named.bias is not None, named.table is not None)
    torch.library.opcheck(
        torch.ops.regard.sigmoid_attention_backward.default,
        (torch.randn_like(output), *plain[:3], normalizer, *expected, *plain[3:]),
        test_utils=utilities,
    )


@pytest.mark.parametrize("name", [name for name in TERMS if not name.startswith(("no ", "tiles", "bias of another"))])
@pytest.mark.parametrize("path", ["operator", "eager"])
def test_gradients_agree_with_finite_differences(name, path, without_shape_checks):
    inputs = tokens()
    named = TERMS[name](inputs)
    trained = [kind for kind in ("bias", "table") if getattr(named, kind) is not None]
    operator = SIGMOID_ATTENTION.forward
    function = operator.torch_op if path == "operator" else operator.compute_with_grad

    def output(*leaves):
        terms = named._replace(**dict(zip(trained, leaves[3:], strict=True)))
        return function(*leaves[:3], -0.5, *terms)[0]

    leaves = [getattr(named, kind).detach().requires_grad_() for kind in trained]
    assert torch.autograd.gradcheck(output, (*inputs, *leaves), fast_mode=True, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("name", ["no keys", "no queries", "no values"])
def test_empty_tensors(name, without_shape_checks):
    inputs = tokens(**SIZES[name])
    output = sigmoid(*inputs, mask=masks.causal())
    assert not output.any()
    assert not any(part.any() for part in torch.autograd.grad(output.sum(), inputs))


# The mechanism


def test_auto_prefers_the_kernel():
    inputs = tokens(dtype=torch.float32)
    mix = {impl: regard.mechanism("sigmoid", heads=HEADS, head_dim=HEAD_DIM, impl=impl) for impl in ("auto", "native")}
    reference = regard.mechanism("sigmoid", heads=HEADS, head_dim=HEAD_DIM, impl="reference")
    assert torch.equal(mix["auto"](*inputs), mix["native"](*inputs))
    relative = positions.ShawRelative(HEAD_DIM, 3, values=False)
    assert torch.equal(mix["auto"](*inputs, bias=relative), reference(*inputs, bias=relative))


def test_native_refuses_with_a_reason(without_shape_checks):
    inputs = tokens()
    with pytest.raises(RefusedError, match=r"(?s)'native' refuses.*ShawRelative needs the queries"):
        sigmoid(*inputs, bias=positions.ShawRelative(HEAD_DIM, 3, values=False))
    with pytest.raises(RefusedError, match=r"(?s)'native' refuses.*at most 640"):
        sigmoid(*tokens(head_dim=641))
    with pytest.raises(OptionError, match=r"(?s)unknown impl 'sdpa'.*auto, native, reference"):
        regard.mechanism("sigmoid", heads=HEADS, head_dim=HEAD_DIM, impl="sdpa")
    (of_query,) = torch.autograd.grad(sigmoid(*inputs).sum(), inputs[0], create_graph=True)
    with pytest.raises(RefusedError, match=r"(?s)no second derivatives.*impl=\"reference\""):
        of_query.sum().backward()


def test_scale_of_a_wide_head_in_float16(without_shape_checks):
    """Products of float16 numbers overflow float16, and not the kernels' sums."""
    inputs = [part * 200 for part in tokens(dtype=torch.float16)]
    assert sigmoid(*inputs).isfinite().all()
