"""Talking-heads attention in "native" beside ``test_score_kernels.py``: many keys or heads, rounds, and mixtures."""

import math

import pytest
import torch

import regard
from kernels.score_kernels import (
    DTYPES,
    HEAD_DIM,
    HEADS,
    KEY_HEADS,
    KEYS,
    QUERIES,
    TALKING_HEADS,
    normal,
    talking_heads,
)
from mask_forms import BATCH, MASKS
from regard import masks
from regard.kernels import results
from regard.kernels.extension import native
from sampled_parameters import parametrize_sample

pytestmark = pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
make_inputs = TALKING_HEADS.make_inputs

# Results


@parametrize_sample("mask, dtype", MASKS, DTYPES)
def test_many_keys_agree_with_the_formula(mask, dtype):
    """So many that the mixed scores of a tile of queries are not kept, but computed twice."""
    inputs = make_inputs(3, 11003, heads=8, key_heads=4, head_dim=3, value_dim=2, dtype=dtype)
    TALKING_HEADS.assert_agrees(inputs, mask=MASKS[mask](3, 11003))


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 7, 8, 9, 13, 17])
def test_numbers_of_heads(heads):
    for dtype in (torch.float64, torch.float32):
        inputs = make_inputs(67, 71, heads=heads, key_heads=heads, head_dim=5, value_dim=3, dtype=dtype)
        TALKING_HEADS.assert_agrees(inputs, mask=masks.window(40, 3))


def test_a_softmax_without_keys_leaves_the_others():
    """With a bias of -inf for a whole row of one head, the other softmaxes still reach that head's values."""
    inputs = make_inputs()
    bias = torch.zeros(1, HEADS, QUERIES, KEYS, dtype=torch.float64)
    bias[:, 2, 3] = -torch.inf
    mechanism = regard.mechanism("talking_heads", heads=HEADS, head_dim=HEAD_DIM, impl="reference").double()
    parameters = {"score_mixing": inputs[3], "weight_mixing": inputs[4]}
    expected = torch.func.functional_call(mechanism, parameters, tuple(inputs[:3]), {"bias": bias})
    torch.testing.assert_close(talking_heads(*inputs, bias=bias), expected)
    assert expected[:, 2, 3].any()


def test_a_batch_in_several_rounds():
    """The packed tokens of all entries need more memory than a round has (round_bytes in pack_layout.h)."""
    generator = torch.Generator().manual_seed(11)
    whole = [torch.randn(9, 300, HEADS, 128, generator=generator).transpose(1, 2).requires_grad_() for _ in range(3)]
    matrices = [part.float() for part in make_inputs()[3:]]
    output = talking_heads(*whole, *matrices, mask=masks.causal())
    computed = [output, *torch.autograd.grad(output, whole, output.detach())]
    for entry in (0, 4, 8):
        alone = [part[entry : entry + 1].detach().requires_grad_() for part in whole]
        one = talking_heads(*alone, *matrices, mask=masks.causal())
        for ours, part in zip([one, *torch.autograd.grad(one, alone, one.detach())], computed, strict=True):
            torch.testing.assert_close(ours, part[entry : entry + 1], rtol=1e-5, atol=1e-4)


# Large scores


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("constant", [-1e4, -1e9])
def test_a_constant_in_all_scores_has_no_effect(constant, dtype):
    if dtype == torch.float16:
        constant = max(constant, -1e4)
    query, key = torch.ones(1, HEADS, 67, 7, dtype=dtype), torch.ones(1, KEY_HEADS, 71, 7, dtype=dtype)
    value = normal(1, KEY_HEADS, 71, 5, seed=8).to(dtype).requires_grad_()
    matrices = make_inputs(dtype=dtype)[3:]
    computed = []
    for added in (0.0, constant):
        output = talking_heads(query, key, value, *matrices, bias=torch.full((1, 1, 1, 1), added, dtype=dtype))
        computed.append(torch.autograd.grad(output.sum(), [value, *matrices]))
    for one, other in zip(*computed, strict=True):
        wide = torch.finfo(results.accumulation_dtype(dtype)).eps
        limit = (71 * 67 * wide + torch.finfo(dtype).eps) * max(1.0, float(one.abs().max()))
        torch.testing.assert_close(other, one, rtol=0, atol=limit)


