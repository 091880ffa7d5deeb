"""``observe`` by the kernels in Triton, against float64 oracles, at prime sizes and at both sides of edges of tiles.

Run by test_tile_programs.py with Triton's interpreter, in a process in which triton is found, and on a GPU in its own.
``python -m pytest tests/kernels/tile_program_checks.py`` runs it alone. Inputs are multiples of 1/16 (see
test_observe.py, which has the tolerances).
"""

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from kernels.test_observe import assert_agrees, tensors
from mask_forms import MASKS, random_cells
from regard import masks, positions
from regard.conformance.oracles import attention as oracle
from regard.errors import RefusedError
from regard.kernels.implementations import triton as implementation
from sixteenths import sixteenths

DEVICE = "cpu" if implementation._is_interpreted() else "cuda"
BATCH, HEADS, KEY_HEADS = 2, 2, 1
STATISTICS = ("output", "lse", "entropy", "received", "top_weights", "rows")
pytestmark = pytest.mark.usefixtures("without_shape_checks")


def tokens(queries: int, keys: int, head_dim: int = 5, value_dim: int = 11, batch: int = BATCH) -> list[np.ndarray]:
    return [
        sixteenths(batch, HEADS, queries, head_dim, seed=1),
        sixteenths(batch, KEY_HEADS, keys, head_dim, seed=2),
        sixteenths(batch, KEY_HEADS, keys, value_dim, seed=3),
    ]


def observe(*inputs: Tensor, **options) -> regard.Observation:
    """Observe on the device, with results on the CPU."""
    moved = {
        name: part.to(DEVICE) if isinstance(part, Tensor | torch.nn.Module) else part for name, part in options.items()
    }
    seen = regard.observe(*(part.to(DEVICE) for part in inputs), **moved, impl="triton")
    return type(seen)(**{name: None if part is None else part.cpu() for name, part in vars(seen).items()})


def exact_for(arrays, mask=None, **options) -> oracle.Observation:
    queries, keys = arrays[0].shape[2], arrays[1].shape[2]
    cells = None if mask is None else mask.dense(queries, keys).numpy()
    return oracle.observe(*arrays, cells, **options)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("lengths", [(5, 7), (63, 65), (64, 64), (65, 129)])
def test_statistics_agree_with_the_oracle(mask, lengths):
    arrays, chosen = tokens(*lengths), MASKS[mask](*lengths)
    seen = observe(*tensors(arrays, torch.float32), mask=chosen, top=3, rows=[lengths[0] - 1, 0])
    exact = exact_for(arrays, chosen, top=3, query_rows=(lengths[0] - 1, 0))
    assert_agrees(seen, exact, torch.float32, terms=sum(lengths) + 10)


def test_packed_texts_are_observed_as_each_alone():
    """Also where texts begin within tiles; tokens of NaN in one text change no bit of another."""
    lengths = (5, 59, 1, 66)
    arrays = [part[:1] for part in tokens(sum(lengths), sum(lengths))]
    mask = masks.from_cu_seqlens(np.cumsum([0, *lengths])) & masks.causal()
    seen = observe(*tensors(arrays, torch.float32), mask=mask, top=2)
    first = 0
    for length in lengths:
        span = slice(first, first + length)
        alone = exact_for([part[:, :, span] for part in arrays], masks.causal(), top=2)
        for name in ("output", "lse", "entropy", "received", "top_weights"):
            close = 4 * 150 * 2**-23 * max(1.0, np.abs(getattr(alone, name)).max())
            ours = getattr(seen, name)[:, :, span].double().numpy()
            np.testing.assert_allclose(ours, getattr(alone, name), rtol=0, atol=close, err_msg=name)
        first = span.stop
    poisoned = [part.copy() for part in arrays]
    for part in poisoned:
        part[:, :, 5:64] = np.nan
    other = observe(*tensors(poisoned, torch.float32), mask=mask, top=2)
    for name in ("output", "lse", "entropy", "received", "top_keys", "top_weights"):
        for span in (slice(0, 5), slice(64, None)):
            assert torch.equal(getattr(other, name)[:, :, span], getattr(seen, name)[:, :, span]), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    arrays = tokens(67, 71, batch=1)
    seen = observe(*tensors(arrays, dtype), mask=masks.causal(), top=3, rows=[0])
    assert_agrees(seen, exact_for(arrays, masks.causal(), top=3, query_rows=(0,)), dtype, terms=150)


@pytest.mark.parametrize(("head_dim", "value_dim"), [(1, 16), (17, 1), (65, 128)])
def test_every_head_dim(head_dim, value_dim):
    arrays = tokens(17, 67, head_dim, value_dim, batch=1)
    seen = observe(*tensors(arrays, torch.float32), mask=masks.window(7, 2), top=2, rows=[5])
    exact = exact_for(arrays, masks.window(7, 2), top=2, query_rows=(5,))
    assert_agrees(seen, exact, torch.float32, terms=90 + 2 * head_dim)


