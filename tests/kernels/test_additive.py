"""Additive attention in "native" beside ``test_score_kernels.py``: numbers of every size, and parts of the score."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from kernels.score_kernels import (
    ADDITIVE,
    HEAD_DIM,
    HEADS,
    INNER,
    KEYS,
    VALUE_DIM,
    additive,
    exact_numbers,
    make_tokens,
)
from mask_forms import MASKS
from regard import masks

pytestmark = pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
SIZES = (0.0625, 1.0, 9.0, 21.0, 29.5, 30.5, 40.5, 90.0, 279.0, 281.0, 301.0, 720.0, 1e4)


def extreme_values(dtype: torch.dtype, tokens: Tensor, *, seed: int) -> Tensor:
    """Numbers around the thresholds of tanh and its exponentials: from 1/16 to the square root of the largest."""
    random, shape = np.random.default_rng([*tokens.shape, seed]), tuple(tokens.shape)
    sizes = [*SIZES, float(torch.finfo(dtype).max) ** 0.5]
    values = random.choice([-1.0, 1.0], shape) * random.choice(sizes, shape)
    return torch.from_numpy(values).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", ADDITIVE.dtypes)
@pytest.mark.parametrize("mask", ["none", "causal", "cells"])
def test_large_inputs_of_both_signs(mask, dtype):
    """Where a and b are huge and opposite, tanh(a + b) is that of a small number: such pairs are computed alone."""
    query, key, *others = ADDITIVE.make_inputs(67, 71, dtype=dtype)
    inputs = [extreme_values(dtype, query, seed=8), extreme_values(dtype, key, seed=9), *others]
    ADDITIVE.assert_agrees(inputs, mask=MASKS[mask](67, 71))


@pytest.mark.parametrize("dtype", ADDITIVE.dtypes)
def test_cancelling_inputs_keep_accuracy(dtype):
    """a + b is small and a is not: the score is accurate, whichever way it is computed."""
    query, key, *others = (tensor.detach() for tensor in ADDITIVE.make_inputs(67, 71))
    near = exact_numbers(*query.shape[:2], 1, INNER, seed=10) / 16
    for size in (5.0, 25.0, 29.0, 35.0, 279.0, 299.0, 4096.0):
        inputs = [near + size + query / 16, key / 16 - size, *others]
        ADDITIVE.assert_agrees([tensor.to(dtype).requires_grad_() for tensor in inputs])


@pytest.mark.parametrize("factor", [1e-30, 1e-3, 1e3, 1e6])
def test_magnitudes_of_the_score_vector(factor):
    """Large score vectors give weights of 0 and 1, and a score vector of 0 gives equal weights."""
    query, key, vector, value = (tensor.detach().float() for tensor in ADDITIVE.make_inputs(67, 71))
    inputs = [query, key, vector * factor, value]
    exact, exact_lse = ADDITIVE.formula(*(tensor.double() for tensor in inputs))
    output, lse = additive(*inputs)
    score_error = 4 * INNER * float(inputs[2].abs().sum(1).amax()) * torch.finfo(torch.float32).eps
    atol = 4 * (KEYS + 71) * torch.finfo(torch.float32).eps + score_error
    torch.testing.assert_close(lse.double(), exact_lse, rtol=0, atol=atol)
    if factor <= 1e-3:
        torch.testing.assert_close(output.double(), exact, rtol=0, atol=8 * atol)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nonfinite_score_vector_affects_only_its_head(number):
    query, key, vector, value = (tensor.detach() for tensor in ADDITIVE.make_inputs())
    vector[4, 2] = number
    output, lse = additive(query, key, vector, value, mask=masks.padding([11, 0]))
    assert output[0, 4].isnan().all()
    assert lse[0, 4].isnan().all()
    assert output[0, :4].isfinite().all()
    assert not output[1].any()


def test_lse_does_not_need_values():
    without, whole = (additive(*ADDITIVE.make_inputs(value_dim=size))[1] for size in (0, VALUE_DIM))
    assert torch.equal(without, whole)


@pytest.mark.parametrize("name", ["additive", "luong_concat"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing(name, dtype):
    inputs = make_tokens(dtype=torch.float32)
    mix = regard.mechanism(name, heads=HEADS, head_dim=HEAD_DIM, inner=17, impl="native")
    whole = mix(*inputs)
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(mix(*inputs), whole)
