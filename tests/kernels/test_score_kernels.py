"""What kernels of attention share, exact, sigmoid, talking-heads, additive: results, NaN, threads, torch's contract.

``score_kernels.py`` has the formulas that they are compared with. Files named after a kernel test the rest.
"""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from any_threads import assert_same_bits
from kernels.opcheck_cases import parametrize_opcheck
from kernels.score_kernels import (
    HEAD_DIM,
    HEADS,
    KERNELS,
    KEY_HEADS,
    KEYS,
    QUERIES,
    SIGMOID,
    VALUE_DIM,
    make_tokens,
)
from mask_forms import BATCH, MASKS, random_cells
from regard import masks, positions
from regard.contract import Frame
from regard.errors import OptionError, RefusedError

LENGTHS = [(1, 1), (5, 7), (63, 65), (64, 64), (65, 63), (7, 257), (131, 3)]
IN_DTYPES = [pytest.param(name, dtype, id=f"{name}-{dtype}") for name, one in KERNELS.items() for dtype in one.dtypes]
pytestmark = pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")


@pytest.fixture(params=KERNELS)
def kernel(request):
    return KERNELS[request.param]


# Results


@pytest.mark.parametrize(("name", "dtype"), IN_DTYPES)
@pytest.mark.parametrize("mask", MASKS)
def test_output_and_gradients_agree_with_the_formula(mask, name, dtype):
    kernel = KERNELS[name]
    for queries, keys in LENGTHS:
        if mask == "tiles" and keys < 5:
            continue
        kernel.assert_agrees(kernel.make_inputs(queries, keys, dtype=dtype), mask=MASKS[mask](queries, keys))


@pytest.mark.parametrize(
    ("name", "sizes"), [(name, sizes) for name, kernel in KERNELS.items() for sizes in kernel.head_sizes]
)
def test_head_sizes(name, sizes):
    kernel = replace(SIGMOID, options={"score_bias": 0.5}) if name == "sigmoid" else KERNELS[name]
    for dtype in kernel.dtypes:
        inputs = kernel.make_inputs(
            67 if kernel.scale != 1 else 13, 71, head_dim=sizes[0], value_dim=sizes[1], dtype=dtype
        )
        kernel.assert_agrees(inputs, mask=masks.causal())


@pytest.mark.parametrize(("name", "dtype"), IN_DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 67, 71), (BATCH, 1, 1, 71), (1, HEADS, 67, 1), (BATCH, HEADS, 67, 71)])
def test_bias_shapes(shape, name, dtype):
    """A bias of -inf hides a key from a softmax, which may be left without keys; in a sigmoid the key still counts."""
    kernel = KERNELS[name]
    bias = kernel.draw(*shape, seed=7).to(dtype)
    bias[torch.from_numpy(np.random.default_rng(5).random(shape) < 0.2)] = -torch.inf
    kernel.assert_agrees(kernel.make_inputs(67, 71, dtype=dtype), bias.requires_grad_(), mask=masks.causal())


@pytest.mark.parametrize("mask", MASKS)
def test_gradient_of_a_distance_bias(mask, kernel):
    bias = positions.T5Buckets(HEADS, buckets=8, max_distance=13).double()
    for queries, keys in LENGTHS[1:]:
        inputs, chosen = kernel.make_inputs(queries, keys), MASKS[mask](queries, keys)
        cells = None if chosen is None else chosen.dense(queries, keys)
        added = bias.scores(inputs[0], Frame(queries, keys), torch.arange(queries), kernel.scale)
        both = []
        for results in (kernel.call(*inputs, mask=chosen, bias=bias), kernel.formula(*inputs, added, allowed=cells)):
            (trained,) = torch.autograd.grad(results, bias.weight, kernel.upstream(results))
            both.append([*results, trained / max(1.0, queries * keys)])
        for ours, exact in zip(*both, strict=True):
            largest = max(1.0, float(exact.detach().abs().max())) if kernel.mixes_heads else 1.0
            torch.testing.assert_close(ours, exact, rtol=0, atol=kernel.tolerance(inputs) * largest)


# NaN and Inf


