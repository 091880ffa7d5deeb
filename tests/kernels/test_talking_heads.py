"""Talking-heads attention in "native": output and every gradient against the formula in float64; torch's contract.

    w_f = sum_g softmax(sum_h scale q_h . k_h P_hg + bias_g) R_gf       o_f = sum_j w_fj v_fj

Shazeer et al. 2020, section 4. Inputs are rounded to the dtype first, so that the formula has the same inputs; the
matrices stay in the dtype of sums. The conformance suite and test_isas.py compare the kernels with the NumPy oracle.

A result that is computed by sums of L terms in the wide dtype (float32 for half precision) has an error of at most
L * wide of the largest term; at most 4 intermediate numbers are rounded to the dtype.
"""

import math
from collections.abc import Sequence

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
from regard.kernels.extension import native
from regard.kernels.implementations.talking_heads import TALKING_HEADS
from regard.kernels.operators.kernel_arguments import KernelArguments, to_kernel_arguments
from regard.validation import make_request
from sampled_parameters import parametrize_sample

HEADS, KEY_HEADS, QUERIES, KEYS, HEAD_DIM, VALUE_DIM = 6, 3, 7, 11, 19, 13
LENGTHS = [(1, 1), (5, 7), (63, 65), (64, 64), (65, 63), (7, 257), (131, 3)]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
SCALE = HEAD_DIM**-0.5
NAMES = ("output", "query", "key", "value", "score_mixing", "weight_mixing", "bias")


def random_tensor(*shape: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng([*shape, seed]).standard_normal(shape))


def tokens(
    queries: int = QUERIES,
    keys: int = KEYS,
    *,
    heads: int = HEADS,
    key_heads: int = KEY_HEADS,
    head_dim: int = HEAD_DIM,
    value_dim: int = VALUE_DIM,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """Random query, key, value and matrices; tokens in the memory layout of layers, (batch, length, heads, size)."""
    shapes = (queries, heads, head_dim), (keys, key_heads, head_dim), (keys, key_heads, value_dim)
    of_tokens = [random_tensor(BATCH, *shape, seed=1).to(dtype).transpose(1, 2) for shape in shapes]
    wide = results.accumulation_dtype(dtype)
    matrices = [random_tensor(heads, heads, seed=seed).to(wide) / heads**0.5 for seed in (2, 3)]
    return [part.requires_grad_() for part in (*of_tokens, *matrices)]


def upstream(output: Tensor) -> Tensor:
    return random_tensor(*output.shape, seed=5).to(output.dtype)


def formula(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mixing: Tensor,
    weight_mixing: Tensor,
    bias: Tensor | None = None,
    *,
    allowed: Tensor | None = None,
) -> Tensor:
    """Compute the output by the paper's formula; a softmax without a visible key has weights of 0."""
    group = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(group, dim=1) for part in (key, value))
    scores = query @ key.transpose(-2, -1) * query.shape[3] ** -0.5
    mixed = torch.einsum("bhij,hg->bgij", scores, score_mixing)
    mixed = mixed if bias is None else mixed + bias
    if allowed is not None:
        mixed = mixed.masked_fill(~allowed, -torch.inf)
    empty = (mixed == -torch.inf).all(-1, keepdim=True)
    weights = mixed.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    return torch.einsum("bgij,gf->bfij", weights, weight_mixing) @ value


def talking_heads(*inputs: Tensor, mask=None, bias=None, dropout: float = 0.0) -> Tensor:
    """Call the mechanism with these matrices, which stay leaves."""
    query, key, value, score_mixing, weight_mixing = inputs
    mechanism = regard.mechanism(
        "talking_heads", heads=query.shape[1], head_dim=query.shape[3], dropout=dropout, impl="native"
    ).to(score_mixing.dtype)
    parameters = {"score_mixing": score_mixing, "weight_mixing": weight_mixing}
    output: Tensor = torch.func.functional_call(mechanism, parameters, (query, key, value, mask), {"bias": bias})
    return output


