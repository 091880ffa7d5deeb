"""``observe`` in "native": every statistic against the float64 oracle, at prime sizes and at the edges of tiles.

Inputs are multiples of 1/16 below 8, which every dtype represents exactly, so all dtypes share one oracle. In float64
and float32 a number that is computed by sums of L terms has an error of about L eps; bfloat16 computes powers of two by
a polynomial of relative error 3e-6 (see simd.h), and all statistics are computed in float32.
"""

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from any_threads import assert_same_bits
from mask_forms import BATCH, MASKS
from oracles import differences
from regard import Observation, masks, positions
from regard.conformance.oracles import attention as oracle
from regard.kernels.operators import observe_op
from regard.kernels.operators.kernel_arguments import to_kernel_arguments
from regard.validation import make_request
from sampled_parameters import parametrize_sample
from sixteenths import sixteenths

HEADS, KEY_HEADS = 4, 2
STATISTICS = ("output", "lse", "entropy", "received", "top_weights", "rows")
LENGTHS = [(1, 1), (5, 7), (63, 65), (64, 64), (65, 63), (7, 257), (131, 3)]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def tokens(queries: int, keys: int, head_dim: int = 5, value_dim: int = 11) -> list[np.ndarray]:
    return [
        sixteenths(BATCH, HEADS, queries, head_dim, seed=1),
        sixteenths(BATCH, KEY_HEADS, keys, head_dim, seed=2),
        sixteenths(BATCH, KEY_HEADS, keys, value_dim, seed=3),
    ]


def tensors(arrays: list[np.ndarray], dtype: torch.dtype) -> list[Tensor]:
    """Random inputs in the memory layout of layers, (batch, length, heads, head_dim)."""
    result = [torch.from_numpy(array).to(dtype) for array in arrays]
    return [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in result]


def observe(*inputs, **options) -> Observation:
    return regard.observe(*inputs, impl="native", **options)


def choose_rows(queries: int) -> list[int]:
    return [queries - 1, 0, queries // 2]


@cache
def expected(queries: int, keys: int, mask: str, top: int) -> oracle.Observation:
    allowed = MASKS[mask](queries, keys)
    cells = None if allowed is None else allowed.dense(queries, keys).numpy()
    return oracle.observe(*tokens(queries, keys), cells, top=top, query_rows=tuple(choose_rows(queries)))


def assert_agrees(observation: Observation, exact: oracle.Observation, dtype: torch.dtype, terms: int) -> None:
    wide = torch.finfo(torch.float32 if dtype.itemsize == 2 else dtype).eps
    close = 4 * terms * wide + (6e-6 if dtype == torch.bfloat16 else 0)
    rounding = {torch.bfloat16: 8, torch.float16: 2}.get(dtype, 0) * torch.finfo(dtype).eps
    for name in (*STATISTICS, "max_score"):
        ours, theirs = getattr(observation, name), getattr(exact, name)
        assert ours.dtype == (dtype if name == "output" else torch.promote_types(dtype, torch.float32))
        largest = max(1.0, np.abs(np.where(np.isfinite(theirs), theirs, 0)).max(initial=0.0))
        allowed = (close + (rounding if name == "output" else 0)) * largest
        np.testing.assert_allclose(ours.double().numpy(), theirs, rtol=0, atol=allowed, err_msg=name)
    # Keys of nearly equal weights may be swapped; each still has the weight that is reported for it.
    result = np.take_along_axis(exact.weights, np.maximum(observation.top_keys.numpy(), 0), axis=-1)
    there = observation.top_keys.numpy() >= 0
    assert np.array_equal(there, exact.top_keys >= 0)
    np.testing.assert_allclose(np.where(there, result, 0), exact.top_weights, rtol=0, atol=close)


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
def test_statistics_agree_with_the_oracle(mask, dtype):
    for queries, keys in LENGTHS:
        if mask == "tiles" and keys < 5:
            continue
        query, key, value = tensors(tokens(queries, keys), dtype)
        observation = observe(query, key, value, mask=MASKS[mask](queries, keys), top=8, rows=choose_rows(queries))
        assert_agrees(observation, expected(queries, keys, mask, 8), dtype, terms=keys + queries + 10)


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [1, 17, 64, 129, 256, 576])
def test_every_head_dim(head_dim, dtype):
    queries, keys = 67, 71
    inputs = tokens(queries, keys, head_dim, value_dim=641 - head_dim)
    exact = oracle.observe(*inputs, np.tri(queries, keys, 4, dtype=bool), top=3, query_rows=(66,))
    observation = observe(*tensors(inputs, dtype), mask=masks.causal(), top=3, rows=[66])
    assert_agrees(observation, exact, dtype, terms=keys + queries + 2 * head_dim)


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("shape", [(1, 1, 67, 71), (BATCH, 1, 1, 71), (1, HEADS, 67, 1), (BATCH, HEADS, 67, 71)])
def test_bias_shapes(shape):
    """A bias of -inf hides a key, as a mask does."""
    bias = sixteenths(*shape, seed=4)
    bias[np.random.default_rng(5).random(shape) < 0.2] = -np.inf
    inputs = tokens(67, 71)
    exact = oracle.observe(*inputs, np.tri(67, 71, 4, dtype=bool), np.broadcast_to(bias, (BATCH, HEADS, 67, 71)))
    observation = observe(
        *tensors(inputs, torch.float32), mask=masks.causal(), bias=torch.from_numpy(bias).float(), rows=[]
    )
    assert_agrees(observation, exact, torch.float32, terms=150)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("scale", [-1.5, 0.0, 0.25, 1e-60])
