"""Softcap and attention sinks, in "native" and "reference": results against the float64 oracle, edges, bits.

Inputs are multiples of 1/16 below 8, which every dtype represents exactly, so all dtypes share one oracle, and the
gradients are its derivatives by complex steps, along random signs. The tolerance is that of the conformance suite (see
``conformance.test_agreement``).
"""

from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from any_threads import assert_same_bits
from mask_forms import BATCH, MASKS
from regard import masks
from regard.conformance.oracles import attention as oracle
from regard.conformance.oracles.complex_step import slope
from regard.errors import DeviceError, DtypeError, OptionError, RefusedError, ShapeError
from regard.layers import PagedCache, PagePool
from sampled_parameters import parametrize_sample
from sixteenths import sixteenths

HEADS, KEY_HEADS = 4, 2
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
IMPLS = ["native", "reference"]
LENGTHS = [(67, 71), (65, 3), (1, 67), (3, 577)]
"""The last one is computed by the decoding kernels."""
TERMS = {
    "softcap": (1.5, None),
    "sinks": (None, (HEADS,)),
    "sinks of queries": (None, (BATCH, HEADS, -1, 1)),
    "softcap and sinks": (1.5, (1, HEADS, 1, 1)),
}
"""The softcap, and the shape of the sinks; -1 is the number of queries."""


def make_arrays(queries, keys, shape, *, head_dim=5, value_dim=11, bias=True):
    arrays = {
        "query": sixteenths(BATCH, HEADS, queries, head_dim, seed=1),
        "key": sixteenths(BATCH, KEY_HEADS, keys, head_dim, seed=2),
        "value": sixteenths(BATCH, KEY_HEADS, keys, value_dim, seed=3),
    }
    if bias:
        arrays["bias"] = sixteenths(1, HEADS, queries, keys, seed=4)
    if shape is not None:
        arrays["sinks"] = sixteenths(*(queries if size == -1 else size for size in shape), seed=5)
    return arrays


def to_tensors(arrays, dtype) -> dict[str, Tensor]:
    """Query, key and value in the memory layout of layers, (batch, length, heads, head_dim)."""
    tensors = {name: torch.from_numpy(array).to(dtype) for name, array in arrays.items()}
    for name in ("query", "key", "value"):
        tensors[name] = tensors[name].transpose(1, 2).contiguous().transpose(1, 2)
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def dense(mask, queries, keys):
    return None if mask is None else mask.dense(queries, keys).numpy()


def random_signs(shape):
    return np.random.default_rng(list(shape)).choice([-1.0, 1.0], shape)


@cache
def expected(mask, lengths, terms):
    """The output of the oracle, and the slope of its inputs along random signs."""
    softcap, shape = TERMS[terms]
    arrays = make_arrays(*lengths, shape)
    allowed = dense(MASKS[mask](*lengths), *lengths)

    def weighted(inputs):
        output = oracle.attention(
            inputs["query"],
            inputs["key"],
            inputs["value"],
            allowed,
            inputs["bias"],
            softcap=softcap,
            sinks=inputs.get("sinks"),
        )[0]
        return output * random_signs(output.shape)

    signs = random_signs((BATCH, HEADS, lengths[0], 11))
    slopes = {name: slope(weighted, arrays, name, random_signs(array.shape)) for name, array in arrays.items()}
    return weighted(arrays) * signs, slopes


