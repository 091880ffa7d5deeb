"""The kernels of chosen blocks: attention and gradients against the oracle, and the choice by weights against NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from kernels.opcheck_cases import parametrize_opcheck
from regard.conformance.oracles import attention as oracle
from regard.kernels.extension import native
from regard.kernels.operators.block_importance_op import choose_blocks
from regard.kernels.operators.chosen_blocks_op import CHOSEN_BLOCKS, CHOSEN_BLOCKS_BACKWARD

SCALE = 0.3


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def make_chosen(sizes: tuple[int, ...], keys: int, block: int, stop: torch.Tensor | None, seed: int) -> torch.Tensor:
    """Some blocks before the own one of each query, (batch, heads, queries, blocks)."""
    last = (torch.arange(sizes[2]) + keys - sizes[2]).expand(sizes[0], -1)
    last = last if stop is None else torch.minimum(last, stop[:, None] - 1)
    before = torch.arange(-(-keys // block)) < torch.div(last, block, rounding_mode="floor")[:, None, :, None]
    return (random(*sizes, before.shape[3], seed=seed) > 0) & before


def allowed_keys(chosen: torch.Tensor, keys: int, block: int, stop: torch.Tensor | None) -> np.ndarray:
    """The keys of chosen blocks, and those of the own block up to the query."""
    allowed = np.zeros((*chosen.shape[:3], keys), dtype=bool)
    for batch, head, row in np.ndindex(*chosen.shape[:3]):
        last = row + keys - chosen.shape[2]
        last = last if stop is None else min(last, int(stop[batch]) - 1)
        visible = np.arange(max(0, last + 1)) // block
        allowed[batch, head, row, : len(visible)] = (visible == last // block) | chosen[batch, head, row].numpy()[
            visible
        ]
    return allowed


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 2),
    heads=st.sampled_from([(1, 1), (3, 3), (4, 2), (3, 1)]),
    queries=st.sampled_from([1, 5, 63, 64, 67, 131, 211]),
    keys=st.sampled_from([1, 7, 64, 65, 131, 199, 257]),
    block=st.sampled_from([64, 128]),
    sizes=st.sampled_from([(1, 1), (7, 3), (16, 19), (65, 33)]),
    stopped=st.booleans(),
    seed=st.integers(0, 99),
)
def test_agrees_with_the_oracle(
    batch: int,
    heads: tuple[int, int],
    queries: int,
    keys: int,
    block: int,
    sizes: tuple[int, int],
    stopped: bool,
    seed: int,
) -> None:
    query = random(batch, queries, heads[0], sizes[0], seed=seed, dtype=torch.float64).transpose(1, 2)
    key = random(batch, heads[1], keys, sizes[0], seed=seed + 1, dtype=torch.float64)
    value = random(batch, keys, heads[1], sizes[1], seed=seed + 2, dtype=torch.float64).transpose(1, 2)
    stop = torch.tensor([keys // 2, keys])[:batch] if stopped else None
    chosen = make_chosen((batch, heads[0], queries), keys, block, stop, seed)
    allowed = allowed_keys(chosen, keys, block, stop)
    native.poison(True)
    try:
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            tokens = [part.to(dtype) for part in (query, key, value)]
            output, normalizer = CHOSEN_BLOCKS.compute(*tokens, chosen, stop, block, SCALE, 0.0, None)
            exact = [part.double().numpy() for part in tokens]
            expected, _ = oracle.attention(*exact, allowed=allowed, scale=SCALE)
            np.testing.assert_allclose(output.numpy(), expected, rtol=tolerance, atol=tolerance)
            repeated = np.repeat(exact[1], heads[0] // heads[1], axis=1)
            scores = np.where(allowed, exact[0] @ repeated.swapaxes(2, 3) * SCALE, -np.inf)
            sums = np.exp(scores).sum(-1)
            logarithm = (normalizer[..., 0] * SCALE + normalizer[..., 1] * np.log(2)).numpy()
            with np.errstate(divide="ignore"):
                np.testing.assert_allclose(logarithm, np.log(sums), rtol=tolerance, atol=tolerance)
            upstream = random(*output.shape, seed=seed + 3, dtype=dtype)
            saved = (upstream, *tokens, output, normalizer, chosen, stop, block, SCALE, 0.0, None)
            gradients = CHOSEN_BLOCKS_BACKWARD.compute(*saved)
            right = oracle.backward(*exact, upstream.double().numpy(), allowed=allowed, scale=SCALE)
            for found, correct in zip(gradients, right[:3], strict=True):
                np.testing.assert_allclose(found.numpy(), correct, rtol=10 * tolerance, atol=10 * tolerance)
    finally:
        native.poison(False)


def test_nan_reaches_the_queries_that_chose_it_alone() -> None:
    query, key, value = (random(1, 2, 200, 8, seed=at) for at in range(3))
    chosen = make_chosen((1, 2, 200), 200, 64, None, seed=3)
    exact, _ = CHOSEN_BLOCKS.compute(query, key, value, chosen, None, 64, SCALE, 0.0, None)
    value[0, 1, 70, 2] = torch.nan
    output, normalizer = CHOSEN_BLOCKS.compute(query, key, value, chosen, None, 64, SCALE, 0.0, None)
    reached = torch.from_numpy(allowed_keys(chosen, 200, 64, None)[..., 70]).clone()
    reached[:, 0] = False
    assert reached.any()
    assert output[reached].isnan().all()
    assert normalizer[..., 1][reached].isnan().all()
    assert torch.equal(output[~reached], exact[~reached])


@pytest.mark.parametrize("keys", [2100, 2131])
def test_queries_of_several_slices_have_the_output_of_the_last_ones_alone(keys: int) -> None:
    """The forward pass computes 2,048 queries at a time, and 100 of them in one slice or on both sides of a border."""
    tokens = [random(1, heads, length, 8, seed=heads) for heads, length in ((4, 2100), (2, keys), (2, keys))]
    chosen = make_chosen((1, 4, 2100), keys, 64, None, seed=3)
    terms = (None, 64, SCALE, 0.0, None)
    whole = CHOSEN_BLOCKS.compute(*tokens, chosen, *terms)
    last = CHOSEN_BLOCKS.compute(tokens[0][:, :, -100:], *tokens[1:], chosen[:, :, -100:], *terms)
    for one, other in zip(whole, last, strict=True):
        torch.testing.assert_close(one[:, :, -100:], other, rtol=1e-5, atol=1e-6)


def compute_gradients(*tokens: torch.Tensor, chosen: torch.Tensor, upstream: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The gradients of query, key and value, from results of the forward pass."""
    terms = (chosen, None, 64, SCALE, 0.0, None)
    results = CHOSEN_BLOCKS.compute(*tokens, *terms)
    gradients: tuple[torch.Tensor, ...] = CHOSEN_BLOCKS_BACKWARD.compute(upstream, *tokens, *results, *terms)
    return gradients


