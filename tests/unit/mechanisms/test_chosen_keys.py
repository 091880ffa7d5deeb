"""Mechanisms that choose keys, beside the conformance suite: ties, NaN, causality, padding, decoding, kept mass."""

import numpy as np
import pytest
import torch

import regard
from regard import masks
from regard.conformance.oracles import moba as moba_oracle
from regard.conformance.oracles import top_k as top_k_oracle
from regard.errors import OptionError, RefusedError
from regard.mechanisms import chosen_keys
from regard.mechanisms.highest_scores import mark_highest

HEADS, HEAD_DIM, LENGTH = 2, 5, 23
OPTIONS = {"top_k": {"keys": 4}, "moba": {"block": 3, "chosen_blocks": 3}}
NAMES = pytest.mark.parametrize("name", OPTIONS)


def build(name: str, **options) -> regard.mechanisms.Mechanism:
    return regard.mechanism(name, heads=HEADS, head_dim=HEAD_DIM, **(OPTIONS[name] | options))


def make_tokens(queries: int = LENGTH, keys: int = LENGTH, *, batch: int = 2) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(queries + keys)
    return tuple(
        torch.randn(batch, HEADS, length, HEAD_DIM, dtype=torch.float64, generator=generator)
        for length in (queries, keys, keys)
    )