def bound(dtype, impl, queries, keys, head_dim=5, value_dim=11):
    wide = torch.finfo(torch.float32 if dtype.itemsize == 2 else dtype).eps
    terms = 2 * head_dim + keys * queries * HEADS // KEY_HEADS + value_dim
    return terms * wide + (8 if impl == "native" else 1) * torch.finfo(dtype).eps / 2


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("impl", IMPLS)
@parametrize_sample("mask, terms", MASKS, TERMS, one_in=3)
def test_agrees_with_the_oracle(mask, terms, impl, dtype):
    softcap, shape = TERMS[terms]
    for queries, keys in LENGTHS:
        if mask == "tiles" and keys < 5:
            continue
        exact, slopes = expected(mask, (queries, keys), terms)
        tensors = to_tensors(make_arrays(queries, keys, shape), dtype)
        output = regard.attention(**tensors, mask=MASKS[mask](queries, keys), softcap=softcap, impl=impl)
        assert output.dtype == dtype
        close = bound(dtype, impl, queries, keys)
        error = np.abs(output.detach().double().numpy() - exact).max() / max(1.0, np.abs(exact).max())
        assert error <= close, (queries, keys, error)
        upstream = torch.from_numpy(random_signs(output.shape)).to(dtype)
        gradients = torch.autograd.grad(output, list(tensors.values()), upstream)
        for name, gradient in zip(tensors, gradients, strict=True):
            assert gradient.dtype == dtype
            largest = max(1.0, float(gradient.abs().max()))
            found = (gradient.double().numpy() * random_signs(gradient.shape)).sum()
            error = abs(found - slopes[name]) / (largest * 6 * np.sqrt(gradient.numel()))
            assert error <= close, (queries, keys, name, error)


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [1, 7, 16, 64, 101, 128, 256])
def test_every_head_dim(head_dim, dtype):
    arrays = make_arrays(67, 71, (HEADS,), head_dim=head_dim, value_dim=257 - head_dim, bias=False)
    tensors = to_tensors(arrays, dtype)
    wide = {name: tensor.detach().double().requires_grad_() for name, tensor in tensors.items()}
    allowed = np.tri(67, 71, 4, dtype=bool)
    exact = oracle.attention(*list(arrays.values())[:3], allowed, softcap=2.5, sinks=arrays["sinks"])[0]
    output = regard.attention(**tensors, mask=masks.causal(), softcap=2.5, impl="native")
    reference = regard.attention(**wide, mask=masks.causal(), softcap=2.5, impl="reference")
    close = bound(dtype, "native", 67, 71, head_dim, 257 - head_dim)
    np.testing.assert_allclose(output.detach().double().numpy(), exact, rtol=0, atol=close * np.abs(exact).max())
    upstream = torch.from_numpy(random_signs(output.shape)).to(dtype)
    ours = torch.autograd.grad(output, list(tensors.values()), upstream)
    theirs = torch.autograd.grad(reference, list(wide.values()), upstream.double())
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=close * max(1.0, float(other.abs().max())))


# ---- statistics ----


@cache
def expected_statistics(mask, shape, queries, keys):
    arrays = make_arrays(queries, keys, shape)
    allowed = dense(MASKS[mask](queries, keys), queries, keys)
    sinks, bias = arrays["sinks"], arrays["bias"]
    return oracle.observe(
        *list(arrays.values())[:3], allowed, bias, top=3, query_rows=(5, 66), softcap=1.5, sinks=sinks
    )


STATISTICS = ("output", "lse", "entropy", "received", "top_weights", "rows", "sink_weight")


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("shape", [(HEADS,), (BATCH, HEADS, -1, 1)])
@pytest.mark.parametrize("mask", MASKS)
def test_statistics_agree_with_the_oracle(mask, shape, impl, dtype):
    queries, keys = 67, 71
    exact, tensors = (
        expected_statistics(mask, shape, queries, keys),
        to_tensors(make_arrays(queries, keys, shape), dtype),
    )
    seen = regard.observe(**tensors, mask=MASKS[mask](queries, keys), softcap=1.5, top=3, rows=[5, 66], impl=impl)
    for name in (*STATISTICS, "max_score"):
        ours, theirs = getattr(seen, name).detach().double().numpy(), getattr(exact, name)
        largest = max(1.0, np.abs(np.where(np.isfinite(theirs), theirs, 0)).max())
        kept = dtype if name == "output" else torch.promote_types(dtype, torch.float32)
        assert getattr(seen, name).dtype == kept
        close = (
            bound(dtype, impl, queries, keys)
            if name == "output"
            else 4 * 150 * torch.finfo(kept).eps + (6e-6 if dtype == torch.bfloat16 else 0)
        )
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=close * largest, err_msg=name)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("shape", [(HEADS,), (1, HEADS, 7, 1), (BATCH, 1, 1, 1)])
def test_gradients_of_statistics(shape, impl):
    tensors = to_tensors(make_arrays(7, 11, shape, bias=False), torch.float64)

    def statistics(query, key, value, sinks):
        seen = regard.observe(
            query, key, value, mask=masks.window(5, 0), softcap=1.5, sinks=sinks, rows=[3], impl=impl, top=2
        )
        return seen.output, seen.lse, seen.entropy, seen.received, seen.top_weights, seen.rows, seen.sink_weight

    assert torch.autograd.gradcheck(statistics, tuple(tensors.values()), fast_mode=True)


