"""Additive attention in "native": output, lse and every gradient against the formula in float64; torch's contract.

    score_ij = v . tanh(a_i + b_j) + bias_ij        Bahdanau et al. 2015, appendix A.1.2

Inputs are multiples of 1/16, which float32 represents exactly, so both dtypes have the same expected result. A number
that is computed by sums of L terms has an error of about L eps of the largest term.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from kernels.opcheck_cases import parametrize_opcheck
from mask_forms import BATCH, MASKS, random_cells
from regard import masks, positions
from regard.errors import OptionError, RefusedError
from regard.kernels.implementations.mlp_score import ADDITIVE
from regard.kernels.operators.kernel_arguments import KernelArguments, to_kernel_arguments
from regard.validation import make_request

HEADS, KEY_HEADS, QUERIES, KEYS, INNER, VALUE_DIM = 6, 3, 7, 11, 5, 13
LENGTHS = [(1, 1), (5, 7), (63, 65), (64, 64), (65, 63), (7, 257), (131, 3)]
DTYPES = [torch.float64, torch.float32]


def sixteenths(*shape: int, seed: int) -> Tensor:
    drawn = np.random.default_rng([*shape, seed]).standard_normal(shape)
    return torch.from_numpy(np.clip(np.round(drawn * 16) / 16, -7.9375, 7.9375))


class AdditiveInputs(NamedTuple):
    """The tensors of a call, in float64."""

    of_query: Tensor
    of_key: Tensor
    vector: Tensor
    value: Tensor


def tensors(queries=QUERIES, keys=KEYS, inner=INNER, value_dim=VALUE_DIM) -> AdditiveInputs:
    """Random inputs in the memory layout of layers, (batch, length, heads, size)."""
    return AdditiveInputs(
        sixteenths(BATCH, queries, HEADS, inner, seed=1).transpose(1, 2),
        sixteenths(BATCH, keys, KEY_HEADS, inner, seed=2).transpose(1, 2),
        sixteenths(HEADS, inner, seed=3),
        sixteenths(BATCH, keys, KEY_HEADS, value_dim, seed=4).transpose(1, 2),
    )


def make_kernel_arguments(inputs: AdditiveInputs, mask=None, bias=None, dropout=0.0) -> KernelArguments:
    return to_kernel_arguments(
        make_request(inputs.of_query, inputs.of_key, inputs.value, mask=mask, bias=bias, scale=1.0, dropout=dropout)
    )


class Results(NamedTuple):
    """Output, lse, and the gradients of of_query, of_key, vector, value, and bias if given."""

    output: Tensor
    lse: Tensor
    gradients: tuple[Tensor, ...]


def make_output_gradients(output: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Return gradients of output and lse; 0 where lse is not finite."""
    of_lse = sixteenths(*lse.shape, seed=6).to(lse.dtype)
    return sixteenths(*output.shape, seed=5).to(output.dtype), of_lse.masked_fill(~lse.detach().isfinite(), 0.0)


def run_with_gradients(function: Callable, inputs: AdditiveInputs, bias: Tensor | None) -> Results:
    """Run forward and backward once, on new leaf tensors; ``function`` takes AdditiveInputs and bias."""
    leaves = [tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_() for tensor in inputs]
    of_bias = [] if bias is None else [bias.detach().clone().requires_grad_()]
    output, lse = function(AdditiveInputs(*leaves), *of_bias)
    gradients = torch.autograd.grad((output, lse), [*leaves, *of_bias], make_output_gradients(output, lse))
    return Results(output.detach(), lse.detach(), gradients)


def formula(inputs: AdditiveInputs, bias: Tensor | None = None, *, allowed: Tensor | None = None):
    """Compute output and lse by the paper's formula."""
    group = inputs.of_query.shape[1] // inputs.of_key.shape[1]
    of_key, value = (tensor.repeat_interleave(group, dim=1) for tensor in (inputs.of_key, inputs.value))
    hidden = torch.tanh(inputs.of_query[:, :, :, None] + of_key[:, :, None])
    scores = torch.einsum("bhqkw,hw->bhqk", hidden, inputs.vector)
    scores = scores if bias is None else scores + bias
    seen = torch.ones_like(scores, dtype=torch.bool) if allowed is None else allowed.expand_as(scores)
    seen = seen & (scores.detach() > -torch.inf)
    empty = ~seen.any(-1, keepdim=True)
    lse = scores.masked_fill(~seen, -torch.inf).masked_fill(empty, 0.0).logsumexp(-1, keepdim=True)
    weights = (scores.masked_fill(~seen, -torch.inf) - lse).exp()
    return weights @ value, lse.masked_fill(empty, -torch.inf)[..., 0]


