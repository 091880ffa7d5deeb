"""All statistics of ``observe`` are differentiable: gradients against finite differences, in tiles and untiled."""

from functools import cache

import numpy as np
import pytest
import torch

import regard
from capabilities import scale_head_dim
from oracles import differences
from regard import masks
from regard.conformance.oracles import attention as oracle
from regard.kernels.reference import query_tiles

BATCH, HEADS, QUERIES, KEYS, HEAD_DIM = 1, 2, 5, 7, 3
SHAPES = [(BATCH, HEADS, QUERIES, HEAD_DIM), (BATCH, HEADS, KEYS, HEAD_DIM), (BATCH, HEADS, KEYS, 2)]
STATISTICS = ("output", "lse", "entropy", "received", "top_weights", "rows")
ROWS, STEP = (0, 3, 4), 1e-3
MASKS = {"none": None, "causal, padding, an empty row": masks.causal(align="start") & masks.padding([6], side="left")}


@pytest.fixture(params=["whole", "in tiles"])
def tiling(request, monkeypatch):
    if request.param == "in tiles":
        monkeypatch.setattr(query_tiles, "_TILE_BYTES", 2 * BATCH * HEADS * KEYS * 8)


@cache
def finite_differences_of(mask):
    """Query, key and value; and for each statistic its derivative with respect to each of their elements."""
    allowed = None if MASKS[mask] is None else MASKS[mask].dense(QUERIES, KEYS).numpy()
    points = [np.random.default_rng(7).standard_normal(shape) for shape in SHAPES]

    def statistics():
        observation = oracle.observe(*points, allowed, top=2, query_rows=ROWS)
        arrays = [getattr(observation, statistic) for statistic in STATISTICS]
        return {name: np.where(np.isfinite(one), one, 0.0) for name, one in zip(STATISTICS, arrays, strict=True)}

    derivatives = {name: [np.zeros((*shape, *one.shape)) for shape in SHAPES] for name, one in statistics().items()}
    for number, point in enumerate(points):
        for index in np.ndindex(point.shape):
            original = point[index]
            for steps, weight in differences.STENCIL:
                point[index] = original + steps * STEP
                for name, one in statistics().items():
                    derivatives[name][number][index] += weight * one / (12 * STEP)
            point[index] = original
    return points, derivatives


@pytest.mark.usefixtures("tiling")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("statistic", STATISTICS)
def test_gradients_agree_with_finite_differences(statistic, mask):
    points, changes = finite_differences_of(mask)
    for impl in ("native", "reference"):
        leaves = [torch.from_numpy(point).requires_grad_() for point in points]
        ours = getattr(regard.observe(*leaves, mask=MASKS[mask], top=2, rows=ROWS, impl=impl), statistic)
        upstream = torch.randn_like(ours)
        ours.backward(upstream.masked_fill(~ours.isfinite(), 0.0))
        for leaf, change in zip(leaves, changes[statistic], strict=True):
            ours = np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy()
            exact = (change * upstream.numpy()).sum(tuple(range(leaf.dim(), change.ndim)))
            np.testing.assert_allclose(ours, exact, atol=1e-8, err_msg=impl)


@pytest.mark.usefixtures("tiling")
@pytest.mark.parametrize("mechanism", [entry.name for entry in regard.catalogue()])
def test_parameters_get_gradients_from_statistics(mechanism):
    """Through the output, parameters have the same gradients from observe as from forward, or none."""
    size = scale_head_dim(mechanism, HEAD_DIM)
    layer = regard.mechanism(mechanism, heads=HEADS, head_dim=size).double()
    query, key, value = (torch.randn(BATCH, HEADS, n, size, dtype=torch.float64) for n in (QUERIES, KEYS, KEYS))
    for leaf in (query, key, value):
        leaf.requires_grad_()
    expected = [query, key, value, *layer.parameters()]
    upstream = torch.randn(BATCH, HEADS, QUERIES, size, dtype=torch.float64)
    mask = masks.padding([3]) if layer.refuses_mask(masks.window(0, 0)) else masks.window(3, 2)
    one = torch.autograd.grad(layer.observe(query, key, value, mask).output, expected, upstream, allow_unused=True)
    other = torch.autograd.grad(layer(query, key, value, mask), expected, upstream, allow_unused=True)
    for ours, theirs in zip(one, other, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("tiling")
def test_frozen_inputs_and_a_trained_parameter():
    layer = regard.mechanism("luong_general", heads=HEADS, head_dim=HEAD_DIM).double()
    query, key, value = (torch.randn(BATCH, HEADS, n, HEAD_DIM, dtype=torch.float64) for n in (QUERIES, KEYS, KEYS))
    layer.observe(query, key, value).entropy.sum().backward()
    assert layer.weight.grad.any()


def test_top_beyond_the_visible_keys():
    query, key, value = (torch.randn(2, 3, n, 5) for n in (4, 3, 3))
    observation = regard.observe(query, key, value, mask=masks.keep(torch.tensor([[True, False, True]])), top=7)
    assert observation.top_keys.shape == (2, 3, 4, 7)
    assert (observation.top_keys[..., :2].sort(-1).values == torch.tensor([0, 2])).all()
    assert (observation.top_keys[..., 2:] == -1).all()
    assert not observation.top_weights[..., 2:].any()
    assert regard.observe(query, key, value, top=0).top_keys.shape == (2, 3, 4, 0)
    assert regard.observe(query, key, value).rows is None
    assert regard.observe(query, key, value, rows=[]).rows.shape == (2, 3, 0, 3)


def test_equal_weights():
    """Keys of equal weights may come in any order, each of them once."""
    zero = torch.zeros(1, 1, 3, 5)
    observation = regard.observe(zero, zero, zero, top=3)
    assert (observation.top_keys.sort(-1).values == torch.arange(3)).all()
    torch.testing.assert_close(observation.top_weights, torch.full((1, 1, 3, 3), 1 / 3))
    torch.testing.assert_close(observation.entropy, torch.full((1, 1, 3), float(np.log(3))))


def test_forms_of_the_rows_argument():
    query, key, value = (torch.randn(1, 2, n, 5) for n in (4, 7, 7))
    whole = regard.observe(query, key, value, rows=range(4)).rows
    for rows in (
        [3, 0, 3],
        (3, 0, 3),
        torch.tensor([3, 0, 3]),
        torch.tensor([3, 0, 3], dtype=torch.uint8),
        [-1, -4, 3],
    ):
        assert torch.equal(regard.observe(query, key, value, rows=rows).rows, whole[:, :, [3, 0, 3]])


def test_half_precision_is_computed_in_float32_also_under_autocast():
    query, key, value = torch.randn(3, 1, 2, 5, 7)
    plain = regard.observe(query, key, value)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = regard.observe(query, key, value)
    assert inside.lse.dtype == torch.float32
    assert torch.equal(inside.lse, plain.lse)
    assert torch.equal(inside.output, plain.output)