@pytest.mark.parametrize(("name", "dtype"), IN_DTYPES)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("tensor", ["query", "key", "value"])
def test_nonfinite_token_affects_only_rows_that_see_it(tensor, number, name, dtype):
    """Rows that see it are NaN and excluded from the backward pass; all else is as if the token were zeros."""
    kernel, at, mask = KERNELS[name], 31, masks.window(40, 3)
    index = kernel.tensors.index(tensor)
    clean = [part.detach().clone() for part in kernel.make_inputs(67, 71, dtype=dtype)]
    clean[index][1, 1, at] = 0
    bad = [part.clone() for part in clean]
    bad[index][1, 1, at, 2] = number
    group = slice(1, 2) if tensor == "query" else slice(2, 4)
    affected = torch.zeros(BATCH, HEADS, 67, dtype=torch.bool)
    affected[1, slice(None) if kernel.mixes_heads and tensor != "value" else group] = (
        torch.arange(67) == at if tensor == "query" else mask.dense(67, 71)[..., at]
    )
    computed = []
    for inputs in (clean, bad):
        leaves = [part.requires_grad_() for part in inputs]
        results = kernel.call(*leaves, mask=mask)
        kept = [part.masked_fill(affected[..., None] if part.dim() == 4 else affected, 0.0) for part in results]
        computed.append([*kept, *torch.autograd.grad(kept, leaves, kernel.upstream(kept))])
        if inputs is bad:
            assert all(part[affected].isnan().all() for part in results)
    assert all(map(torch.equal, *computed))
    hidden = kernel.call(*bad, mask=masks.padding([71, 0]))
    assert not hidden[0][1].any()
    assert all(part.isfinite().all() for part in torch.autograd.grad(hidden[0].sum(), bad))


@pytest.mark.parametrize("queries", [1, QUERIES])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_nonfinite_score_affects_only_its_row(number, queries, kernel):
    inputs = kernel.make_inputs(queries, 1031)
    bias = torch.zeros(1, HEADS, queries, 1031, dtype=torch.float64)
    bias[:, 3, -1, 5] = number
    rows = torch.zeros(BATCH, HEADS, queries, dtype=torch.bool)
    rows[:, slice(None) if kernel.mixes_heads else 3, -1] = True
    for result in kernel.call(*inputs, bias=bias):
        assert result[rows].isnan().all()
        assert result[~rows].isfinite().all()
    assert kernel.call(*inputs, bias=bias, mask=masks.padding([5, 4]))[0].isfinite().all()


# Dropout, threads


def test_dropout_drops_weights_and_scales_the_others(kernel):
    inputs = kernel.make_inputs(67, 71)
    inputs[kernel.tensors.index("value")] = torch.eye(71, dtype=torch.float64).expand(BATCH, KEY_HEADS, 71, 71)
    if kernel.mixes_heads:
        inputs[kernel.tensors.index("weight_mixing")] = torch.eye(HEADS, dtype=torch.float64)
    weights, dropped = (kernel.call(*inputs, dropout=dropout)[0] for dropout in (0.0, 0.25))
    kept = dropped > 0
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.75, rtol=0, atol=1e-14)
    share = 1 - kept.double().mean().item()
    assert abs(share - 0.25) < 4 * (0.25 * 0.75 / kept.numel()) ** 0.5


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(("name", "dtype"), IN_DTYPES)
def test_same_bits_with_any_number_of_threads(name, dtype, dropout):
    kernel = KERNELS[name]

    def compute(queries, keys):
        inputs = kernel.make_inputs(queries, keys, dtype=dtype)
        bias = torch.zeros(1, 1, 1, keys, requires_grad=True)
        torch.manual_seed(43)
        results = kernel.call(*inputs, bias=bias, mask=masks.causal() & masks.padding([keys, 130]), dropout=dropout)
        return [*results, *torch.autograd.grad(results, [*inputs, bias], kernel.upstream(results))]

    for lengths in kernel.thread_lengths:
        assert_same_bits(partial(compute, *lengths))


# The operators