def test_rows_of_nan_take_no_part_in_gradients() -> None:
    """The others have the gradients that they have if those rows have an incoming gradient of 0 and finite tokens."""
    query, key, value, upstream = (random(1, 2, 200, 8, seed=at) for at in range(4))
    chosen = make_chosen((1, 2, 200), 200, 64, None, seed=3)
    broken = torch.zeros(1, 2, 200, dtype=torch.bool)
    broken[0, 0, 130] = True
    poisoned = query.masked_fill(broken[..., None], torch.nan)
    zeroed = upstream.masked_fill(broken[..., None], 0.0)
    expected = compute_gradients(query, key, value, chosen=chosen, upstream=zeroed)
    found = compute_gradients(poisoned, key, value, chosen=chosen, upstream=upstream)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("sizes", [(2, 4, 2, 331, 331), (1, 1, 1, 700, 1500)])
def test_gradients_do_not_depend_on_threads(sizes: tuple[int, ...]) -> None:
    batch, heads, key_heads, queries, keys = sizes
    query = random(batch, heads, queries, 24, seed=1)
    key, value = (random(batch, key_heads, keys, 24, seed=at) for at in (2, 3))
    chosen = make_chosen((batch, heads, queries), keys, 64, None, seed=5)
    upstream, threads, results = random(batch, heads, queries, 24, seed=6), torch.get_num_threads(), []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            results.append(compute_gradients(query, key, value, chosen=chosen, upstream=upstream))
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, *results))