def native_results(inputs: AdditiveInputs, bias: Tensor | None = None, *, mask=None):
    """Compute output and lse with the kernel."""
    return ADDITIVE.forward.compute_with_grad(*inputs, *make_kernel_arguments(inputs, mask, bias))[:2]


def convert_to(dtype: torch.dtype, inputs: AdditiveInputs) -> AdditiveInputs:
    return AdditiveInputs(*(tensor.to(dtype) for tensor in inputs))


def assert_close(found: Results, exact: Results, atol: float) -> None:
    names = ("output", "lse", "of_query", "of_key", "vector", "value", "bias")
    for name, one, other in zip(names, (*found[:2], *found.gradients), (*exact[:2], *exact.gradients), strict=False):
        largest = max(1.0, float(other.abs().masked_fill(~other.isfinite(), 0.0).max())) if other.numel() else 1.0
        torch.testing.assert_close(
            one.double(), other.double(), rtol=0, atol=atol * largest, msg=lambda text, name=name: f"{name}: {text}"
        )


def tolerance(dtype: torch.dtype, inputs: AdditiveInputs) -> float:
    """Number of terms of the longest sums that a number is computed by, times eps."""
    queries, inner = inputs.of_query.shape[2:]
    keys, value_dim = inputs.value.shape[2:]
    return 4 * (inner + value_dim + keys + BATCH * queries) * torch.finfo(dtype).eps


@cache
def expected(queries: int, keys: int, mask: str) -> Results:
    inputs = tensors(queries, keys)
    allowed = MASKS[mask](queries, keys)
    cells = None if allowed is None else allowed.dense(queries, keys)
    return run_with_gradients(partial(formula, allowed=cells), inputs, None)


# Results


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
def test_output_and_gradients_agree_with_the_formula(mask, dtype):
    for queries, keys in LENGTHS:
        if mask == "tiles" and keys < 5:
            continue
        inputs = tensors(queries, keys)
        actual = run_with_gradients(
            partial(native_results, mask=MASKS[mask](queries, keys)), convert_to(dtype, inputs), None
        )
        assert actual.output.dtype == actual.lse.dtype == dtype
        assert_close(actual, expected(queries, keys, mask), tolerance(dtype, inputs))


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [1, 7, 16, 17, 63, 65, 263])
def test_hidden_and_value_sizes(inner, dtype):
    queries, keys = 13, 71
    inputs = tensors(queries, keys, inner, value_dim=264 - inner)
    mask = masks.causal()
    exact = run_with_gradients(partial(formula, allowed=mask.dense(queries, keys)), inputs, None)
    assert_close(
        run_with_gradients(partial(native_results, mask=mask), convert_to(dtype, inputs), None),
        exact,
        tolerance(dtype, inputs),
    )


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 67, 71), (BATCH, 1, 1, 71), (1, HEADS, 67, 1), (BATCH, HEADS, 67, 71)])
def test_bias_shapes(shape, dtype):
    """A bias of -inf hides a key, as a mask does."""
    bias = sixteenths(*shape, seed=7)
    bias[torch.from_numpy(np.random.default_rng(5).random(shape) < 0.2)] = -torch.inf
    inputs, mask = tensors(67, 71), masks.causal()
    exact = run_with_gradients(partial(formula, allowed=mask.dense(67, 71)), inputs, bias)
    repeated = BATCH * HEADS * 67 * 71 / bias.numel()
    atol = tolerance(dtype, inputs) + 4 * repeated * torch.finfo(dtype).eps
    assert_close(
        run_with_gradients(partial(native_results, mask=mask), convert_to(dtype, inputs), bias.to(dtype)), exact, atol
    )


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("mask", MASKS)
def test_gradient_of_a_distance_bias(mask):
    bias = positions.T5Buckets(HEADS, buckets=8, max_distance=13).double()
    for queries, keys in LENGTHS[1:]:
        inputs, chosen = tensors(queries, keys), MASKS[mask](queries, keys)
        cells = None if chosen is None else chosen.dense(queries, keys)
        added = bias.scores(inputs.of_query, regard.contract.Frame(queries, keys), torch.arange(queries), 1.0)
        both = []
        for output, lse in (native_results(inputs, bias, mask=chosen), formula(inputs, added, allowed=cells)):
            trained = torch.autograd.grad((output, lse), bias.weight, make_output_gradients(output, lse))[0]
            both.append((output, lse, trained / max(1.0, queries * keys)))
        for one, other in zip(*both, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=tolerance(torch.float64, inputs))