def tolerance(inputs: Sequence[Tensor]) -> float:
    """Number of terms of the longest sums, times eps of the wide dtype, and 4 roundings to the dtype."""
    query, key, value = inputs[:3]
    heads, longest = query.shape[1], max(key.shape[2], HEADS // KEY_HEADS * query.shape[2])
    terms = query.shape[3] + value.shape[3] + 2 * heads + longest
    wide = torch.finfo(results.accumulation_dtype(query.dtype)).eps
    return terms * wide + 2 * torch.finfo(query.dtype).eps


def assert_agrees(inputs: list[Tensor], bias: Tensor | None = None, *, mask=None, terms: int = 1) -> None:
    """Compare the output and all gradients with the formula in float64."""
    leaves = [*inputs] if bias is None else [*inputs, bias]
    exact_leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
    queries, keys = inputs[0].shape[2], inputs[1].shape[2]
    exact = formula(*exact_leaves, allowed=None if mask is None else mask.dense(queries, keys))
    output = talking_heads(*inputs, mask=mask, bias=bias)
    assert output.dtype == inputs[0].dtype
    found = [output.detach(), *torch.autograd.grad(output, leaves, upstream(output))]
    wanted = [exact.detach(), *torch.autograd.grad(exact, exact_leaves, upstream(output).double())]
    for name, one, other in zip(NAMES, found, wanted, strict=False):
        largest = max(1.0, float(other.abs().max())) if other.numel() else 1.0
        count = BATCH * queries if "mixing" in name else terms if name == "bias" else 1
        torch.testing.assert_close(
            one.double(),
            other,
            rtol=0,
            atol=tolerance(inputs) * largest * count,
            msg=lambda text, name=name: f"{name}: {text}",
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
def test_many_keys_agree_with_the_formula(mask, dtype):
    """So many that the mixed scores of a tile of queries are not kept, but computed twice."""
    inputs = tokens(3, 11003, heads=8, key_heads=4, head_dim=3, value_dim=2, dtype=dtype)
    assert_agrees(inputs, mask=MASKS[mask](3, 11003))


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(1, 7), (7, 1), (67, 131), (641, 17), (17, 641)])
def test_head_sizes(sizes, dtype):
    head_dim, value_dim = sizes
    assert_agrees(tokens(67, 71, head_dim=head_dim, value_dim=value_dim, dtype=dtype), mask=masks.causal())


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("heads", [1, 2, 3, 5, 7, 8, 9, 13, 17])
def test_numbers_of_heads(heads):
    for dtype in (torch.float64, torch.float32):
        inputs = tokens(67, 71, heads=heads, key_heads=heads, head_dim=5, value_dim=3, dtype=dtype)
        assert_agrees(inputs, mask=masks.window(40, 3))


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 67, 71), (BATCH, 1, 1, 71), (1, HEADS, 67, 1), (BATCH, HEADS, 67, 71)])
def test_bias_shapes(shape, dtype):
    """A bias of -inf gives a weight of 0 in its own softmax, and may leave a softmax without keys."""
    bias = random_tensor(*shape, seed=7).to(dtype)
    bias[torch.from_numpy(np.random.default_rng(5).random(shape) < 0.2)] = -torch.inf
    terms = BATCH * HEADS * 67 * 71 // bias.numel()
    assert_agrees(tokens(67, 71, dtype=dtype), bias.requires_grad_(), mask=masks.causal(), terms=terms)


def test_a_softmax_without_keys_leaves_the_others(without_shape_checks):
    """With a bias of -inf for a whole row of one head, the other softmaxes still reach that head's values."""
    inputs = tokens()
    bias = torch.zeros(1, HEADS, QUERIES, KEYS, dtype=torch.float64)
    bias[:, 2, 3] = -torch.inf
    mechanism = regard.mechanism("talking_heads", heads=HEADS, head_dim=HEAD_DIM, impl="reference").double()
    parameters = {"score_mixing": inputs[3], "weight_mixing": inputs[4]}
    expected = torch.func.functional_call(mechanism, parameters, tuple(inputs[:3]), {"bias": bias})
    torch.testing.assert_close(talking_heads(*inputs, bias=bias), expected)
    assert expected[:, 2, 3].any()


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("mask", MASKS)
def test_gradient_of_a_distance_bias(mask):
    bias = positions.T5Buckets(HEADS, buckets=8, max_distance=13).double()
    for queries, keys in LENGTHS[1:]:
        inputs, chosen = tokens(queries, keys), MASKS[mask](queries, keys)
        cells = None if chosen is None else chosen.dense(queries, keys)
        added = bias.scores(inputs[0], Frame(queries, keys), torch.arange(queries), SCALE)
        both = []
        for output in (talking_heads(*inputs, mask=chosen, bias=bias), formula(*inputs, added, allowed=cells)):
            (trained,) = torch.autograd.grad(output, bias.weight, upstream(output))
            both.append((output.detach(), trained / max(1.0, queries * keys)))
        for one, other in zip(*both, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=tolerance(inputs) * max(1.0, float(other.abs().max())))


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
def test_a_batch_in_several_rounds():
    """The packed tokens of all entries need more memory than a round has (round_bytes in pack_layout.h)."""
    generator = torch.Generator().manual_seed(11)
    whole = [torch.randn(9, 300, HEADS, 128, generator=generator).transpose(1, 2).requires_grad_() for _ in range(3)]
    matrices = [part.float() for part in tokens()[3:]]
    output = talking_heads(*whole, *matrices, mask=masks.causal())
    computed = [output, *torch.autograd.grad(output, whole, output.detach())]
    for entry in (0, 4, 8):
        alone = [part[entry : entry + 1].detach().requires_grad_() for part in whole]
        one = talking_heads(*alone, *matrices, mask=masks.causal())
        for ours, part in zip([one, *torch.autograd.grad(one, alone, one.detach())], computed, strict=True):
            torch.testing.assert_close(ours, part[entry : entry + 1], rtol=1e-5, atol=1e-4)