SIZES = {
    "tiles": {"queries": 67, "keys": 67, "value_dim": 2, "head_dim": 2},
    "half precision": {"dtype": torch.float16},
    "no keys": {"keys": 0},
    "sinks and no keys": {"keys": 0},
    "no queries": {"queries": 0},
    "no values": {"value_dim": 0},
}
TERMS = {
    "nothing": dict,
    "band and interval": lambda: {
        "mask": masks.window(5, 1) & masks.padding([11, 4]) & masks.padding([7, 9], side="left")
    },
    "cells": lambda: {"mask": masks.keep(random_cells(QUERIES, KEYS))},
    "tiles": lambda: {"mask": masks.documents(torch.arange(67) // 5) | masks.global_tokens([0])},
    "bias": lambda: {"mask": masks.causal(), "bias": (1, HEADS, 1, KEYS)},
    "bias of another dtype": lambda: {"bias": torch.zeros(BATCH, 1, QUERIES, KEYS).requires_grad_()},
    "table": lambda: {"mask": masks.causal()},
    "table of all heads": lambda: {"bias": positions.ALiBi(1)},
    "half precision": dict,
    "dropout": lambda: {"mask": masks.causal(), "dropout": 0.3},
    "no keys": lambda: {"mask": masks.causal()},
    "no queries": lambda: {"mask": masks.causal()},
    "no values": lambda: {"mask": masks.causal(), "bias": (1, 1, QUERIES, 1)},
    # of exact attention alone
    "softcap": lambda: {"mask": masks.causal(), "bias": (1, HEADS, 1, KEYS), "softcap": 0.75},
    "sinks": lambda: {"mask": masks.causal(), "sinks": (1, HEADS, 1, 1)},
    "sinks of queries": lambda: {
        "mask": masks.window(2, 1), "sinks": (BATCH, HEADS, QUERIES, 1), "softcap": 0.75, "dropout": 0.3,
    },
    "sinks and no keys": lambda: {"mask": masks.causal(), "sinks": (1, HEADS, 1, 1)},
}  # fmt: skip
CASES = {
    f"{name}, {term}": (kernel, term)
    for name, kernel in KERNELS.items()
    for term in TERMS
    if (name == "exact" or not ({"softcap", "sinks"} & TERMS[term]().keys()))
    and (term != "half precision" or torch.float16 in kernel.dtypes)
}


def make_problem(kernel, name):
    """Inputs and terms; a bias or sinks of which the shape is given are random."""
    terms = TERMS[name]()
    inputs = kernel.make_inputs(**SIZES.get(name, {}))
    drawn = {kind: kernel.draw(*one, seed=11).requires_grad_() for kind, one in terms.items() if isinstance(one, tuple)}
    arguments = kernel.make_terms(inputs, **(terms | drawn))
    if name == "table":
        table = kernel.draw(HEADS, 2 * KEYS, seed=11).requires_grad_()
        arguments = arguments._replace(table=table, table_lowest=-KEYS)
    return inputs, arguments


@parametrize_opcheck(
    CASES, default_kinds=[one for one in CASES if one.endswith(("bias", "exact, table", "exact, tiles", "sinks"))]
)
def test_operators_pass_opcheck(name, utilities):
    kernel, term = CASES[name]
    inputs, terms = make_problem(kernel, term)
    forward, backward = kernel.operator.forward.torch_op, kernel.operator.backward.torch_op
    for numbers in kernel.numbers:
        torch.library.opcheck(forward, (*inputs, *numbers, *terms), test_utils=utilities)
    plain, plain_terms = (
        [part.detach() if isinstance(part, Tensor) else part for part in group] for group in (inputs, terms)
    )
    output, *others = forward(*plain, *kernel.numbers[0], *plain_terms)
    expected = [getattr(terms, kind) is not None for kind in kernel.summed]
    saved = (output, *others[1:]) if kernel.returns_lse else others
    for of_lse in [(None,), (torch.randn_like(others[0]),)] if kernel.returns_lse else [()]:
        arguments = (torch.randn_like(output), *of_lse, *plain, *saved, *expected, *plain_terms)
        torch.library.opcheck(backward, arguments, test_utils=utilities)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, (_, term) in CASES.items()
        if not term.startswith(("no ", "half", "tiles", "bias of", "sinks and"))
    ],
)
@pytest.mark.parametrize("fast", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["a direction", "elements"])
@pytest.mark.parametrize("path", ["operator", "eager"])
def test_gradients_agree_with_finite_differences(name, path, fast):
    kernel, term = CASES[name]
    inputs, terms = make_problem(kernel, term)
    trained = [kind for kind in kernel.summed if getattr(terms, kind) is not None]
    numbers = [-0.5 for _ in kernel.numbers[0]]
    operator, count = kernel.operator.forward, len(inputs)
    function = operator.torch_op if path == "operator" else operator.compute_with_grad

    def compute(*leaves):
        named = terms._replace(**dict(zip(trained, leaves[count:], strict=True)))
        output, lse, *_ = function(*leaves[:count], *numbers, *named)
        return (output, lse.masked_fill(lse == -torch.inf, 0.0)) if kernel.returns_lse else output

    leaves = [getattr(terms, kind).detach().requires_grad_() for kind in trained]
    assert torch.autograd.gradcheck(compute, (*inputs, *leaves), fast_mode=fast, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("name", ["no keys", "no queries", "no values"])
def test_empty_tensors(name, kernel):
    inputs = kernel.make_inputs(**SIZES[name])
    output, *lse = kernel.call(*inputs, mask=masks.causal())
    assert output.shape[1:] == (HEADS, inputs[0].shape[2], SIZES[name].get("value_dim", VALUE_DIM))
    assert not output.any()
    assert name != "no keys" or all((one == -torch.inf).all() for one in lse)
    assert not any(part.any() for part in torch.autograd.grad(output.sum(), inputs))


# The mechanisms

MECHANISMS = {"sigmoid": {}, "talking_heads": {}, "additive": {"inner": 17}, "luong_concat": {"inner": 17}}


def make_mechanism(name, impl="native", head_dim=HEAD_DIM):
    torch.manual_seed(23)
    return regard.mechanism(name, heads=HEADS, head_dim=head_dim, impl=impl, **MECHANISMS[name])


@pytest.mark.parametrize("name", MECHANISMS)
def test_auto_prefers_the_kernel(name):
    inputs = make_tokens(dtype=torch.float32)
    mix = {impl: make_mechanism(name, impl) for impl in ("auto", "native", "reference")}
    assert torch.equal(mix["auto"](*inputs), mix["native"](*inputs))
    assert not torch.equal(mix["auto"](*inputs), mix["reference"](*inputs))
    relative = positions.ShawRelative(HEAD_DIM, 3, values=False)
    assert torch.equal(mix["auto"](*inputs, bias=relative), mix["reference"](*inputs, bias=relative))


@pytest.mark.parametrize("name", MECHANISMS)
def test_named_implementation_refuses_with_a_reason(name):
    inputs = make_tokens(dtype=torch.float32)
    native = make_mechanism(name)
    with pytest.raises(RefusedError, match=r"(?s)'native' refuses.*ShawRelative needs the queries"):
        native(*inputs, bias=positions.ShawRelative(HEAD_DIM, 3, values=False))
    with pytest.raises(RefusedError, match=r"(?s)'native' refuses.*on a CPU.*meta.*impl=\"auto\""):
        make_mechanism(name).to("meta")(*(tensor.detach().to("meta") for tensor in inputs))
    with pytest.raises(OptionError, match=r"(?s)unknown impl 'sdpa'.*auto, native, reference"):
        make_mechanism(name, "sdpa")
    (first,) = torch.autograd.grad(native(*inputs).square().sum(), inputs[0], create_graph=True)
    with pytest.raises(RefusedError, match=r"(?s)no second derivatives.*impl=\"reference\""):
        first.sum().backward()


@pytest.mark.parametrize("name", MECHANISMS)
def test_vmap_uses_the_reference(name):
    query, key, value = (tensor.detach() for tensor in make_tokens(dtype=torch.float32))
    mix = make_mechanism(name, "auto")
    many = torch.func.vmap(lambda tensor: mix(tensor, key, value))(torch.stack([query, 2 * query]))
    torch.testing.assert_close(many[0], mix(query, key, value), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name != "sigmoid"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(name, dtype):
    """The kernels compute in float32, except sigmoid, whose weights are rounded to bfloat16 before they meet values."""
    inputs, mix = [part.detach().to(dtype) for part in make_tokens()], make_mechanism(name)
    half, whole = mix(*inputs), mix(*(part.float() for part in inputs))
    assert half.dtype == dtype
    assert torch.equal(half, whole.to(dtype))


@pytest.mark.parametrize("name", MECHANISMS)
def test_masked_nan_tokens_leave_parameter_gradients_finite(name):
    query, key, value = make_tokens(dtype=torch.float32)
    with torch.no_grad():
        key[:, :, 9:] = torch.nan
        query[:, :, 3] = torch.inf
    mix = make_mechanism(name)
    output = mix(query, key, value, masks.padding([9, 9]))
    assert output[:, :, 3].isnan().all()
    gradients = torch.autograd.grad(output.sum(), [*mix.parameters(), query, key, value])
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("name", MECHANISMS)
def test_result_is_independent_of_the_default_dtype(name):
    inputs, mix = make_tokens(dtype=torch.float32), make_mechanism(name)
    expected = mix(*inputs)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(mix(*inputs), expected)
    finally:
        torch.set_default_dtype(torch.float32)