# Numbers of every size


def extreme_values(dtype: torch.dtype, *shape: int, seed: int) -> Tensor:
    """Numbers around the thresholds of tanh and its exponentials: from 1/16 to the square root of the largest."""
    random = np.random.default_rng([*shape, seed])
    sizes = [
        0.0625,
        1.0,
        9.0,
        21.0,
        29.5,
        30.5,
        40.5,
        90.0,
        279.0,
        281.0,
        301.0,
        720.0,
        1e4,
        float(torch.finfo(dtype).max) ** 0.5,
    ]
    values = random.choice([-1.0, 1.0], shape) * random.choice(sizes, shape)
    return torch.from_numpy(values).to(dtype).double()


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["none", "causal", "cells"])
def test_large_inputs_of_both_signs(mask, dtype):
    """Where a and b are huge and opposite, tanh(a + b) is that of a small number: such pairs are computed alone."""
    plain = tensors(67, 71)
    inputs = plain._replace(
        of_query=extreme_values(dtype, *plain.of_query.shape, seed=8),
        of_key=extreme_values(dtype, *plain.of_key.shape, seed=9),
    )
    allowed = MASKS[mask](67, 71)
    cells = None if allowed is None else allowed.dense(67, 71)
    exact = run_with_gradients(partial(formula, allowed=cells), inputs, None)
    assert_close(
        run_with_gradients(partial(native_results, mask=allowed), convert_to(dtype, inputs), None),
        exact,
        tolerance(dtype, inputs),
    )


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
def test_cancelling_inputs_keep_accuracy(dtype):
    """a + b is small and a is not: the score is accurate, whichever way it is computed."""
    plain = tensors(67, 71)
    near = sixteenths(*plain.of_query.shape[:2], 1, INNER, seed=10) / 16
    for size in (5.0, 25.0, 29.0, 35.0, 279.0, 299.0, 4096.0):
        inputs = plain._replace(of_query=near + size + plain.of_query / 16, of_key=plain.of_key / 16 - size)
        rounded = convert_to(dtype, inputs)
        exact = run_with_gradients(formula, convert_to(torch.float64, rounded), None)
        assert_close(run_with_gradients(native_results, rounded, None), exact, tolerance(dtype, inputs))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("factor", [1e-30, 1e-3, 1e3, 1e6])
def test_magnitudes_of_the_score_vector(factor):
    """Large score vectors give weights of 0 and 1, and a score vector of 0 gives equal weights."""
    inputs = tensors(67, 71)
    inputs = convert_to(torch.float32, inputs._replace(vector=inputs.vector * factor))
    exact = run_with_gradients(formula, convert_to(torch.float64, inputs), None)
    output, lse = native_results(inputs)
    score_error = 4 * INNER * float(inputs.vector.abs().sum(1).amax()) * torch.finfo(torch.float32).eps
    atol = 4 * (KEYS + 71) * torch.finfo(torch.float32).eps + score_error
    torch.testing.assert_close(lse.double(), exact.lse, rtol=0, atol=atol)
    if factor <= 1e-3:
        torch.testing.assert_close(output.double(), exact.output, rtol=0, atol=8 * atol)


# NaN and Inf