@pytest.mark.parametrize("shape", [(1, 1, 67, 71), (BATCH, 1, 1, 71), (1, HEADS, 67, 1)])
def test_bias_of_a_tensor_with_softcap_and_sinks(shape):
    """A bias of -inf hides a key, as a mask does."""
    bias = sixteenths(*shape, seed=4)
    bias[np.random.default_rng(5).random(shape) < 0.2] = -np.inf
    arrays, whole, sinks = tokens(67, 71), np.broadcast_to(bias, (BATCH, HEADS, 67, 71)), np.array([0.5, -1.25])
    options = {"mask": masks.causal(), "softcap": 2.5}
    seen = observe(
        *tensors(arrays, torch.float32),
        **options,
        bias=torch.from_numpy(bias).float(),
        sinks=torch.from_numpy(sinks).float(),
        top=3,
        rows=[],
    )
    exact = exact_for(arrays, options["mask"], bias=whole, softcap=2.5, sinks=sinks, top=3)
    assert_agrees(seen, exact, torch.float32, terms=150)
    np.testing.assert_allclose(seen.sink_weight.numpy(), exact.sink_weight, rtol=0, atol=1e-5)


@pytest.mark.parametrize("lengths", [(67, 71), (71, 67)])
def test_bias_by_distance(lengths):
    arrays = tokens(*lengths, batch=1)
    slopes = [2.0 ** -(8 * (head + 1) / HEADS) for head in range(HEADS)]  # Press et al. 2022, section 3
    queries, keys = lengths
    distance = np.abs(np.arange(keys) - np.arange(queries)[:, None] - (keys - queries))
    bias = -np.array(slopes)[None, :, None, None] * distance
    seen = observe(*tensors(arrays, torch.float32), bias=positions.ALiBi(HEADS), scale=-1.5, top=1, rows=[0])
    exact = exact_for(arrays, bias=bias, scale=-1.5, top=1, query_rows=(0,))
    assert_agrees(seen, exact, torch.float32, terms=150)