# Large scores


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("constant", [-1e4, -1e9])
def test_a_constant_in_all_scores_has_no_effect(constant, dtype):
    if dtype == torch.float16:
        constant = max(constant, -1e4)
    query, key = torch.ones(1, HEADS, 67, 7, dtype=dtype), torch.ones(1, KEY_HEADS, 71, 7, dtype=dtype)
    value = random_tensor(1, KEY_HEADS, 71, 5, seed=8).to(dtype).requires_grad_()
    matrices = tokens(dtype=dtype)[3:]
    computed = []
    for added in (0.0, constant):
        output = talking_heads(query, key, value, *matrices, bias=torch.full((1, 1, 1, 1), added, dtype=dtype))
        computed.append(torch.autograd.grad(output.sum(), [value, *matrices]))
    for one, other in zip(*computed, strict=True):
        wide = torch.finfo(results.accumulation_dtype(dtype)).eps
        limit = (71 * 67 * wide + torch.finfo(dtype).eps) * max(1.0, float(one.abs().max()))
        torch.testing.assert_close(other, one, rtol=0, atol=limit)


def test_a_single_key_has_zero_score_gradients(without_shape_checks):
    """Its weight in every softmax is 1, whatever its score."""
    query, key, value, *matrices = tokens(67, 71, dtype=torch.float32)
    output = talking_heads(query * 1e4, key, value, *matrices, mask=masks.padding([1, 1]))
    found = torch.autograd.grad(output, [query, key, matrices[0]], upstream(output))
    assert not any(gradient.any() for gradient in found)


# NaN and Inf


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_nonfinite_token_affects_only_rows_that_see_it(name, number, dtype):
    """A query or key affects its row in all heads, a value in its own heads. All else is as if the token were zeros."""
    at, mask, index = 31, masks.window(40, 3), ("query", "key", "value").index(name)
    clean = [part.detach().clone() for part in tokens(67, 71, dtype=dtype)]
    clean[index][1, 1, at] = 0
    bad = [part.clone() for part in clean]
    bad[index][1, 1, at, 2] = number
    affected = torch.zeros(BATCH, HEADS, 67, dtype=torch.bool)
    if name == "query":
        affected[1, :, at] = True
    else:
        affected[1, slice(None) if name == "key" else slice(2, 4)] = mask.dense(67, 71)[..., at]
    computed = []
    for inputs in (clean, bad):
        leaves = [part.requires_grad_() for part in inputs]
        output = talking_heads(*leaves, mask=mask)
        kept = output.masked_fill(affected[..., None], 0.0)
        computed.append([kept, *torch.autograd.grad(kept, leaves, upstream(output))])
        if inputs is bad:
            assert output[affected].isnan().all()
    assert all(map(torch.equal, *computed))
    hidden = talking_heads(*bad, mask=masks.padding([71, 0]))
    assert not hidden[1].any()
    assert all(part.isfinite().all() for part in torch.autograd.grad(hidden.sum(), bad))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_nonfinite_score_affects_only_its_row(number):
    inputs = tokens()
    bias = torch.zeros(1, HEADS, QUERIES, KEYS)
    bias[:, 3, -1, 5] = number
    output = talking_heads(*inputs, bias=bias)
    assert output[:, :, -1].isnan().all()
    assert output[:, :, :-1].isfinite().all()
    assert talking_heads(*inputs, bias=bias, mask=masks.padding([5, 4])).isfinite().all()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_overflow_of_a_score_affects_its_row(sign):
    """Also one of -inf, whose weight would be 0: a mixture of it may be NaN or +inf in another head."""
    query, key, value, *matrices = (part.detach() for part in tokens(dtype=torch.float32))
    query, key = query.clone(), key.clone()
    query[0, 1, 2], key[0, 0, 4] = 1e30, sign * 1e30
    output = talking_heads(query, key, value, *matrices)
    assert output[0, :, 2].isnan().all()
    assert output[0, :, :2].isfinite().all()
    assert output[1].isfinite().all()
    assert talking_heads(query, key, value, *matrices, mask=masks.padding([4, 11])).isfinite().all()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("which", [3, 4])