BAD = [math.nan, math.inf, -math.inf]


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", BAD)
@pytest.mark.parametrize("tensor_name", ["of_query", "of_key", "value"])
def test_nonfinite_token_affects_only_rows_that_see_it(tensor_name, number, dtype):
    """Rows that see it are NaN and excluded from the backward pass; all others are as if the token were zeros."""
    at, mask = 31, masks.window(40, 3)
    clean = tensors(67, 71)
    clean = clean._replace(**{tensor_name: getattr(clean, tensor_name).clone()})
    if tensor_name == "of_query":
        clean.of_query[:, :, at] = 0
    else:
        clean.of_key[:, :, at], clean.value[:, :, at] = 0, 0
    bad = clean._replace(**{tensor_name: getattr(clean, tensor_name).clone()})
    getattr(bad, tensor_name)[1, 1, at, 2] = number
    affected = torch.zeros(BATCH, HEADS, 67, dtype=torch.bool)
    if tensor_name == "of_query":
        affected[1, 1, at] = True
    else:
        affected[1, 2:4] = mask.dense(67, 71)[..., at]
    output, lse = native_results(convert_to(dtype, bad), mask=mask)
    assert output[affected].isnan().all()
    assert lse[affected].isnan().all()

    def without_affected_rows(function, given, affected=affected):
        actual, of_lse = function(given)
        return actual.masked_fill(affected[..., None], 0.0), of_lse.masked_fill(affected, 0.0)

    exact = run_with_gradients(
        partial(without_affected_rows, partial(formula, allowed=mask.dense(67, 71))), clean, None
    )
    actual = run_with_gradients(
        partial(without_affected_rows, partial(native_results, mask=mask)), convert_to(dtype, bad), None
    )
    assert_close(actual, exact, tolerance(dtype, clean))
    hidden = run_with_gradients(partial(native_results, mask=masks.padding([71, 0])), convert_to(dtype, bad), None)
    assert not hidden.output[1].any()
    assert all(gradient.isfinite().all() for gradient in hidden.gradients)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("number", BAD)
def test_nonfinite_score_vector_affects_only_its_head(number):
    inputs = tensors()
    inputs.vector[4, 2] = number
    output, lse = native_results(inputs, mask=masks.padding([11, 0]))
    assert output[0, 4].isnan().all()
    assert lse[0, 4].isnan().all()
    assert output[0, :4].isfinite().all()
    assert not output[1].any()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_nonfinite_bias_affects_only_its_row(number):
    inputs, bias = tensors(), torch.zeros(1, 1, QUERIES, KEYS, dtype=torch.float64)
    bias[..., 3, 5] = number
    output, lse = native_results(inputs, bias)
    rows = torch.arange(QUERIES) == 3
    assert output[:, :, rows].isnan().all()
    assert lse[:, :, rows].isnan().all()
    assert output[:, :, ~rows].isfinite().all()
    masked_output, _ = native_results(inputs, bias, mask=masks.padding([5, 4]))
    assert masked_output.isfinite().all()


# Dropout, threads


@pytest.mark.usefixtures("without_shape_checks")
def test_dropout_drops_weights_and_scales_the_others():
    inputs = tensors(67, 71, value_dim=71)
    inputs = inputs._replace(value=torch.eye(71, dtype=torch.float64).expand(BATCH, KEY_HEADS, 71, 71))
    weights = native_results(inputs)[0]
    dropped = ADDITIVE(*inputs, terms=make_kernel_arguments(inputs, dropout=0.25))
    kept = dropped > 0
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.75, rtol=0, atol=1e-14)
    share = 1 - kept.double().mean().item()
    assert abs(share - 0.25) < 4 * (0.25 * 0.75 / kept.numel()) ** 0.5


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_with_any_number_of_threads(dtype):
    given, before = convert_to(dtype, tensors(131, 257)), torch.get_num_threads()
    shared = make_kernel_arguments(
        given, masks.causal() & masks.padding([257, 130]), torch.zeros(1, 1, 1, 257), dropout=0.3
    )
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(
            run_with_gradients(
                lambda given, bias: ADDITIVE.forward.compute_with_grad(*given, *shared._replace(bias=bias))[:2],
                given,
                shared.bias,
            )
        )
    torch.set_num_threads(before)
    for other in results[1:]:
        assert torch.equal(results[0].output, other.output)
        assert torch.equal(results[0].lse, other.lse)
        assert all(map(torch.equal, results[0].gradients, other.gradients))