def test_without_sinks_there_is_no_weight_of_a_sink():
    tensors = to_tensors(make_arrays(5, 7, None), torch.float32)
    for impl in IMPLS:
        assert regard.observe(**tensors, impl=impl).sink_weight is None


# ---- tanh ----


def capped_scores(numbers: Tensor, softcap: float) -> tuple[Tensor, Tensor]:
    """The capped score of each number, and its slope: with one key, lse is its score."""
    query = numbers[None, None, :, None].clone().requires_grad_()
    key = torch.ones(1, 1, 1, 1, dtype=numbers.dtype)
    lse = regard.observe(query, key, key, scale=1.0, softcap=softcap, impl="native", top=0).lse
    (slopes,) = torch.autograd.grad(lse.sum(), query)
    return lse.detach().flatten(), slopes.flatten()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("softcap", [1.0, 50.0, 1e-3, 3e20])
def test_tanh_and_its_slope_are_accurate(softcap, dtype):
    generator = np.random.default_rng(11)
    near = generator.uniform(-3, 3, 20011)
    small = 10 ** generator.uniform(-12, 0, 4001)
    large = generator.uniform(-80, 80, 10007)
    numbers = torch.from_numpy(np.concatenate([near, small, -small, large]) * softcap).to(dtype)
    scores, slopes = capped_scores(numbers, softcap)
    wide = numbers.numpy().astype(np.longdouble) / np.longdouble(softcap)
    exact, exact_slope = np.tanh(wide) * np.longdouble(softcap), 1 / np.cosh(wide) ** 2
    eps = torch.finfo(dtype).eps
    # Half an eps each: 1 / c, x / c, the exponent and its factor, 1 - e, 1 + e, their quotient and c times it; 1 of
    # 2^x. Errors of an exponent count at most half.
    assert (np.abs(scores.numpy() - exact) <= 3 * eps * np.abs(exact)).all()
    # Below 2^-100 (2^-900) a slope is 0. The exponent 2 x / c of large ones is rounded.
    close = (4 + 4 * np.abs(wide)) * eps * exact_slope
    kept = exact_slope > (1e-290 if dtype == torch.float64 else 1e-29)
    assert (np.abs(slopes.numpy() - exact_slope) <= close)[kept].all()
    assert (slopes.numpy()[~kept] <= (1e-268 if dtype == torch.float64 else 1e-27)).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_tanh_of_huge_and_of_no_scores(dtype):
    """Nothing overflows, and tanh is odd in its bits."""
    largest = torch.finfo(dtype).max
    numbers = torch.tensor([0.0, 1e-30, 1e10, largest, -largest], dtype=dtype)
    scores, slopes = capped_scores(numbers, 50.0)
    assert scores.tolist() == [0.0, numbers[1].item(), 50.0, 50.0, -50.0]
    assert slopes.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    many = torch.randn(1009, dtype=dtype) * 60
    one, other = capped_scores(many, 50.0), capped_scores(-many, 50.0)
    assert torch.equal(one[0], -other[0])
    assert torch.equal(one[1], other[1])


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("softcap", [5e-324, 1e-40, 1e300])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_extreme_softcaps(softcap, dtype):
    """All scores are 0 with a tiny one; a huge one changes nothing."""
    tensors = to_tensors(make_arrays(67, 71, None, bias=False), dtype)
    output = regard.attention(**tensors, softcap=softcap, impl="native")
    plain = {name: tensor.detach() for name, tensor in tensors.items()}
    if softcap < 1:
        plain["query"] = torch.zeros_like(plain["query"])
    exact = regard.attention(**plain, impl="native")
    torch.testing.assert_close(output.detach(), exact, rtol=0, atol=100 * torch.finfo(dtype).eps)
    gradients = torch.autograd.grad(output.sum(), list(tensors.values()))
    assert all(gradient.isfinite().all() for gradient in gradients)