def test_nonfinite_matrix_affects_only_rows_with_keys(which):
    inputs = [part.detach().clone() for part in tokens()]
    inputs[which][2, 4] = math.nan
    output = talking_heads(*inputs, mask=masks.padding([11, 0]))
    assert output[0, 4].isnan().all()
    assert not output[1].any()


@pytest.mark.usefixtures("without_shape_checks")
def test_nonfinite_gradient_of_a_row_that_is_nan_has_no_effect():
    inputs = [part.detach().clone() for part in tokens(67, 71)]
    inputs[0][:, 1, 5] = math.nan
    leaves = [part.requires_grad_() for part in inputs]
    output = talking_heads(*leaves, mask=masks.causal())
    computed = []
    for number in (0.0, math.nan, math.inf):
        above = upstream(output)
        above[:, :, 5] = number
        computed.append(torch.autograd.grad(output, leaves, above, retain_graph=True))
    for other in computed[1:]:
        assert all(map(torch.equal, computed[0], other))


# Dropout, threads


@pytest.mark.usefixtures("without_shape_checks")
def test_dropout_drops_weights_before_they_are_mixed():
    query, key, _, score_mixing, _ = tokens(67, 71)
    value = torch.eye(71, dtype=torch.float64).expand(BATCH, KEY_HEADS, 71, 71)
    unmixed = torch.eye(HEADS, dtype=torch.float64)
    weights = talking_heads(query, key, value, score_mixing, unmixed)
    dropped = talking_heads(query, key, value, score_mixing, unmixed, dropout=0.25)
    kept = dropped > 0
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.75, rtol=0, atol=1e-14)
    share = 1 - kept.double().mean().item()
    assert abs(share - 0.25) < 4 * (0.25 * 0.75 / kept.numel()) ** 0.5
    mixing = tokens()[4]
    torch.manual_seed(5)
    unmixed_weights = talking_heads(query, key, value, score_mixing, unmixed, dropout=0.25)
    torch.manual_seed(5)
    mixed = talking_heads(query, key, value, score_mixing, mixing, dropout=0.25)
    torch.testing.assert_close(mixed, torch.einsum("bgij,gf->bfij", unmixed_weights, mixing))


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_with_any_number_of_threads(dtype):
    inputs, before = tokens(131, 601, dtype=dtype), torch.get_num_threads()
    bias = torch.zeros(1, 1, 1, 601, requires_grad=True)
    computed = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(43)
        output = talking_heads(*inputs, bias=bias, mask=masks.causal() & masks.padding([601, 130]), dropout=0.3)
        computed.append([output, *torch.autograd.grad(output, [*inputs, bias], upstream(output))])
    torch.set_num_threads(before)
    for other in computed[1:]:
        assert all(map(torch.equal, other, computed[0]))


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
    return to_kernel_arguments(make_request(*inputs[:3], mask=mask, bias=bias, scale=SCALE, dropout=dropout))


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
    torch.library.opcheck(torch.ops.regard.talking_heads.default, (*inputs, *named), test_utils=utilities)
    plain = [part.detach() if isinstance(part, Tensor) else part for part in (*inputs, *named)]
    output, normalizer = torch.ops.regard.talking_heads.default(*plain)
    expected = (named.bias is not None, named.table is not None)
    torch.library.opcheck(
        torch.ops.regard.talking_heads_backward.default,
        (torch.randn_like(output), *plain[:5], normalizer, *expected, *plain[5:]),
        test_utils=utilities,
    )