def test_scores_far_apart_give_all_weight_to_one_part() -> None:
    """A part whose share is below the smallest number must not add its values, however large they are."""
    query, key, value = torch.ones(1, 1, 130, 4), torch.zeros(1, 1, 130, 4), torch.zeros(1, 1, 130, 4)
    key[:, :, :64], value[:, :, :64] = -1e6, 1e38
    chosen = torch.zeros(1, 1, 130, 3, dtype=torch.bool)
    chosen[:, :, 128:, 0] = True
    output, _ = CHOSEN_BLOCKS.compute(query, key, value, chosen, None, 64, 1.0, 0.0, None)
    assert torch.equal(output[:, :, 64:], torch.zeros(1, 1, 66, 4))


def test_passes_of_dropout_and_of_none_agree_where_nothing_is_dropped() -> None:
    """Two ways to the same output and gradients: gathered parts with dropout, and the kernels without."""
    query, key, value = (random(1, 2, 200, 8, seed=at, dtype=torch.float64) for at in range(3))
    chosen = make_chosen((1, 2, 200), 200, 64, None, seed=3)
    given_tokens = (query, key, value, chosen, None, 64, SCALE)
    plain = CHOSEN_BLOCKS.compute(*given_tokens, 0.0, None)
    other = CHOSEN_BLOCKS.compute(*given_tokens, 0.0, torch.tensor(3))
    upstream = random(1, 2, 200, 8, seed=4, dtype=torch.float64)
    plain += CHOSEN_BLOCKS_BACKWARD.compute(upstream, *given_tokens[:3], *plain, *given_tokens[3:], 0.0, None)
    other += CHOSEN_BLOCKS_BACKWARD.compute(
        upstream, *given_tokens[:3], *other, *given_tokens[3:], 0.0, torch.tensor(3)
    )
    for one, two in zip(plain, other, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


# ---- the choice by weights of compressed attention


def importance_in_numpy(
    query: torch.Tensor, key: torch.Tensor, visible: torch.Tensor, sizes: tuple[int, int, int], blocks: int
) -> np.ndarray:
    """Sum the softmax over complete compressed keys by blocks, in float64: (batch, key_heads, queries, blocks)."""
    block, compressed_block, stride = sizes
    batch, heads, queries, _ = query.shape
    group = heads // key.shape[1]
    result = np.zeros((batch, key.shape[1], queries, blocks))
    shared = np.zeros((key.shape[2], blocks))  # strides of each compressed block in each block
    for at, number in np.ndindex(shared.shape):
        first, last = max(at * stride, number * block), min(at * stride + compressed_block, (number + 1) * block)
        shared[at, number] = max(0, last - first) // stride
    for entry, head, row in np.ndindex(batch, heads, queries):
        seen = int(visible[entry % visible.shape[0], row])
        complete = [at for at in range(key.shape[2]) if at * stride + compressed_block <= seen]
        if not complete:
            continue
        scores = key[entry, head // group, : len(complete)].double().numpy() @ query[entry, head, row].double().numpy()
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        result[entry, head // group, row] += weights @ shared[: len(complete)]
    return result


def choose_in_numpy(importance: np.ndarray, visible: torch.Tensor, block: int, count: int) -> np.ndarray:
    """The first block, the one before the own, and the most important others; of equal ones the first."""
    chosen = np.zeros(importance.shape, dtype=bool)
    for entry, head, row in np.ndindex(*importance.shape[:3]):
        own = max(0, (int(visible[entry % visible.shape[0], row]) - 1) // block)
        ranked = importance[entry, head, row, :own].astype(np.float32)
        ranked[:1], ranked[own - 1 :] = np.inf, np.inf
        order = sorted(range(own), key=lambda number, ranked=ranked: (-ranked[number], number))
        chosen[entry, head, row, order[:count]] = True
    return chosen


@pytest.mark.parametrize(
    ("sizes", "heads", "count"),
    [
        ((8, 4, 2), (4, 2), 5),
        ((4, 4, 4), (3, 3), 3),
        ((6, 2, 1), (2, 1), 2),
        ((8, 8, 1), (2, 2), 7),
        ((8, 4, 2), (1, 1), 1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_certain_choice_is_that_of_float64(
    sizes: tuple[int, int, int], heads: tuple[int, int], count: int, dtype: torch.dtype
) -> None:
    keys, queries = 149, 83
    block, compressed_block, stride = sizes
    compressed, blocks = (keys - compressed_block) // stride + 1, -(-keys // block)
    query = random(2, queries, heads[0], 13, seed=1).transpose(1, 2).to(dtype)
    key = random(2, heads[1], compressed, 13, seed=2)
    visible = torch.stack([torch.arange(queries) + 67, (torch.arange(queries) + 67).clamp(max=101)])
    options = {"block": block, "compressed_block": compressed_block, "stride": stride, "count": count}
    native.poison(True)
    try:
        chosen, certain = choose_blocks(query, key, visible, blocks=blocks, **options)
    finally:
        native.poison(False)
    importance = importance_in_numpy(query, key, visible, sizes, blocks)
    expected = choose_in_numpy(importance, visible, block, count)
    assert np.array_equal(chosen[certain].numpy(), expected[certain.numpy()])
    assert certain.float().mean() > (0.9 if count > 1 else -1)


def test_what_rounding_could_change_is_not_certain() -> None:
    """Equal compressed keys, and one that differs from them by less than float32 resolves in a product."""
    key = torch.ones(1, 1, 40, 16)
    key[0, 0, 23, 3] += 2.0**-20
    query, visible = 3 * random(1, 1, 60, 16, seed=4), torch.arange(100, 160)[None]
    options = {"blocks": 40, "block": 4, "compressed_block": 4, "stride": 4}
    _, certain = choose_blocks(query, key, visible, **options, count=7)
    assert not certain.any()
    _, certain = choose_blocks(query, key, visible, **options, count=2)  # the two that are always chosen
    assert certain.all()
    chosen, certain = choose_blocks(query, key, visible, **options, count=40)
    assert certain.all()
    assert torch.equal(chosen[0, 0].sum(-1), (visible[0] - 1) // 4)


def test_what_is_not_finite_is_not_certain_where_it_is_seen() -> None:
    query, key = random(1, 2, 60, 8, seed=1), random(1, 1, 40, 8, seed=2)
    visible = torch.arange(100, 160)[None]
    options = {"blocks": 40, "block": 4, "compressed_block": 4, "stride": 4, "count": 5}
    exact, before = choose_blocks(query, key, visible, **options)
    key[0, 0, 30, 1] = torch.inf
    query[0, 1, 3, 0] = torch.nan
    chosen, certain = choose_blocks(query, key, visible, **options)
    sees = visible[0] >= 124
    sees[3] = True
    assert not certain[0, 0, sees].any()
    assert torch.equal(certain[0, 0, ~sees], before[0, 0, ~sees])
    assert torch.equal(chosen[0, 0, ~sees], exact[0, 0, ~sees])


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_nsa_chooses_as_in_float64(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With sharp weights too, most of which are 0 in float32."""
    mechanism = regard.mechanism("nsa", heads=4, head_dim=16, block=8, chosen_blocks=5, compressed_block=4, stride=2)
    query, key = scale * random(2, 4, 301, 16, seed=6), random(2, 2, 301, 16, seed=7)
    key[:, :, 100:140] = key[:, :, :1]  # ties
    request = mechanism.make_request(query, key, key, None, None)
    found = mechanism._choose_blocks(request)
    monkeypatch.setattr(type(mechanism), "_may_be_narrow", lambda *_: False)
    assert torch.equal(found, mechanism._choose_blocks(request))


def test_the_choice_does_not_depend_on_threads() -> None:
    query, key, visible = random(1, 4, 301, 16, seed=1), random(1, 2, 150, 16, seed=2), torch.arange(301)[None]
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            options = {"blocks": 38, "block": 8, "compressed_block": 4, "stride": 2, "count": 5}
            results.append(choose_blocks(query, key, visible, **options))
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, *results))


@parametrize_opcheck(["plain"], default_kinds=[])
def test_the_choice_passes_opcheck(name: str, utilities: object, without_shape_checks: None) -> None:
    given_tokens = (random(1, 4, 31, 8, seed=1), random(1, 2, 14, 8, seed=2), torch.arange(31)[None], 4, 8, 4, 2, 2)
    torch.library.opcheck(torch.ops.regard.block_importance.default, given_tokens, test_utils=utilities)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": 6, "stride": 4}, "multiples of stride"),
        ({"compressed_block": 16}, "multiples of stride"),
        ({"count": -1}, "expected a number of blocks"),
    ],
)
def test_wrong_arguments_of_the_binding_are_refused(change: dict[str, int], message: str) -> None:
    arrays = (torch.zeros(1, 2, 3, 4), torch.zeros(1, 1, 5, 4), torch.zeros(1, 3, dtype=torch.long))
    results = torch.zeros(1, 1, 3, 2, dtype=torch.bool), torch.zeros(1, 1, 3, dtype=torch.bool)
    options = {"block": 8, "compressed_block": 4, "stride": 2, "count": 1}
    native.block_importance(*arrays, *results, **options)
    with pytest.raises(ValueError, match=message):
        native.block_importance(*arrays, *results, **(options | change))


def test_wrong_arrays_of_the_binding_are_refused() -> None:
    tokens = [torch.zeros(1, 1, 64, 4) for _ in range(3)]
    results = torch.zeros(1, 1, 64, 4), torch.zeros(1, 1, 64, 2)
    chosen = torch.zeros(1, 1, 64, 1, dtype=torch.bool)
    native.chosen_blocks_forward(*tokens, chosen, *results, block=64)
    with pytest.raises(ValueError, match="block: expected a multiple of 64"):
        native.chosen_blocks_forward(*tokens, chosen, *results, block=63)
    with pytest.raises(ValueError, match="chosen"):
        native.chosen_blocks_forward(*tokens, chosen[:, :, 1:], *results, block=64)
    with pytest.raises(ValueError, match="scale"):
        native.chosen_blocks_forward(*tokens, chosen, *results, block=64, scale=0.0)
    gradients = [torch.zeros_like(part) for part in tokens]
    native.chosen_blocks_backward(results[0], *tokens, chosen, *results, *gradients, block=64)
    with pytest.raises(ValueError, match="block: expected a multiple of 64"):
        native.chosen_blocks_backward(results[0], *tokens, chosen, *results, *gradients, block=65)
    with pytest.raises(ValueError, match="grad_output"):
        native.chosen_blocks_backward(results[0][:, :, 1:], *tokens, chosen, *results, *gradients, block=64)
    with pytest.raises(ValueError, match="grad_value"):
        native.chosen_blocks_backward(
            results[0], *tokens, chosen, *results, *gradients[:2], gradients[2][..., 1:], block=64
        )
    half = [part.half() for part in tokens]
    with pytest.raises(ValueError, match="query: expected float32 or float64"):
        native.chosen_blocks_forward(*half, chosen, results[0].half(), results[1], block=64)
