"""Reformer: its hash, exact attention inside buckets, the paper's chunks, decoding, and what has no influence."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from hypothesis_examples import examples
from regard import masks, positions
from regard.conformance.oracles import reformer as oracle
from regard.errors import DtypeError, OptionError, RefusedError
from regard.mechanisms import Reformer
from regard.mechanisms.locality_hash import draw_rotations, hash_tokens
from regard.mechanisms.weights import weights_by_gradient
from sampled_parameters import parametrize_sample

BATCH, HEADS, HEAD_DIM, VALUE_DIM, KEYS, LONG = 2, 3, 5, 7, 29, 331


def make_inputs(keys=KEYS, queries=None, key_heads=HEADS, dtype=torch.float64):
    made = torch.Generator().manual_seed(11)
    shapes = (
        (HEADS, keys if queries is None else queries, HEAD_DIM),
        (key_heads, keys, HEAD_DIM),
        (key_heads, keys, VALUE_DIM),
    )
    return [torch.randn(BATCH, *shape, generator=made, dtype=dtype) for shape in shapes]


def make_mechanism(**options):
    return Reformer(heads=HEADS, head_dim=HEAD_DIM, **options)


def test_rotations_agree_with_integer_arithmetic():
    actual = draw_rotations(seed=2**63 - 1, heads=2, head_dim=3, rounds=2, factors=(8,))
    np.testing.assert_array_equal(actual, oracle.draw_rotations(2**63 - 1, 2, 3, 2, 4))
    more = draw_rotations(seed=2**63 - 1, heads=3, head_dim=5, rounds=4, factors=(14, 6))
    assert torch.equal(more[:2, :2, :3, :4], actual)
    assert more.shape == (3, 4, 5, 10)


def test_rotations_have_the_moments_of_twelve_uniform_numbers():
    """Variance 1, and a fourth moment of 3 - 6 / (5 * 12): that of a normal number is 3."""
    drawn = draw_rotations(seed=0, heads=4, head_dim=64, rounds=4, factors=(128,)).double() / 2**16
    assert abs(float(drawn.mean())) < 5 / drawn.numel() ** 0.5
    assert float(drawn.square().mean()) == pytest.approx(1.0, abs=5 * (1.9 / drawn.numel()) ** 0.5)
    assert float(drawn.pow(4).mean()) == pytest.approx(2.9, abs=5 * (96 / drawn.numel()) ** 0.5)


def test_factors_are_a_product_of_hashes():
    tokens, rotations = make_inputs()[0], draw_rotations(seed=3, heads=HEADS, head_dim=5, rounds=2, factors=(6, 4))
    found = hash_tokens(tokens, rotations, (6, 4))
    ones = hash_tokens(tokens, rotations[..., :3], (6,)), hash_tokens(tokens, rotations[..., 3:], (4,))
    assert torch.equal(found, ones[0] + 6 * ones[1])
    for at in np.ndindex(BATCH, HEADS, KEYS):
        assert ones[0][at].tolist() == oracle.buckets(tokens[at].numpy(), rotations[at[1], ..., :3].double().numpy())


def test_tokens_in_one_direction_share_a_bucket():
    tokens, rotations = make_inputs()[0], draw_rotations(seed=3, heads=HEADS, head_dim=5, rounds=4, factors=(16,))
    expected = hash_tokens(tokens, rotations, (16,))
    for scale in (1e-30, 3.0, 1e200):
        assert torch.equal(hash_tokens(tokens * scale, rotations, (16,)), expected)
    assert not hash_tokens(torch.full_like(tokens, torch.nan), rotations, (16,)).any()


OPTIONS = {
    "one round": {"buckets": 4, "rounds": 1},
    "rounds": {"buckets": 6, "rounds": 3, "seed": 5},
    "projections of their own": {"buckets": 4, "rounds": 2, "shared": False},
    "one bucket": {"buckets": 1},
    "few tokens": {},
}
MASKS = {
    "none": lambda keys: None,
    "causal": lambda keys: masks.causal(),
    "padding": lambda keys: masks.padding([keys, 2]),
    "documents": lambda keys: masks.documents(torch.arange(keys) // 9),
    "causal & left padding": lambda keys: masks.causal() & masks.padding([3, keys], side="left"),
}


@pytest.mark.parametrize("queries", [KEYS, 4])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("options", OPTIONS)
def test_agrees_with_the_paper(options, mask, queries):
    options, of_call = {"rounds": 4, "seed": 0, "shared": True} | OPTIONS[options], MASKS[mask](KEYS)
    mechanism, inputs = make_mechanism(**options), make_inputs(queries=queries, key_heads=1)
    assert mechanism.buckets == options.get("buckets")
    count = options.get("buckets", 1 if queries == KEYS and mask in ("none", "padding") else 64)
    rotations = np.zeros((HEADS, options["rounds"], HEAD_DIM, 1))
    if count > 1:
        rotations = oracle.draw_rotations(options["seed"], HEADS, HEAD_DIM, options["rounds"], count // 2)
    allowed = None if of_call is None else of_call.dense(queries, KEYS).numpy()
    expected = oracle.attention(*(one.numpy() for one in inputs), rotations, allowed, shared=options["shared"])
    np.testing.assert_allclose(mechanism(*inputs, of_call), expected, atol=1e-12)


@pytest.mark.parametrize("bias", [None, "tensor", "alibi"])
def test_weights_equal_gradients(bias):
    inputs, mask = make_inputs(), masks.padding([KEYS, 15])
    made = {None: None, "tensor": torch.randn(1, HEADS, KEYS, KEYS).double(), "alibi": positions.ALiBi(HEADS)}[bias]
    mechanism = make_mechanism(buckets=4, rounds=2)
    rows = torch.tensor([0, 7, 28])
    request = mechanism.make_request(*inputs, mask, made)
    actual = mechanism.weights(*inputs[:2], mask=mask, bias=made, rows=rows)
    torch.testing.assert_close(actual, weights_by_gradient(mechanism.attend, request, rows), rtol=0, atol=1e-12)
    steps = mechanism.steps(request)
    scores = steps.query @ steps.key.mT * steps.scale + (0 if made is None or bias == "alibi" else made)
    scores = scores.masked_fill(~steps.mask.dense(KEYS, KEYS), -torch.inf)
    if bias != "alibi":
        torch.testing.assert_close(scores.softmax(-1).nan_to_num(0)[:, :, rows], actual, rtol=0, atol=1e-12)


def test_one_bucket_equals_exact_attention():
    inputs = make_inputs()
    exact = regard.mechanism(Reformer.traits.approximates, heads=HEADS, head_dim=HEAD_DIM)
    actual = make_mechanism(buckets=1, shared=False)(*inputs)
    torch.testing.assert_close(actual, exact(*inputs), rtol=0, atol=1e-13)


def test_missed_weight_falls_with_the_power_of_rounds():
    """A key that shares a bucket with probability p is missed by r rounds with (1 - p)^r: the logarithm is linear."""
    torch.manual_seed(3)
    query = torch.randn(1, 1, 200, 16, dtype=torch.float64)
    key = query + 0.5 * torch.randn(query.shape, dtype=torch.float64)
    exact = Reformer(heads=1, head_dim=16, buckets=1, shared=False).weights(query, key)
    near = torch.arange(200)
    missed = []
    for rounds in (1, 2, 4, 8):
        kept = 0.0
        for seed in range(20):
            mechanism = Reformer(heads=1, head_dim=16, buckets=4, rounds=rounds, shared=False, seed=seed)
            kept += float((mechanism.weights(query, key)[0, 0, near, near] > 0).double().mean()) / 20
        missed.append(1 - kept)
    assert exact[0, 0, near, near].min() > 0
    assert missed[0] < 0.4
    # Rounds of all seeds and tokens are alike, but tokens differ in p, so that the fall is a little slower (Jensen).
    assert missed[0] ** 2 <= missed[1] <= 1.5 * missed[0] ** 2 + 0.01
    assert missed[2] < missed[1] ** 1.5
    assert missed[3] < 0.02


def test_rounds_and_seed_may_be_changed_between_calls():
    inputs, mechanism = make_inputs(), make_mechanism(buckets=8, rounds=4, seed=1)
    mechanism(*inputs)
    mechanism.rounds, mechanism.seed = 2, 3
    assert torch.equal(mechanism(*inputs), make_mechanism(buckets=8, rounds=2, seed=3)(*inputs))


SORTED = {
    "buckets": {"buckets": 6, "rounds": 3},
    "own projections": {"buckets": [2, 4], "rounds": 2, "shared": False},
    "by length": {"rounds": 2},
}


@pytest.mark.parametrize("mask", ["none", "causal", "padding", "causal & left padding"])
@pytest.mark.parametrize("options", SORTED)
def test_sorted_tokens_equal_a_dense_mask(options, mask, monkeypatch):
    mechanism, of_call, found = make_mechanism(**SORTED[options]), MASKS[mask](LONG), []
    upstream = torch.randn(BATCH, HEADS, LONG, VALUE_DIM, dtype=torch.float64)
    for fewest in (256, 10**6):
        monkeypatch.setattr("regard.mechanisms.reformer._MIN_SORTED", fewest)
        leaves = [one.requires_grad_() for one in make_inputs(LONG)]
        output = mechanism(*leaves, of_call)
        found.append((output, *torch.autograd.grad(output, leaves, upstream)))
    for ours, dense in zip(*found, strict=True):
        torch.testing.assert_close(ours, dense, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"buckets": 16, "rounds": 2, "shared": False}])
def test_later_tokens_change_no_bit(options):
    mechanism, cut = make_mechanism(**options), 270
    inputs = make_inputs(LONG, dtype=torch.float32)
    whole = mechanism(*inputs, masks.causal())
    alone = mechanism(*(one[:, :, :cut] for one in inputs), masks.causal())
    torch.testing.assert_close(alone, whole[:, :, :cut], rtol=0, atol=2e-6)  # other sizes may round in another way
    leaves = [one.clone().requires_grad_() for one in inputs]
    poisoned = [one.clone() for one in inputs]
    for one, bad in zip(poisoned, (3.0, torch.inf, torch.nan), strict=True):
        one[:, :, cut:] = bad
        one.requires_grad_()
    results = []
    for tokens in (leaves, poisoned):
        output = mechanism(*tokens, masks.causal())
        gradients = torch.autograd.grad(output[:, :, :cut].sum(), tokens)
        assert not any(one[:, :, cut:].any() for one in gradients)
        results.append([output[:, :, :cut], *(one[:, :, :cut] for one in gradients)])
    for before, after in zip(*results, strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("length", [40, 290])
def test_padding_does_not_change_the_number_of_buckets(length):
    mechanism = make_mechanism()
    inputs = make_inputs(LONG)
    alone = mechanism(*(one[1:, :, :length] for one in inputs))
    padded = mechanism(*inputs, masks.padding([LONG, length]))
    torch.testing.assert_close(padded[1:, :, :length], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("keys", [KEYS, LONG])
def test_nan_reaches_the_rows_of_its_bucket_alone(keys):
    mechanism, mask = make_mechanism(buckets=4, rounds=2, seed=1), masks.padding([keys, keys - 3])
    query, key, value = make_inputs(keys)
    value[0, 1, 5] = torch.nan
    query[1, 2, 7] = torch.inf
    output = mechanism(query, key, value, mask)
    weights = mechanism.weights(query, key, mask=mask)
    expected = weights.isnan().any(-1)
    expected[0, 1] |= weights[0, 1, :, 5] > 0
    assert torch.equal(output.isnan().any(-1), expected)
    assert 1 < int(expected.sum()) < keys


CHUNKS = {
    "one round": {"chunk": 16, "rounds": 1, "buckets": 8},
    "rounds": {"chunk": 50, "rounds": 3, "buckets": 4},
    "tiles": {"chunk": 64, "rounds": 2},
    "one chunk": {"chunk": 400, "rounds": 2, "shared": False},
}


@parametrize_sample("options, mask", CHUNKS, ["none", "causal", "padding", "causal & left padding"])
def test_chunks_of_kernels_equal_plain_torch(options, mask, monkeypatch):
    """``test_reformer_parity`` compares both with transformers."""
    mechanism, of_call, found = make_mechanism(**CHUNKS[options]), MASKS[mask](LONG), []
    upstream = torch.randn(BATCH, HEADS, LONG, VALUE_DIM, dtype=torch.float64)
    for missing in (None, "no kernels"):
        monkeypatch.setattr("regard.kernels.support.missing_reason", missing)
        monkeypatch.setattr("regard.kernels.extension._warn", lambda: None)
        leaves = [one.requires_grad_() for one in make_inputs(LONG)]
        output = mechanism(*leaves, of_call)
        found.append((output, *torch.autograd.grad(output, leaves, upstream)))
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)


def test_padding_has_no_influence_on_chunks():
    mechanism, mask = make_mechanism(chunk=16, buckets=8, rounds=2), masks.padding([LONG, 97])
    inputs = make_inputs(LONG)
    before = mechanism(*inputs, mask)
    for one in inputs[1:]:
        one[1, :, 97:] = torch.nan
    after = mechanism(*inputs, mask)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1, :, :97], after[1, :, :97])


@pytest.mark.parametrize("impl", ["kernels", "plain torch"])
@given(
    length=st.integers(1, 150),
    padding=st.integers(1, 140),
    on_left=st.booleans(),
    causal=st.booleans(),
    chunk=st.sampled_from([1, 4, 7, 32, 64, 65, 100]),
    options=st.fixed_dictionaries(
        {"rounds": st.integers(1, 3), "buckets": st.sampled_from([None, 1, 4, 14]), "shared": st.booleans()}
    ),
)
@examples(100)
def test_chunks_of_a_padded_text_are_those_of_the_text_alone(impl, length, padding, on_left, causal, chunk, options):
    """Forward and backward, in a batch with a longer text, and with NaN as padding."""
    mechanism, whole = make_mechanism(chunk=chunk, **options), length + padding
    text = slice(padding, None) if on_left else slice(length)
    tokens = make_inputs(whole)
    alone = [one[1:, :, text].clone().requires_grad_() for one in tokens]
    for one in tokens:
        one[1, :, slice(padding) if on_left else slice(length, None)] = torch.nan
    padded = [one.requires_grad_() for one in tokens]
    mask = masks.padding([whole, length], side="left" if on_left else "right")
    results = []
    with pytest.MonkeyPatch.context() as patch:
        if impl == "plain torch":
            patch.setattr("regard.kernels.support.missing_reason", "no kernels")
            patch.setattr("regard.kernels.extension._warn", lambda: None)
        output = mechanism(*alone, masks.causal() if causal else None)
        results.append((output, *torch.autograd.grad(output.square().sum(), alone)))
        output = mechanism(*padded, masks.causal() & mask if causal else mask)
        found = (output, *torch.autograd.grad(output[1:, :, text].square().sum(), padded))
        results.append([one[1:, :, text] for one in found])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-11)


def test_chunks_refuse_what_has_no_order():
    mechanism, inputs = make_mechanism(chunk=8), make_inputs()
    for message, arguments in (
        ("a mask must be causal", {"mask": masks.window(2, 2)}),
        ("a bias of pairs", {"bias": positions.ALiBi(HEADS)}),
    ):
        with pytest.raises(RefusedError, match=message):
            mechanism(*inputs, **arguments)
    with pytest.raises(RefusedError, match="as many queries as keys; chunk=None decodes"):
        mechanism(inputs[0][:, :, :1], *inputs[1:])
    with pytest.raises(RefusedError, match="a step has only its own"):
        mechanism.empty_state()


@pytest.mark.parametrize("options", [{"buckets": 6, "rounds": 2}, {}], ids=repr)
def test_steps_equal_the_whole_sequence(options):
    torch.manual_seed(2)
    layer = regard.MultiHeadAttention(
        12, 3, mechanism="reformer", mechanism_options=options, position=positions.Rotary(4)
    ).double()
    tokens = torch.randn(2, KEYS, 12, dtype=torch.float64)
    with torch.no_grad():
        whole, cache, parts = layer(tokens, mask=masks.causal()), layer.empty_cache(), []
        for part in tokens.split([5, 1, 1, 10, 12], dim=1):
            output, cache = layer(part, mask=masks.causal(), cache=cache)
            parts.append(output)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-12)
    assert cache.inputs["key_buckets"].shape == (2, 3, KEYS, layer.mechanism.rounds)


def test_buckets_that_the_caller_passes():
    mechanism, inputs = make_mechanism(rounds=2, shared=False), make_inputs()
    buckets = torch.zeros(BATCH, HEADS, KEYS, 2, dtype=torch.long)
    buckets[:, :, 10:, 0] = -1
    buckets[:, :, :, 1] = -1
    output = mechanism(*inputs, query_buckets=torch.zeros_like(buckets), key_buckets=buckets)
    exact = regard.attention(*inputs, mask=masks.padding([10, 10]))
    torch.testing.assert_close(output, exact, rtol=0, atol=1e-13)


def test_buckets_that_are_not_integers_are_refused():
    mechanism, inputs = make_mechanism(rounds=2, shared=False), make_inputs()
    buckets = torch.full((BATCH, HEADS, KEYS, 2), 0.7)
    for wrong in (buckets, buckets > 0):
        with pytest.raises(DtypeError, match=r"(?s)key_buckets are not integers.*got: +torch\.(float32|bool)"):
            mechanism(*inputs, key_buckets=wrong)


def test_invalid_rounds_and_seeds_are_refused_after_construction_too():
    mechanism = make_mechanism(rounds=2)
    for name, value in (("rounds", 0), ("rounds", "two"), ("rounds", 2.5), ("seed", -1), ("seed", None)):
        with pytest.raises(OptionError, match=f"wrong {name}"):
            setattr(mechanism, name, value)
    assert (mechanism.rounds, mechanism.seed) == (2, make_mechanism().seed)


def test_layers_project_queries_and_keys_once():
    layer = regard.MultiHeadAttention(12, 3, mechanism="reformer")
    assert layer.key_projection is None
    assert {name.split(".")[0] for name in layer.state_dict()} == {
        "query_projection",
        "value_projection",
        "output_projection",
    }
    own = regard.MultiHeadAttention(12, 3, mechanism="reformer", mechanism_options={"shared": False})
    assert own.key_projection is not None
    for sizes in ({"key_value_heads": 1}, {"key_width": 7}):
        with pytest.raises(OptionError, match="Reformer has one projection for queries and keys"):
            regard.MultiHeadAttention(12, 3, mechanism="reformer", **sizes)
    with pytest.raises(RefusedError, match="does not attend to a memory"):
        layer.project_memory(torch.randn(1, 5, 12))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "wrong rounds"),
        ({"buckets": 3}, r"wrong buckets.*an even number.*got: +3"),
        ({"buckets": 0}, "wrong buckets"),
        ({"buckets": []}, "wrong buckets"),
        ({"buckets": [4, 5]}, "wrong buckets"),
        ({"buckets": [2**13, 2**13]}, "wrong buckets"),
        ({"buckets": "many"}, "wrong buckets"),
        ({"chunk": 0}, "wrong chunk"),
        ({"shared": "yes"}, "wrong shared"),
        ({"seed": -1}, "wrong seed"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(OptionError, match=f"(?s){message}"):
        make_mechanism(**options)


@pytest.mark.parametrize("keys", [KEYS, LONG], ids=["few", "sorted"])
def test_a_token_without_a_bucket_attends_to_itself(keys):
    """However many tokens there are; a token that the mask hides attends to nothing."""
    _, key, value = make_inputs(keys)
    buckets = torch.randint(0, 4, (BATCH, HEADS, keys, 1))
    buckets[:, :, 5], buckets[:, :, keys - 1] = -1, -1
    mechanism, mask = make_mechanism(rounds=1, buckets=4), masks.padding([keys, keys - 1])
    given = {"query_buckets": buckets, "key_buckets": buckets}
    output = mechanism(key, key, value, mask & masks.causal(), **given)
    torch.testing.assert_close(output[:, :, 5], value[:, :, 5])
    torch.testing.assert_close(output[0, :, -1], value[0, :, -1])
    assert (output[1, :, -1] == 0).all()
    weights = mechanism.weights(key, key, mask=mask & masks.causal(), **given)
    torch.testing.assert_close(weights @ value, output)


@pytest.mark.parametrize(
    ("name", "options", "shown"),
    [
        ("reformer", {"buckets": 8}, "buckets=8,"),
        ("reformer", {"buckets": (2, 4)}, "buckets=[2, 4],"),
        ("reformer", {"buckets": 1}, "buckets=1,"),
        ("dot_product", {"sinks": True}, "sinks=True"),
    ],
)
def test_options_are_part_of_the_repr(name, options, shown):
    assert shown in repr(regard.mechanism(name, heads=2, head_dim=4, **options))
    assert shown not in repr(regard.mechanism(name, heads=2, head_dim=4))