@pytest.mark.parametrize("position", [None, positions.ALiBi(HEADS)])
def test_scales_and_distance_biases(scale, position):
    inputs = tokens(67, 71)
    slopes = [2.0 ** -(8 * (head + 1) / HEADS) for head in range(HEADS)]  # Press et al. 2022, section 3
    distance = np.abs(np.arange(71) - np.arange(67)[:, None] - 4)
    bias = None if position is None else -np.array(slopes)[None, :, None, None] * distance
    exact = oracle.observe(*inputs, bias=bias, scale=scale, query_rows=(0,))
    observation = observe(*tensors(inputs, torch.float32), bias=position, scale=scale, rows=[0])
    assert_agrees(observation, exact, torch.float32, terms=150)


# ---- the largest weights ----


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("top", [0, 1, 8, 64, 131, 150])
def test_numbers_of_largest_weights(top):
    inputs = tokens(67, 131)
    observation = observe(*tensors(inputs, torch.float64), mask=masks.window(40, None), top=top)
    exact = oracle.observe(*inputs, masks.window(40, None).dense(67, 131).numpy(), top=top)
    np.testing.assert_array_equal(observation.top_keys.numpy(), exact.top_keys)
    np.testing.assert_allclose(observation.top_weights.numpy(), exact.top_weights, rtol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["equal", "rising", "falling", "in turn", "by halves"])