# ---- edges of sinks ----


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("lengths", [(67, 71), (3, 577)])
@pytest.mark.parametrize("sink", [0.0, torch.inf, torch.nan])
def test_rows_without_keys_are_exactly_0(sink, lengths, impl):
    tensors = to_tensors(make_arrays(*lengths, (HEADS,)), torch.float32)
    sinks = tensors["sinks"].detach().fill_(sink).requires_grad_()
    tensors["sinks"] = sinks
    mask = masks.padding([0, 0])
    seen = regard.observe(**tensors, mask=mask, softcap=1.5, impl=impl)
    output = regard.attention(**tensors, mask=mask, softcap=1.5, impl=impl)
    assert not output.any()
    assert not seen.output.any()
    assert not seen.sink_weight.any()
    assert not seen.entropy.any()
    assert (seen.lse == -torch.inf).all()
    total = output.sum() + seen.sink_weight.sum() + seen.entropy.sum() + seen.output.sum()
    for gradient in torch.autograd.grad(total, list(tensors.values())):
        assert not gradient.any()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("lengths", [(67, 71), (3, 577)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sink_of_minus_infinity_is_none(dtype, lengths):
    tensors = to_tensors(make_arrays(*lengths, (HEADS,)), dtype)
    tensors["sinks"].data.fill_(-torch.inf)
    with_sinks = regard.attention(**tensors, mask=masks.causal(), impl="native")
    gradients = torch.autograd.grad(with_sinks.sum(), list(tensors.values()))
    assert not gradients[-1].any()
    del tensors["sinks"]
    without = regard.attention(**tensors, mask=masks.causal(), impl="native")
    torch.testing.assert_close(with_sinks, without, rtol=torch.finfo(dtype).eps, atol=0)
    for one, other in zip(gradients, torch.autograd.grad(without.sum(), list(tensors.values())), strict=False):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 if dtype.itemsize > 2 else 2e-2)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("lengths", [(67, 71), (3, 577)])
@pytest.mark.parametrize("sink", [torch.inf, torch.nan])
def test_a_sink_that_is_no_number_reaches_its_head_only(sink, lengths, impl):
    tensors = to_tensors(make_arrays(*lengths, (HEADS,)), torch.float32)
    exact = regard.attention(**tensors, mask=masks.causal(), impl=impl)
    tensors["sinks"].data[1] = sink
    output = regard.attention(**tensors, mask=masks.causal(), impl=impl)
    assert output[:, 1].isnan().all()
    kept = [0, 2, 3]
    assert torch.equal(output[:, kept], exact[:, kept])
    for gradient in torch.autograd.grad(output[:, kept].sum(), list(tensors.values())):
        assert gradient.isfinite().all()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("lengths", [(67, 71), (3, 577)])
def test_huge_sinks_take_all_weight(lengths):
    tensors = to_tensors(make_arrays(*lengths, (HEADS,)), torch.float32)
    tensors["sinks"].data[:] = torch.tensor([200.0, 1e4, 1e30, torch.finfo(torch.float32).max])
    seen = regard.observe(**tensors, impl="native")
    assert (seen.sink_weight == 1).all()
    assert not seen.entropy.any()
    output = regard.attention(**tensors, impl="native")
    assert output.abs().max() < 1e-30
    for gradient in torch.autograd.grad(output.sum(), list(tensors.values())):
        assert gradient.isfinite().all()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("lengths", [(67, 71), (3, 577)])
def test_a_constant_of_all_scores_changes_no_bit_of_gradients(lengths):
    """Largest score and sum are kept apart: scores near 1e6, with a sink as far away, lose no digit of the sum."""
    plain = to_tensors(make_arrays(*lengths, (HEADS,), bias=False), torch.float64)
    shift = 2.0**20
    moved = {name: tensor.detach().float().requires_grad_() for name, tensor in plain.items()}
    moved["sinks"] = (plain["sinks"].detach() + shift).float().requires_grad_()
    bias = torch.full((1, 1, 1, 1), shift)
    quantized = {name: tensor.detach().requires_grad_() for name, tensor in plain.items()}
    ours = regard.attention(**moved, bias=bias, impl="native", scale=1.0)
    theirs = regard.attention(**quantized, impl="native", scale=1.0)
    ulp = 2.0**-3  # of float32 near 2^20: a score is rounded to it
    assert (ours.double() - theirs).abs().max() < 2 * ulp * 8
    weights = regard.observe(**moved, bias=bias, impl="native", scale=1.0, rows=[0])
    total = weights.rows.sum(-1) + weights.sink_weight[:, :, :1]
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-5)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hidden_tokens_have_no_influence(dtype, impl):
    for queries, keys in ((67, 71), (3, 577)):
        results = []
        for hidden in (0.0, 1e30, torch.nan, torch.inf):
            tensors = to_tensors(make_arrays(queries, keys, (HEADS,)), dtype)
            for name in ("key", "value"):
                tensors[name].data[1, :, keys // 2 :] = hidden
            mask = masks.padding([keys, keys // 2])
            output = regard.attention(**tensors, mask=mask, softcap=1.5, impl=impl)
            gradients = torch.autograd.grad(output.float().square().sum(), list(tensors.values()))
            assert not gradients[1][1, :, keys // 2 :].any()
            assert not gradients[2][1, :, keys // 2 :].any()
            results.append([output, *gradients])
        for other in results[1:]:
            for one, same in zip(results[0], other, strict=True):
                assert torch.equal(one, same)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_visible_nonfinite_tokens_give_nan(softcap):
    """A cap does not hide an infinite key."""
    for queries, keys in ((67, 71), (1, 577)):
        for number in (torch.nan, torch.inf):
            tensors = to_tensors(make_arrays(queries, keys, (HEADS,)), torch.float32)
            tensors["key"].data[0, 0, 2, 1] = number
            output = regard.attention(**tensors, softcap=softcap, impl="native")
            assert output[0, :2].isnan().all()
            assert output[0, 2:].isfinite().all()


# ---- bits and ways to compute ----


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_do_not_depend_on_the_number_of_threads(dtype):

    def compute(lengths):
        tensors = to_tensors(make_arrays(*lengths, (1, HEADS, 1, 1)), dtype)
        seen = regard.observe(**tensors, mask=masks.causal(), softcap=1.5, impl="native")
        output = regard.attention(**tensors, mask=masks.causal(), softcap=1.5, impl="native")
        upstream = torch.from_numpy(random_signs(output.shape)).to(dtype)
        gradients = torch.autograd.grad(output, list(tensors.values()), upstream)
        return [output, seen.output, seen.lse, seen.entropy, seen.received, seen.sink_weight, *gradients]

    for lengths in ((131, 577), (2, 1031)):
        assert_same_bits(partial(compute, lengths), threads=(1, 2, 3, 5))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_decoding_one_query_equals_the_last_of_all(dtype):
    tensors = to_tensors(make_arrays(577, 577, (HEADS,), bias=False), dtype)
    whole = regard.attention(**tensors, mask=masks.causal(), softcap=1.5, impl="native")
    tensors["query"] = tensors["query"][:, :, -1:]
    last = regard.attention(**tensors, mask=masks.causal(), softcap=1.5, impl="native")
    close = 100 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps + 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(last, whole[:, :, -1:], rtol=0, atol=close)


@pytest.mark.usefixtures("without_shape_checks")
def test_dropout_keeps_the_weight_of_the_sink():
    """Values of unit vectors show the weights: each is 0, or that without dropout, scaled."""
    arrays = make_arrays(67, 71, (HEADS,), bias=False)
    arrays["value"] = np.broadcast_to(np.eye(71), (BATCH, KEY_HEADS, 71, 71)).copy()
    tensors = to_tensors(arrays, torch.float64)
    exact = regard.attention(**tensors, softcap=1.5, impl="native")
    dropped = regard.attention(**tensors, softcap=1.5, dropout=0.25, impl="native")
    kept = dropped != 0
    assert 0.2 < 1 - kept.double().mean() < 0.3
    torch.testing.assert_close(dropped[kept], exact[kept] / 0.75)


def test_refused_where_no_kernel_has_them():
    tensors = to_tensors(make_arrays(5, 7, (HEADS,), bias=False), torch.float32)
    with pytest.raises(RefusedError, match="no attention sinks"):
        regard.attention(**tensors, impl="sdpa")
    sinks = tensors.pop("sinks")
    with pytest.raises(RefusedError, match="no softcap"):
        regard.attention(**tensors, softcap=3.0, impl="sdpa")
    choice = regard.why(**tensors, softcap=3.0, sinks=sinks)
    assert choice.impl == "native"
    assert "softcap" in choice.reasons["sdpa"]


@pytest.mark.parametrize("softcap", [0, -1.0, float("nan"), float("inf"), "50", True])
def test_softcaps_that_are_refused(softcap):
    tensors = to_tensors(make_arrays(5, 7, None, bias=False), torch.float32)
    with pytest.raises(OptionError, match="softcap"):
        regard.attention(**tensors, softcap=softcap)


def test_sinks_that_are_refused(without_shape_checks):
    tensors = to_tensors(make_arrays(5, 7, None, bias=False), torch.float32)
    for sinks, error in (
        (torch.zeros(HEADS + 1), ShapeError),
        (torch.zeros(BATCH, HEADS, 5), ShapeError),
        (torch.zeros(BATCH, HEADS, 5, 7), ShapeError),
        (torch.zeros(HEADS, dtype=torch.int64), DtypeError),
        (torch.zeros(HEADS, device="meta"), DeviceError),
        ([0.0] * HEADS, DtypeError),
    ):
        with pytest.raises(error, match="sinks"):
            regard.attention(**tensors, sinks=sinks)


def test_arrays_of_numpy(without_shape_checks):
    arrays = make_arrays(5, 7, (HEADS,))
    output = regard.attention(**arrays, softcap=1.5)
    exact = oracle.attention(*list(arrays.values())[:3], None, arrays["bias"], softcap=1.5, sinks=arrays["sinks"])[0]
    assert isinstance(output, np.ndarray)
    np.testing.assert_allclose(output, exact, rtol=0, atol=1e-12)
    seen = regard.observe(**arrays, softcap=1.5)
    assert isinstance(seen.sink_weight, np.ndarray)


# ---- the mechanism ----


def test_mechanism_with_trained_sinks(without_shape_checks):
    mechanism = regard.mechanism("dot_product", heads=HEADS, head_dim=5, softcap=1.5, sinks=True)
    assert dict(mechanism.named_parameters()).keys() == {"sinks"}
    torch.nn.init.normal_(mechanism.sinks)
    tensors = to_tensors(make_arrays(67, 71, None, bias=False), torch.float32)
    output = mechanism(**tensors, mask=masks.causal())
    exact = regard.attention(**tensors, mask=masks.causal(), softcap=1.5, sinks=mechanism.sinks)
    assert torch.equal(output, exact)
    output.sum().backward()
    assert mechanism.sinks.grad.abs().min() > 0
    query, key, _ = tensors.values()
    weights = mechanism.weights(query, key, mask=masks.causal())
    seen = mechanism.observe(**tensors, mask=masks.causal(), rows=[7])
    torch.testing.assert_close(seen.rows[:, :, 0], weights[:, :, 7])
    torch.testing.assert_close(weights.sum(-1) + seen.sink_weight, torch.ones(BATCH, HEADS, 67))
    assert "softcap=1.5, sinks=True" in repr(mechanism)


@pytest.mark.parametrize("paged", [False, True])
def test_mechanism_decodes_step_by_step(paged, without_shape_checks):
    mechanism = regard.mechanism("dot_product", heads=HEADS, head_dim=5, softcap=1.5, sinks=True)
    torch.nn.init.normal_(mechanism.sinks)
    tensors = {
        name: part.detach() for name, part in to_tensors(make_arrays(7, 7, None, bias=False), torch.float32).items()
    }
    whole = mechanism(**tensors, mask=masks.causal())
    state = mechanism.empty_state()
    if paged:
        state = PagedCache.empty(PagePool(KEY_HEADS, 5, 11, page_size=4), BATCH)
    for token in range(7):
        new = {name: part[:, :, token : token + 1] for name, part in tensors.items()}
        output, state = mechanism.step(new["query"], new["key"], new["value"], state, masks.causal())
        torch.testing.assert_close(output, whole[:, :, token : token + 1], rtol=0, atol=1e-5)


def test_layer_trains_its_sinks():
    layer = regard.MultiHeadAttention(20, HEADS, mechanism_options={"softcap": 5.0, "sinks": True})
    sinks = [parameter for name, parameter in layer.named_parameters() if name.endswith("sinks")]
    assert [tuple(one.shape) for one in sinks] == [(HEADS,)]
    output = layer(torch.randn(2, 7, 20))
    output.square().sum().backward()
    assert sinks[0].grad.abs().min() > 0