def test_a_single_key_has_zero_score_gradients():
    """Its weight in every softmax is 1, whatever its score."""
    query, key, value, *matrices = make_inputs(67, 71, dtype=torch.float32)
    output = talking_heads(query * 1e4, key, value, *matrices, mask=masks.padding([1, 1]))
    found = torch.autograd.grad(output, [query, key, matrices[0]], TALKING_HEADS.upstream([output]))
    assert not any(gradient.any() for gradient in found)


# NaN and Inf


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_overflow_of_a_score_affects_its_row(sign):
    """Also one of -inf, whose weight would be 0: a mixture of it may be NaN or +inf in another head."""
    query, key, value, *matrices = (part.detach() for part in make_inputs(dtype=torch.float32))
    query, key = query.clone(), key.clone()
    query[0, 1, 2], key[0, 0, 4] = 1e30, sign * 1e30
    output = talking_heads(query, key, value, *matrices)
    assert output[0, :, 2].isnan().all()
    assert output[0, :, :2].isfinite().all()
    assert output[1].isfinite().all()
    assert talking_heads(query, key, value, *matrices, mask=masks.padding([4, 11])).isfinite().all()


@pytest.mark.parametrize("which", [3, 4])
def test_nonfinite_matrix_affects_only_rows_with_keys(which):
    inputs = [part.detach().clone() for part in make_inputs()]
    inputs[which][2, 4] = math.nan
    output = talking_heads(*inputs, mask=masks.padding([11, 0]))
    assert output[0, 4].isnan().all()
    assert not output[1].any()


def test_nonfinite_gradient_of_a_row_that_is_nan_has_no_effect():
    inputs = [part.detach().clone() for part in make_inputs(67, 71)]
    inputs[0][:, 1, 5] = math.nan
    leaves = [part.requires_grad_() for part in inputs]
    output = talking_heads(*leaves, mask=masks.causal())
    computed = []
    for number in (0.0, math.nan, math.inf):
        (above,) = TALKING_HEADS.upstream([output])
        above[:, :, 5] = number
        computed.append(torch.autograd.grad(output, leaves, above, retain_graph=True))
    for other in computed[1:]:
        assert all(map(torch.equal, computed[0], other))


# Dropout and empty arrays


def test_dropout_drops_weights_before_they_are_mixed():
    query, key, _, score_mixing, _ = make_inputs(67, 71)
    value = torch.eye(71, dtype=torch.float64).expand(BATCH, KEY_HEADS, 71, 71)
    unmixed = torch.eye(HEADS, dtype=torch.float64)
    mixing = make_inputs()[4]
    torch.manual_seed(5)
    unmixed_weights = talking_heads(query, key, value, score_mixing, unmixed, dropout=0.25)
    torch.manual_seed(5)
    mixed = talking_heads(query, key, value, score_mixing, mixing, dropout=0.25)
    torch.testing.assert_close(mixed, torch.einsum("bgij,gf->bfij", unmixed_weights, mixing))


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 3, 3), (2, 0, 3), (2, 3, 0), (0, 0, 0)])
def test_the_module_itself_takes_empty_arrays(batch, queries, keys):
    query, key = torch.zeros(batch, 2, queries, 5), torch.zeros(batch, 2, keys, 5)
    mixing, output, normalizer = torch.eye(2), torch.ones_like(query), torch.zeros(batch, 2, queries, 2)
    native.talking_heads_forward(query, key, key, mixing, mixing, output, normalizer=normalizer, threads=2)
    assert not output.any()
    gradients = [torch.empty_like(part) for part in (query, key, key, mixing, mixing)]
    native.talking_heads_backward(
        output, query, key, key, mixing, mixing, normalizer, *gradients, None, None, threads=2
    )