@pytest.mark.parametrize(("queries", "keys"), [(23, 23), (5, 23), (23, 5), (1, 23)])
def test_rows_in_parts_agree_with_the_oracles(monkeypatch, queries: int, keys: int) -> None:
    monkeypatch.setattr(chosen_keys, "_CELLS_AT_ONCE", 7 * keys * HEADS * 2)
    tokens = make_tokens(queries, keys)
    arrays = [part.numpy() for part in tokens]
    causal = np.arange(keys)[None, :] <= np.arange(queries)[:, None] + keys - queries
    expected = {
        "top_k": top_k_oracle.attention(*arrays, 4, causal),
        "moba": moba_oracle.attention(*arrays, 3, 3, causal),
    }
    for name, output in expected.items():
        np.testing.assert_allclose(build(name)(*tokens, masks.causal()).numpy(), output, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("queries", [1, 4, None])
@pytest.mark.parametrize("keys", [8, 9, 10])  # 9 keys are the three blocks that are chosen
def test_moba_agrees_with_the_oracle_on_both_sides_of_the_keys_that_it_chooses(queries, keys) -> None:
    queries = queries or keys
    tokens, lengths = make_tokens(queries, keys), [keys, keys - 2]
    causal = np.arange(keys)[None, :] <= np.arange(queries)[:, None] + keys - queries
    hidden = np.arange(keys)[None, :] < np.array(lengths)[:, None]
    for mask, allowed in (
        (None, causal),
        (masks.causal(), causal),
        (masks.padding(lengths), causal & hidden[:, None, None]),
        (masks.causal() & masks.padding(lengths, side="left"), causal & hidden[:, None, None, ::-1]),
    ):
        expected = moba_oracle.attention(*(part.numpy() for part in tokens), 3, 3, allowed)
        np.testing.assert_allclose(build("moba")(*tokens, mask).numpy(), expected, rtol=1e-9, atol=1e-12)


def test_highest_scores_takes_the_first_of_equal_ones() -> None:
    scores = torch.tensor([[[[1.0, 3.0, 3.0, 3.0, 2.0], [-torch.inf, 0.0, -torch.inf, 5.0, torch.inf]]]])
    every = torch.ones(1, 1, 1, 5, dtype=torch.bool)
    assert mark_highest(scores, every, 2)[0, 0].tolist() == [
        [False, True, True, False, False],
        [False, False, False, True, True],
    ]
    some = torch.tensor([[[[True, False, True, True, True]]]])
    assert mark_highest(scores, some, 3)[0, 0].tolist() == [
        [False, False, True, True, True],
        [True, False, False, True, True],
    ]
    assert mark_highest(scores, some, 0).sum() == 0
    assert torch.equal(mark_highest(scores, some, 9), some.expand(1, 1, 2, 5))
    assert mark_highest(scores, ~every, 3).sum() == 0


def test_equal_keys_are_chosen_from_the_first() -> None:
    query, key, _ = make_tokens(7, 11)
    key = key[:, :, :1].expand_as(key)
    weights = build("top_k").weights(query, key)
    torch.testing.assert_close(weights[..., :4], torch.full_like(weights[..., :4], 0.25))
    assert not weights[..., 4:].any()
    chosen = build("moba").weights(query, key)[:, :, -1] > 0
    assert chosen.unique(dim=1).squeeze().all(0).tolist() == [True] * 6 + [False] * 3 + [True] * 2


@NAMES
def test_equals_exact_attention_when_all_keys_are_chosen(name: str) -> None:
    tokens = make_tokens()
    mechanism = build(name, **({"keys": 99} if name == "top_k" else {"chosen_blocks": 99}))
    torch.testing.assert_close(mechanism(*tokens, masks.causal()), regard.attention(*tokens, mask=masks.causal()))
    kept = mechanism.kept_mass(*tokens[:2], masks.causal())
    torch.testing.assert_close(kept, torch.ones_like(kept))


@NAMES
def test_no_later_token_has_an_influence(name: str) -> None:
    query, key, value = make_tokens()
    mechanism = build(name)
    exact = mechanism(query, key, value, masks.causal())
    for at in range(1, LENGTH):
        changed = [part.clone() for part in (query, key, value)]
        for part in changed:
            part[:, :, at:] = 1e30 if at % 2 else torch.nan
        assert torch.equal(mechanism(*changed, masks.causal())[:, :, :at], exact[:, :, :at])


@NAMES
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_padded_text_has_the_output_that_it_has_alone(name: str, side: str) -> None:
    tokens, length = make_tokens(), 17
    tokens = tuple(part.masked_fill(torch.arange(LENGTH)[:, None] >= length, 1e30) for part in tokens)
    if side == "left":
        tokens = tuple(part.roll(LENGTH - length, 2) for part in tokens)
    own = slice(0, length) if side == "right" else slice(LENGTH - length, None)
    alone = build(name)(*(part[:, :, own] for part in tokens), masks.causal())
    padding = masks.padding([length, length], side=side)
    torch.testing.assert_close(build(name)(*tokens, masks.causal() & padding)[:, :, own], alone)


@NAMES
def test_packed_documents_have_the_output_that_each_has_alone(name: str) -> None:
    tokens = make_tokens(batch=1)
    ids = torch.arange(LENGTH)[None] // 13
    packed = build(name)(*tokens, masks.causal() & masks.documents(ids))
    for own in (slice(0, 13), slice(13, None)):
        alone = build(name)(*(part[:, :, own] for part in tokens), masks.causal())
        torch.testing.assert_close(packed[:, :, own], alone)


@NAMES
def test_nan_in_a_key_reaches_every_query_that_may_see_it(name: str) -> None:
    query, key, value = make_tokens()
    exact = build(name)(query, key, value, masks.causal())
    for number in (torch.nan, torch.inf):
        broken = key.clone()
        broken[0, 1, 4, 2] = number
        output = build(name)(query, broken, value, masks.causal())
        assert output[0, 1, 4:].isnan().all()
        assert torch.equal(output[0, 1, :4], exact[0, 1, :4])
        assert torch.equal(output[0, 0], exact[0, 0])
        assert torch.equal(output[1], exact[1])


@NAMES
def test_nan_in_a_value_reaches_the_queries_that_chose_its_key(name: str) -> None:
    query, key, value = make_tokens()
    mechanism = build(name)
    exact, chosen = mechanism(query, key, value, masks.causal()), mechanism.weights(query, key, mask=masks.causal()) > 0
    value[0, 1, 4] = torch.nan
    output = mechanism(query, key, value, masks.causal())
    reached = torch.zeros(2, HEADS, LENGTH, dtype=torch.bool)
    reached[0, 1] = chosen[0, 1, :, 4]
    assert output[reached].isnan().all()
    assert torch.equal(output[~reached], exact[~reached])


@NAMES
def test_gradients(name: str) -> None:
    inputs = tuple(part[:1].requires_grad_() for part in make_tokens(7, 7))
    mechanism = build(name)
    assert torch.autograd.gradcheck(lambda q, k, v: mechanism(q, k, v, masks.causal()), inputs, fast_mode=True)
    assert torch.autograd.gradcheck(
        lambda q, k: mechanism.weights(q, k, mask=masks.causal()), inputs[:2], fast_mode=True
    )


@NAMES
def test_works_under_vmap(name: str) -> None:
    tokens, mechanism = make_tokens(7, 7), build(name)
    mapped = torch.func.vmap(lambda q, k, v: mechanism(q[None], k[None], v[None], masks.causal())[0])(*tokens)
    torch.testing.assert_close(mapped, mechanism(*tokens, masks.causal()))


def test_kept_mass_is_at_most_that_of_as_many_best_keys() -> None:
    query, key, _ = make_tokens()
    kept = build("moba").kept_mass(query, key, masks.causal())
    best = build("top_k", keys=9).kept_mass(query, key, masks.causal())
    exact = build("top_k", keys=LENGTH).weights(query, key, mask=masks.causal())
    chosen = build("moba").weights(query, key, mask=masks.causal()) > 0
    torch.testing.assert_close(kept, (exact * chosen).sum(-1))
    assert (kept <= best + 1e-12).all()
    assert kept.mean() < 0.9 < best.mean()
    assert not build("top_k").kept_mass(query, key, masks.padding([0, LENGTH]))[0].any()


def test_moba_hides_later_keys_itself() -> None:
    tokens = make_tokens()
    assert torch.equal(build("moba")(*tokens), build("moba")(*tokens, masks.causal()))


@pytest.mark.parametrize(
    ("name", "options"),
    [("top_k", {"keys": 0}), ("moba", {"block": 0}), ("moba", {"chosen_blocks": 1.5})],
)
def test_wrong_options_are_refused(name: str, options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        build(name, **options)


@NAMES
def test_bias_is_refused(name: str) -> None:
    with pytest.raises(RefusedError, match="a bias is not part of its choice of keys"):
        build(name)(*make_tokens(7, 7), bias=torch.zeros(1, HEADS, 7, 7))


@pytest.mark.parametrize("masked", ["causal", "padding", "left padding"])
def test_moba_with_blocks_of_whole_tiles_agrees_with_the_oracle(masked: str) -> None:
    generator = torch.Generator().manual_seed(11)
    queries, keys, lengths = 261, 331, torch.tensor([331, 197])
    query, key, value = (
        torch.randn(2, heads, length, HEAD_DIM, dtype=torch.float64, generator=generator, requires_grad=True)
        for heads, length in ((4, queries), (2, keys), (2, keys))
    )
    mechanism = regard.mechanism("moba", heads=4, head_dim=HEAD_DIM, block=64, chosen_blocks=3)
    mask, allowed = masks.causal(), np.ones((2, 1, 1, keys), dtype=bool)
    if masked != "causal":
        side = "right" if masked == "padding" else "left"
        mask = masks.causal() & masks.padding(lengths, side=side)
        allowed = np.arange(keys) < lengths.numpy()[:, None, None, None]
        allowed = allowed if side == "right" else allowed[..., ::-1]
    output = mechanism(query, key, value, mask)
    arrays = [part.detach().numpy() for part in (query, key, value)]
    expected = moba_oracle.attention(*arrays, 64, 3, allowed)
    np.testing.assert_allclose(output.detach().numpy(), expected, rtol=1e-9, atol=1e-12)
    upstream = torch.randn(output.shape, dtype=torch.float64, generator=generator)
    found = torch.autograd.grad(output, (query, key, value), upstream)
    exact = mechanism.attend_under_mask(mechanism.make_request(query, key, value, mask, None))
    for one, other in zip(found, torch.autograd.grad(exact, (query, key, value), upstream), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_moba_blocks_are_the_same_bits_for_any_number_of_threads() -> None:
    tokens = [torch.randn(1, HEADS, 389, HEAD_DIM, generator=torch.Generator().manual_seed(at)) for at in range(3)]
    mechanism, results, threads = build("moba", block=64), [], torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            leaves = [part.clone().requires_grad_() for part in tokens]
            output = mechanism(*leaves)
            results.append([output, *torch.autograd.grad(output.square().sum(), leaves)])
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))