@pytest.mark.parametrize("name", [name for name in TERMS if not name.startswith(("no ", "tiles", "bias of another"))])
@pytest.mark.parametrize("path", ["operator", "eager"])
def test_gradients_agree_with_finite_differences(name, path, without_shape_checks):
    inputs = tokens()
    named = TERMS[name](inputs)
    trained = [kind for kind in ("bias", "table") if getattr(named, kind) is not None]
    operator = TALKING_HEADS.forward
    function = operator.torch_op if path == "operator" else operator.compute_with_grad

    def output(*leaves):
        return function(*leaves[:5], *named._replace(**dict(zip(trained, leaves[5:], strict=True))))[0]

    leaves = [getattr(named, kind).detach().requires_grad_() for kind in trained]
    assert torch.autograd.gradcheck(output, (*inputs, *leaves), fast_mode=True, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 3, 3), (2, 0, 3), (2, 3, 0), (0, 0, 0)])
def test_the_module_itself_takes_empty_arrays(batch, queries, keys, without_shape_checks):
    query, key = torch.zeros(batch, 2, queries, 5), torch.zeros(batch, 2, keys, 5)
    mixing, output, normalizer = torch.eye(2), torch.ones_like(query), torch.zeros(batch, 2, queries, 2)
    native.talking_heads_forward(query, key, key, mixing, mixing, output, normalizer=normalizer, threads=2)
    assert not output.any()
    gradients = [torch.empty_like(part) for part in (query, key, key, mixing, mixing)]
    native.talking_heads_backward(
        output, query, key, key, mixing, mixing, normalizer, *gradients, None, None, threads=2
    )


@pytest.mark.parametrize("name", ["no keys", "no queries", "no values"])
def test_empty_tensors(name, without_shape_checks):
    inputs = tokens(**SIZES[name])
    output = talking_heads(*inputs, mask=masks.causal())
    assert not output.any()
    assert not any(part.any() for part in torch.autograd.grad(output.sum(), inputs))


# The mechanism


def make_mechanism(impl: str) -> regard.mechanisms.Mechanism:
    torch.manual_seed(17)
    return regard.mechanism("talking_heads", heads=HEADS, head_dim=HEAD_DIM, impl=impl)


def test_auto_prefers_the_kernel():
    inputs = tokens(dtype=torch.float32)[:3]
    mix = {impl: make_mechanism(impl) for impl in ("auto", "native", "reference")}
    assert torch.equal(mix["auto"](*inputs), mix["native"](*inputs))
    assert not torch.equal(mix["auto"](*inputs), mix["reference"](*inputs))
    relative = positions.ShawRelative(HEAD_DIM, 3, values=False)
    assert torch.equal(mix["auto"](*inputs, bias=relative), mix["reference"](*inputs, bias=relative))


def test_native_refuses_with_a_reason(without_shape_checks):
    inputs = tokens(dtype=torch.float32)[:3]
    native = make_mechanism("native")
    with pytest.raises(RefusedError, match=r"(?s)'native' refuses.*ShawRelative needs the queries"):
        native(*inputs, bias=positions.ShawRelative(HEAD_DIM, 3, values=False))
    with pytest.raises(OptionError, match=r"(?s)unknown impl 'sdpa'.*auto, native, reference"):
        make_mechanism("sdpa")
    (of_query,) = torch.autograd.grad(native(*inputs).sum(), inputs[0], create_graph=True)
    with pytest.raises(RefusedError, match=r"(?s)no second derivatives.*impl=\"reference\""):
        of_query.sum().backward()


def test_vmap_uses_the_reference():
    query, key, value = (part.detach() for part in tokens(dtype=torch.float32)[:3])
    mix = make_mechanism("auto")
    many = torch.func.vmap(lambda tensor: mix(tensor, key, value))(torch.stack([query, 2 * query]))
    torch.testing.assert_close(many[0], mix(query, key, value), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype):
    """The kernel reads half precision, and computes in float32."""
    inputs, mix = [part.detach().to(dtype) for part in tokens()[:3]], make_mechanism("native")
    half, whole = mix(*inputs), mix(*(part.float() for part in inputs))
    assert half.dtype == dtype
    assert torch.equal(half, whole.to(dtype))