# The operators


def leaf(*shape):
    return sixteenths(*shape, seed=11).requires_grad_()


SIZES = {
    "tiles": {"queries": 67, "keys": 67, "value_dim": 2},
    "no keys": {"keys": 0},
    "no queries": {"queries": 0},
    "no values": {"value_dim": 0},
}
TERMS = {
    "nothing": lambda given: make_kernel_arguments(given),
    "band and interval": lambda given: make_kernel_arguments(given, masks.window(5, 1) & masks.padding([11, 4])),
    "cells": lambda given: make_kernel_arguments(given, masks.keep(random_cells(QUERIES, KEYS))),
    "tiles": lambda given: make_kernel_arguments(
        given, masks.documents(torch.arange(67) // 5) | masks.global_tokens([0])
    ),
    "bias": lambda given: make_kernel_arguments(given, masks.causal(), leaf(1, HEADS, 1, KEYS)),
    "bias of another dtype": lambda given: make_kernel_arguments(
        given, bias=torch.zeros(BATCH, 1, QUERIES, KEYS).requires_grad_()
    ),
    "table": lambda given: make_kernel_arguments(given)._replace(table=leaf(HEADS, 2 * KEYS), table_lowest=-KEYS),
    "dropout": lambda given: make_kernel_arguments(given, masks.causal(), dropout=0.3),
    "no keys": lambda given: make_kernel_arguments(given, masks.causal()),
    "no queries": lambda given: make_kernel_arguments(given, masks.causal()),
    "no values": lambda given: make_kernel_arguments(given, masks.causal(), leaf(1, 1, QUERIES, 1)),
}


def make_problem(name: str) -> tuple[AdditiveInputs, KernelArguments]:
    inputs = tensors(**SIZES.get(name, {}))
    return AdditiveInputs(*(tensor.detach().clone().requires_grad_() for tensor in inputs)), TERMS[name](inputs)


@parametrize_opcheck(TERMS, default_kinds=["bias"])
def test_operators_pass_opcheck(name, utilities, without_shape_checks):
    inputs, named = make_problem(name)
    torch.library.opcheck(torch.ops.regard.additive.default, (*inputs, *named), test_utils=utilities)
    plain = [part.detach() if isinstance(part, Tensor) else part for part in (*inputs, *named)]
    output, lse, normalizer = torch.ops.regard.additive.default(*plain)
    expected = (named.bias is not None, named.table is not None)
    for grad_lse in (None, torch.randn_like(lse)):
        torch.library.opcheck(
            torch.ops.regard.additive_backward.default,
            (torch.randn_like(output), grad_lse, *plain[:4], output, normalizer, *expected, *plain[4:]),
            test_utils=utilities,
        )


@pytest.mark.parametrize("name", [name for name in TERMS if not name.startswith(("no ", "tiles", "bias of another"))])
@pytest.mark.parametrize(
    "fast", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["along a direction", "per element"]
)
@pytest.mark.parametrize("path", ["operator", "eager"])
def test_gradients_agree_with_finite_differences(name, path, fast, without_shape_checks):
    inputs, named = make_problem(name)
    trained = [kind for kind in ("bias", "table") if getattr(named, kind) is not None]
    function = torch.ops.regard.additive.default if path == "operator" else ADDITIVE.forward.compute_with_grad

    def both(*leaves):
        output, lse, _ = function(*leaves[:4], *named._replace(**dict(zip(trained, leaves[4:], strict=True))))
        return output, lse.masked_fill(lse == -torch.inf, 0.0)

    leaves = [getattr(named, kind).detach().requires_grad_() for kind in trained]
    assert torch.autograd.gradcheck(both, (*inputs, *leaves), fast_mode=fast, atol=1e-8, rtol=1e-6)


def test_no_keys_or_values_of_width_0(without_shape_checks):
    actual = run_with_gradients(native_results, tensors(keys=0), None)
    assert not actual.output.any()
    assert (actual.lse == -torch.inf).all()
    assert not any(gradient.any() for gradient in actual.gradients)
    without, whole = (run_with_gradients(native_results, tensors(value_dim=size), None) for size in (0, VALUE_DIM))
    assert without.output.shape == (BATCH, HEADS, QUERIES, 0)
    assert torch.equal(without.lse, whole.lse)


# The mechanisms


MECHANISMS = ["additive", "luong_concat"]


def make_mechanism(name: str, **options) -> regard.mechanisms.Mechanism:
    torch.manual_seed(23)
    return regard.mechanism(name, heads=HEADS, head_dim=INNER, inner=17, **options)


def tokens(dtype=torch.float32, queries=QUERIES, keys=KEYS) -> tuple[Tensor, Tensor, Tensor]:
    inputs = tensors(queries, keys)
    return tuple(
        tensor.detach().to(dtype).requires_grad_() for tensor in (inputs.of_query, inputs.of_key, inputs.value)
    )


@pytest.mark.parametrize("name", MECHANISMS)
def test_auto_prefers_the_kernel(name):
    inputs = tokens()
    mechanisms = {impl: make_mechanism(name, impl=impl) for impl in ("auto", "native", "reference")}
    assert torch.equal(mechanisms["auto"](*inputs), mechanisms["native"](*inputs))
    assert not torch.equal(mechanisms["auto"](*inputs), mechanisms["reference"](*inputs))
    relative = positions.ShawRelative(INNER, 3, values=False)
    assert torch.equal(mechanisms["auto"](*inputs, bias=relative), mechanisms["reference"](*inputs, bias=relative))


@pytest.mark.parametrize("name", MECHANISMS)
def test_named_implementation_refuses_with_a_reason(name, without_shape_checks):
    meta = [tensor.detach().to("meta") for tensor in tokens()]
    with pytest.raises(RefusedError, match=r"(?s)'native' refuses.*on a CPU.*meta.*impl=\"auto\""):
        make_mechanism(name, impl="native").to("meta")(*meta)
    with pytest.raises(OptionError, match=r"(?s)unknown impl 'sdpa'.*auto, native, reference"):
        make_mechanism(name, impl="sdpa")


@pytest.mark.parametrize("name", MECHANISMS)
def test_vmap_uses_the_reference(name):
    query, key, value = (tensor.detach() for tensor in tokens())
    mix = make_mechanism(name)
    many = torch.func.vmap(lambda tensor: mix(tensor, key, value))(torch.stack([query, 2 * query]))
    torch.testing.assert_close(many[0], mix(query, key, value), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(name, dtype):
    inputs = tokens()
    mix = make_mechanism(name, impl="native")
    whole, half = mix(*inputs), mix(*(tensor.to(dtype) for tensor in inputs))
    assert half.dtype == dtype
    assert torch.equal(half, whole.to(dtype))
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(mix(*inputs), whole)


@pytest.mark.parametrize("name", MECHANISMS)
def test_masked_nan_tokens_leave_parameter_gradients_finite(name):
    query, key, value = tokens()
    with torch.no_grad():
        key[:, :, 9:] = torch.nan
        query[:, :, 3] = torch.inf
    mix = make_mechanism(name, impl="native")
    output = mix(query, key, value, masks.padding([9, 9]))
    assert output[:, :, 3].isnan().all()
    gradients = torch.autograd.grad(output.sum(), [*mix.parameters(), query, key, value])
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("name", MECHANISMS)
def test_result_is_independent_of_the_default_dtype(name):
    inputs, mix = tokens(), make_mechanism(name, impl="native")
    expected_output = mix(*inputs)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(mix(*inputs), expected_output)
    finally:
        torch.set_default_dtype(torch.float32)


def test_second_derivatives_are_refused(without_shape_checks):
    inputs = tokens()
    (first,) = torch.autograd.grad(make_mechanism("additive")(*inputs).square().sum(), inputs[0], create_graph=True)
    with pytest.raises(RefusedError, match=r"(?s)no second derivatives.*one backward pass.*create_graph.*reference"):
        first.sum().backward()