@pytest.mark.parametrize("top", [0, 1, 67, 150])
def test_numbers_of_largest_weights(top):
    """Integers, whose scores are exact: equal weights come in the order of their keys. A pass finds 64."""
    keys = 131
    score = (np.arange(keys) * 37 % 23).astype(float)
    query, key = np.ones((1, 1, 3, 1)), score[None, None, :, None]
    mask = masks.window(40, 90)
    seen = observe(*tensors([query, key, key], torch.float32), mask=mask, scale=1.0, top=top)
    exact = exact_for([query, key, key], mask, scale=1.0, top=top)
    np.testing.assert_array_equal(seen.top_keys.numpy(), exact.top_keys)
    np.testing.assert_allclose(seen.top_weights.numpy(), exact.top_weights, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("mask", ["none", "causal", "padding"])
def test_nonfinite_tokens_affect_only_rows_that_see_them(mask):
    queries, keys = 67, 71
    query, key, value = tokens(queries, keys)
    query[0, 1, 2, 3], key[0, 0, keys - 2, 1], value[1, 0, 3, 0], key[1, 0, 60, 0] = np.nan, np.inf, -np.inf, np.nan
    bad_query = ~np.isfinite(query).all(-1)
    bad_key = ~(np.isfinite(key).all(-1) & np.isfinite(value).all(-1))
    chosen = MASKS[mask](queries, keys)
    allowed = np.ones((BATCH, HEADS, queries, keys), dtype=bool)
    if chosen is not None:
        allowed = allowed & chosen.dense(queries, keys).numpy()
    affected = (bad_query & allowed.any(-1)) | (allowed & bad_key[:, :, None]).any(-1)
    seen = observe(*tensors([query, key, value], torch.float32), mask=chosen, top=2, rows=range(queries))
    for name in ("output", "lse", "entropy", "top_weights", "max_score"):
        statistic = getattr(seen, name).numpy().reshape(BATCH, HEADS, queries, -1)
        assert np.isnan(statistic[affected]).all(), name
        assert not np.isnan(statistic[~affected]).any(), name
    assert (seen.top_keys.numpy()[affected] == -1).all()
    assert np.array_equal(np.isnan(seen.received.numpy()), (affected[..., None] & allowed).any(2))
    # All other results are bitwise equal to those with other tokens in place of the bad ones.
    for filler in (0.0, 3e38):
        clean = [np.where(np.isfinite(part).all(-1, keepdims=True), part, 0.0) for part in (query, key, value)]
        for part in clean[1:]:
            part[bad_key] = filler
        other = observe(*tensors(clean, torch.float32), mask=chosen, top=2)
        for name in ("output", "lse", "entropy", "top_keys", "top_weights", "max_score"):
            rows = torch.from_numpy(~affected)
            assert torch.equal(getattr(seen, name)[rows], getattr(other, name)[rows]), (name, filler)


def test_overflowing_scores_and_rows_without_keys():
    query = torch.tensor([1e30, -1e30, 1.0])[None, None, :, None]
    key = torch.tensor([1.0, 1e30, 2.0])[None, None, :, None]
    seen = observe(query, key, torch.ones(1, 1, 3, 2), scale=1.0, top=3, rows=[0, 1, 2])
    assert seen.entropy[0, 0, 0].isnan()
    assert seen.top_keys[0, 0].tolist() == [[-1, -1, -1], [0, 2, -1], [1, 2, 0]]
    assert seen.received.isnan().all()
    mask, sinks = masks.padding([0, 7]) & masks.causal(align="start"), torch.zeros(HEADS)
    seen = observe(*tensors(tokens(5, 7), torch.float32), mask=mask, sinks=sinks, top=3, rows=[0])
    for name in ("output", "entropy", "received", "top_weights", "rows", "sink_weight"):
        assert not getattr(seen, name)[0].any(), name
    assert (seen.lse[0] == -torch.inf).all()
    assert (seen.max_score[0] == -torch.inf).all()
    assert (seen.top_keys[0] == -1).all()


@pytest.mark.parametrize("empty", ["batch", "queries", "keys", "value_dim"])
def test_sizes_of_zero(empty):
    sizes = {"batch": 2, "queries": 3, "keys": 5, "value_dim": 7} | {empty: 0}
    query = torch.randn(sizes["batch"], 4, sizes["queries"], 3)
    key = torch.randn(sizes["batch"], 2, sizes["keys"], 3)
    value = torch.randn(sizes["batch"], 2, sizes["keys"], sizes["value_dim"])
    seen = observe(query, key, value, top=2)
    reference = regard.observe(query, key, value, top=2, impl="reference")
    for name in ("output", "lse", "entropy", "received", "top_keys", "top_weights", "max_score"):
        torch.testing.assert_close(getattr(seen, name), getattr(reference, name), msg=name)


@pytest.mark.parametrize("mask", ["none", "cells"])
def test_weights_of_asked_rows(mask):
    """More than a program computes, of all tiles, in any order, some twice; with sinks, which take their share."""
    queries, keys = 131, 67
    rows = np.random.default_rng(6).integers(0, queries, 97)
    arrays, chosen, sinks = tokens(queries, keys), MASKS[mask](queries, keys), np.array([0.5, -1.25])
    seen = observe(
        *tensors(arrays, torch.float32),
        mask=chosen,
        sinks=torch.from_numpy(sinks).float(),
        top=0,
        rows=torch.from_numpy(rows),
    )
    exact = exact_for(arrays, chosen, sinks=sinks, query_rows=tuple(rows))
    np.testing.assert_allclose(seen.rows.double().numpy(), exact.rows, rtol=0, atol=4 * 210 * 2**-23)


# ---- gradients ----


def distinct_tokens(queries: int, keys: int) -> list[np.ndarray]:
    """Tokens without equal scores, which would leave open whose weight is among the largest."""
    random = np.random.default_rng(11)
    shapes = (BATCH, HEADS, queries, 5), (BATCH, KEY_HEADS, keys, 5), (BATCH, KEY_HEADS, keys, 11)
    return [random.standard_normal(shape).astype(np.float32).astype(float) for shape in shapes]


def loss(seen: regard.Observation) -> Tensor:
    """Return a scalar that depends on all statistics."""
    total = torch.zeros((), dtype=torch.float64)
    for seed, name in enumerate((*STATISTICS, "sink_weight")):
        part = getattr(seen, name)
        if part is not None:
            finite = part.detach().isfinite()
            upstream = torch.from_numpy(sixteenths(*part.shape, seed=seed))
            total = total + (part.double().masked_fill(~finite, 0.0) * upstream).sum()
    return total


def gradients_of(impl: str, dtype: torch.dtype, arrays, **options) -> list[Tensor]:
    """Return the gradients of ``loss``: of query, key, value, and of the tensors and parameters among the options."""
    leaves = [torch.from_numpy(array).to(dtype).requires_grad_() for array in arrays]
    named = dict(options)
    for name, option in options.items():
        if isinstance(option, np.ndarray):
            named[name] = torch.from_numpy(option).to(dtype).requires_grad_()
            leaves.append(named[name])
        elif isinstance(option, torch.nn.Module):
            named[name] = option.to(dtype)
            option.zero_grad()
    seen = observe(*leaves[:3], **named) if impl == "triton" else regard.observe(*leaves[:3], **named, impl=impl)
    loss(seen).backward()
    modules = [option for option in options.values() if isinstance(option, torch.nn.Module)]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    return [leaf.grad.double().cpu().clone() for leaf in (*leaves, *parameters)]


def assert_gradients_agree(arrays, **options) -> None:
    """Against torch's autograd of the reference in float64, which shares no formula with the kernels."""
    exact = gradients_of("reference", torch.float64, arrays, **options)
    ours = gradients_of("triton", torch.float32, arrays, **options)
    assert len(ours) == len(exact)
    for number, (one, other) in enumerate(zip(ours, exact, strict=True)):
        largest = max(1.0, float(other.abs().max()))
        torch.testing.assert_close(one, other, rtol=0, atol=2e-5 * largest, msg=lambda text, at=number: f"{at}: {text}")


@pytest.mark.parametrize("mask", ["none", "causal", "cells"])
def test_gradients_of_all_statistics(mask):
    lengths = (67, 71)
    assert_gradients_agree(distinct_tokens(*lengths), mask=MASKS[mask](*lengths), top=2, rows=[0, 66, 64, 0])


@pytest.mark.parametrize("shape", [(1, HEADS, 67, 71), (BATCH, 1, 67, 1), (1, 1, 1, 71)])
def test_gradients_of_a_bias_with_softcap_and_sinks(shape):
    bias = sixteenths(*shape, seed=7)
    bias[np.random.default_rng(5).random(shape) < 0.1] = -np.inf
    options = {"bias": bias, "sinks": np.array([0.5, -1.25]), "softcap": 2.5, "mask": masks.causal()}
    assert_gradients_agree(distinct_tokens(67, 71), top=2, rows=range(67), **options)


@pytest.mark.parametrize("lengths", [(67, 71), (71, 67)])
@pytest.mark.parametrize("mask", [None, masks.causal()])
def test_gradients_of_a_bias_by_distance(lengths, mask):
    torch.manual_seed(8)
    bias = positions.T5Buckets(HEADS)
    torch.nn.init.normal_(bias.weight)
    assert_gradients_agree(tokens(*lengths), top=0, bias=bias, mask=mask, rows=[66, 2, 66, 66])


def test_gradient_of_the_output_alone_agrees_with_the_oracle():
    lengths = (67, 71)
    arrays, mask = tokens(*lengths), masks.window(9, 5)
    leaves = [part.requires_grad_() for part in tensors(arrays, torch.float32)]
    upstream = sixteenths(BATCH, HEADS, lengths[0], 11, seed=9)
    observe(*leaves, mask=mask, top=0).output.backward(torch.from_numpy(upstream).float())
    exact = oracle.backward(*arrays, upstream, mask.dense(*lengths).numpy())
    for leaf, name in zip(leaves, ("query", "key", "value"), strict=True):
        np.testing.assert_allclose(leaf.grad.double().numpy(), getattr(exact, name), rtol=0, atol=1e-4, err_msg=name)


def test_hidden_tokens_get_zero_gradients_and_nan_rows_give_none():
    queries, keys = 67, 71
    arrays = tokens(queries, keys)
    arrays[1][0, 0, 70], arrays[2][1, 0, 69] = np.nan, np.inf
    leaves = [part.requires_grad_() for part in tensors(arrays, torch.float32)]
    mask = masks.causal() & masks.padding([70, 69])  # which hides both from every query
    loss(observe(*leaves, mask=mask, top=2)).backward()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)
    assert not leaves[1].grad[0, 0, 70].any()
    assert not leaves[2].grad[1, 0, 69:].any()
    assert leaves[1].grad[0, 0, :69].any()
    leaves = [part.detach().requires_grad_() for part in leaves]
    loss(observe(*leaves, mask=masks.causal(), top=2)).backward()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)
    assert not leaves[0].grad[0, :, 66].any()


def test_bits_repeat():
    def compute() -> list[Tensor]:
        leaves = [part.requires_grad_() for part in tensors(tokens(67, 131), torch.float32)]
        seen = observe(*leaves, mask=MASKS["cells"](67, 131), top=2, rows=[5, 66, 5, 5])
        loss(seen).backward()
        return [seen.output, seen.received, seen.top_weights, *(leaf.grad for leaf in leaves)]

    for first, other in zip(compute(), compute(), strict=True):
        assert torch.equal(first, other)


def test_second_derivatives_are_refused():
    leaves = [part.requires_grad_() for part in tensors(tokens(5, 7), torch.float32)]
    with pytest.raises(RefusedError, match="no second derivatives"):
        torch.autograd.grad(observe(*leaves, top=0).output.sum(), leaves[0], create_graph=True)


def test_masks_of_a_call_are_lowered_once():
    mask = masks.keep(random_cells(65, 67))
    first, other = (mask.lower_to_device(regard.contract.Frame(65, 67), torch.device(DEVICE)) for _ in range(2))
    assert first is other