def test_equal_weights_are_ordered_by_key(order, dtype):
    """700 keys are three groups of tiles; all scores are small integers, so equal scores are bitwise equal."""
    keys = 700
    index = np.arange(keys)
    scores = {
        "equal": 0 * index,
        "rising": index // 16,
        "falling": -(index // 16),
        "in turn": index % 7,
        "by halves": np.minimum(index, keys - index) // 16,
    }[order].astype(float)
    query = torch.ones(1, 1, 3, 1, dtype=dtype)
    key = torch.from_numpy(scores).to(dtype)[None, None, :, None]
    best = np.lexsort((index, -scores))[:20]
    for mask, seen_keys in ((None, best), (masks.keep(torch.ones(1, keys, dtype=torch.bool)), best)):
        observation = regard.observe(query, key, key, mask=mask, scale=1.0, top=20, impl="native")
        assert (observation.top_keys.numpy() == seen_keys).all()


# ---- NaN, Inf and empty rows ----


def inputs_with_nonfinite_tokens(queries: int, keys: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Return tokens with some NaN or Inf, and flags by head for those queries and keys (in key or value)."""
    query, key, value = tokens(queries, keys)
    query[0, 1, 2, 3], key[0, 0, keys - 2, 1], value[1, 1, 3, 0], key[1, 0, 0, 0] = np.nan, np.inf, -np.inf, np.nan
    bad_query = ~np.isfinite(query).all(-1)
    bad_key = ~(np.isfinite(key).all(-1) & np.isfinite(value).all(-1))
    return [query, key, value], bad_query, bad_key.repeat(HEADS // KEY_HEADS, axis=1)


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["none", "causal", "padding", "cells", "window"])
def test_nonfinite_tokens_affect_only_rows_that_see_them(mask, dtype):
    queries, keys = 67, 71
    inputs, bad_query, bad_key = inputs_with_nonfinite_tokens(queries, keys)
    allowed_mask = MASKS[mask](queries, keys)
    allowed = np.ones((BATCH, HEADS, queries, keys), dtype=bool)
    if allowed_mask is not None:
        allowed = allowed & allowed_mask.dense(queries, keys).numpy()
    affected = (bad_query & allowed.any(-1)) | (allowed & bad_key[:, :, None]).any(-1)
    assert affected.any()
    observation = observe(*tensors(inputs, dtype), mask=allowed_mask, top=5, rows=range(queries))
    for name in ("output", "lse", "entropy", "top_weights", "max_score"):
        statistic = getattr(observation, name).double().numpy().reshape(BATCH, HEADS, queries, -1)
        assert np.isnan(statistic[affected]).all(), name
        assert not np.isnan(statistic[~affected]).any(), name
    assert (observation.top_keys.numpy()[affected] == -1).all()
    assert np.array_equal(np.isnan(observation.received.numpy()), (affected[..., None] & allowed).any(2))
    assert np.array_equal(np.isnan(observation.rows.numpy()), affected[..., None] & allowed)
    assert not observation.rows.numpy()[~allowed].any()
    # All other results are bitwise equal to those with zeros in place of the bad tokens.
    finite = [np.where(np.isfinite(array).all(-1, keepdims=True), array, 0.0) for array in inputs]
    bad_pair = ~(np.isfinite(inputs[1]).all(-1) & np.isfinite(inputs[2]).all(-1))
    finite[1][bad_pair], finite[2][bad_pair] = 0, 0
    clean = observe(*tensors(finite, dtype), mask=allowed_mask, top=5, rows=range(queries))
    for name in ("output", "lse", "entropy", "top_keys", "top_weights", "rows"):
        assert torch.equal(
            getattr(observation, name)[torch.from_numpy(~affected)], getattr(clean, name)[torch.from_numpy(~affected)]
        )


@pytest.mark.usefixtures("without_shape_checks")
def test_overflowing_scores():
    """A score of Inf makes its query NaN; a score of -Inf hides the key."""
    query = torch.tensor([1e30, -1e30, 1.0])[None, None, :, None]
    key = torch.tensor([1.0, 1e30, 2.0])[None, None, :, None]
    observation = observe(query, key, torch.ones(1, 1, 3, 2), scale=1.0, top=3, rows=[0, 1, 2])
    assert observation.entropy[0, 0, 0].isnan()
    assert observation.rows[0, 0, 0].isnan().all()
    assert observation.top_keys[0, 0].tolist() == [[-1, -1, -1], [0, 2, -1], [1, 2, 0]]
    assert observation.rows[0, 0, 1].tolist() == [1, 0, 0]
    assert observation.received.isnan().all()


@pytest.mark.usefixtures("poison_scratch_memory", "without_shape_checks")
def test_empty_rows():
    query, key, value = tensors(tokens(67, 71), torch.float32)
    mask = masks.padding([0, 71]) & masks.causal(align="start")
    observation = observe(query, key, value, mask=mask, top=3, rows=[0, 66])
    for part in (
        observation.output,
        observation.entropy,
        observation.received,
        observation.top_weights,
        observation.rows,
    ):
        assert not part[0].any()
    assert (observation.lse[0] == -torch.inf).all()
    assert (observation.max_score[0] == -torch.inf).all()
    assert (observation.top_keys[0] == -1).all()
    torch.testing.assert_close(observation.received[1].sum(-1), torch.full((HEADS,), 67.0))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("empty", ["batch", "queries", "keys", "value_dim"])
def test_sizes_of_zero(empty):
    sizes = {"batch": 2, "queries": 3, "keys": 5, "value_dim": 7} | {empty: 0}
    query = torch.randn(sizes["batch"], 4, sizes["queries"], 3, requires_grad=True)
    key = torch.randn(sizes["batch"], 2, sizes["keys"], 3)
    value = torch.randn(sizes["batch"], 2, sizes["keys"], sizes["value_dim"])
    rows = [] if empty == "queries" else [2]
    seen, reference = (
        regard.observe(query, key, value, top=2, rows=rows, impl=impl) for impl in ("native", "reference")
    )
    for name in ("output", "lse", "entropy", "received", "top_keys", "top_weights", "rows", "max_score"):
        ours, theirs = getattr(seen, name), getattr(reference, name)
        torch.testing.assert_close(ours.detach(), theirs.detach(), msg=name)
    (gradient,) = torch.autograd.grad(seen.entropy.sum() + seen.received.sum(), query)
    assert gradient.shape == query.shape


# ---- determinism ----


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_bits_with_any_number_of_threads(dtype):
    query, key, value = tensors(tokens(321, 700), dtype)

    def compute():
        seen = observe(query, key, value, mask=masks.causal(), top=5, rows=[7, 300])
        return [getattr(seen, name) for name in (*STATISTICS, "top_keys")]

    assert_same_bits(compute)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("dtype", DTYPES)
def test_output_equals_that_of_attention(dtype):
    query, key, value = tensors(tokens(131, 257), dtype)
    observation = observe(query, key, value, mask=masks.causal())
    assert torch.equal(observation.output, regard.attention(query, key, value, mask=masks.causal(), impl="native"))
    assert observation.output.transpose(1, 2).is_contiguous()


# ---- gradients ----


def make_leaves(queries: int, keys: int) -> list[Tensor]:
    return [torch.from_numpy(array).requires_grad_() for array in tokens(queries, keys, 3, 2)]


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "assert_gradients",
    [
        pytest.param(differences.assert_directional_derivatives, id="along directions"),
        pytest.param(differences.assert_gradients_elementwise, id="element by element", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("mask", [None, masks.causal(align="start") & masks.padding([6, 7], side="left")])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_gradients_agree_with_finite_differences(statistic, mask, assert_gradients):
    leaves = make_leaves(5, 7)
    allowed = None if mask is None else mask.dense(5, 7).numpy()
    actual = getattr(observe(*leaves, mask=mask, top=2, rows=[0, 3, 4, 3]), statistic)
    upstream = sixteenths(*actual.shape, seed=6)
    finite = actual.detach().isfinite()
    (actual.masked_fill(~finite, 0.0) * torch.from_numpy(upstream)).sum().backward()

    def scalar(*points: np.ndarray) -> float:
        theirs = getattr(oracle.observe(*points, allowed, top=2, query_rows=(0, 3, 4, 3)), statistic)
        return float((np.where(finite, theirs, 0.0) * upstream).sum())

    ours = [np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy() for leaf in leaves]
    assert_gradients(scalar, [leaf.detach().numpy() for leaf in leaves], ours, atol=1e-8)


def loss(observation: Observation) -> Tensor:
    """Return a scalar that depends on all statistics."""
    total = torch.zeros((), dtype=observation.lse.dtype)
    for seed, name in enumerate(STATISTICS):
        part = getattr(observation, name).to(total.dtype)
        there = part.detach().isfinite()
        total = total + (part.masked_fill(~there, 0.0) * torch.from_numpy(sixteenths(*part.shape, seed=seed))).sum()
    return total


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("mask", ["none", "causal", "padding", "cells", "tiles"])
def test_gradients_of_all_statistics_across_tiles(mask):
    """Against torch's autograd of the reference, which shares no formula with the kernel."""
    queries, keys = 67, 131
    bias = torch.from_numpy(sixteenths(1, HEADS, queries, keys, seed=7))
    bias[torch.rand(bias.shape) < 0.1] = -torch.inf
    results = []
    for impl in ("native", "reference"):
        leaves = [*make_leaves(queries, keys), bias.clone().requires_grad_()]
        options = {"mask": MASKS[mask](queries, keys), "bias": leaves[3], "top": 3, "rows": [0, 66, 64, 0]}
        loss(regard.observe(*leaves[:3], impl=impl, **options)).backward()
        results.append([leaf.grad for leaf in leaves])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("without_shape_checks")
def test_distance_bias_gets_gradients_from_statistics():
    query, key, value = tensors(tokens(67, 71), torch.float64)
    results = []
    for impl in ("native", "reference"):
        torch.manual_seed(8)
        bias = positions.T5Buckets(HEADS).double()
        torch.nn.init.normal_(bias.weight)
        regard.observe(query, key, value, bias=bias, impl=impl).entropy.square().sum().backward()
        results.append(bias.weight.grad)
    torch.testing.assert_close(*results, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("without_shape_checks")
def test_nan_rows_are_excluded_from_gradients():
    inputs, bad_query, bad_key = inputs_with_nonfinite_tokens(67, 71)
    affected = torch.from_numpy(bad_query | (np.tri(67, 71, 4, dtype=bool) & bad_key[:, :, None]).any(-1))
    leaves = [tensor.requires_grad_() for tensor in tensors(inputs, torch.float64)]
    loss(observe(*leaves, mask=masks.causal(), rows=[3])).backward()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)
    assert not leaves[0].grad[affected].any()
    assert leaves[0].grad[~affected].any()


# ---- torch's operators ----


@pytest.mark.usefixtures("without_shape_checks")
@parametrize_sample("rows, has_sinks", [None, torch.tensor([0, 4])], [False, True])
def test_operator_passes_opcheck(rows, has_sinks):
    leaves = make_leaves(5, 7)
    more = {"sinks": torch.zeros(1, HEADS, 1, 1, requires_grad=True), "softcap": 1.5} if has_sinks else {}
    terms = to_kernel_arguments(make_request(*leaves, mask=masks.causal(), bias=None, scale=None, **more))
    torch.library.opcheck(torch.ops.regard.observe.default, (*leaves, 3, rows, *terms))


@pytest.mark.usefixtures("without_shape_checks")
def test_operator_and_eager_path_are_equal():
    results = []
    for function in (torch.ops.regard.observe.default, observe_op.OBSERVE.compute_with_grad):
        leaves = make_leaves(67, 71)
        terms = to_kernel_arguments(make_request(*leaves, mask=masks.causal(), bias=None, scale=None))
        columns = function(*leaves, 3, torch.tensor([5, 66]), *terms)
        output, lse, entropy, received, top_keys, top_weights, rows, *_ = columns
        loss(Observation(output, lse, entropy, received, top_keys, top_weights, rows)).backward()
        results.append([*(column.detach() for column in columns), *(leaf.grad for leaf in leaves)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
