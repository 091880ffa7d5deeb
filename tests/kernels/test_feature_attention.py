"""Attention by features: the kernel against pair-by-pair sums in float64, at both sides of its internal borders."""

from functools import partial

import pytest
import torch

import regard
from kernels.opcheck_cases import parametrize_opcheck
from regard.errors import RefusedError
from regard.kernels.implementations.feature_attention import FEATURES, attend_by_features, refuses_features
from regard.kernels.reference.feature_attention import FeatureMap, FeatureRequest

FLOORS = {"exponential": 2.0**-60, "relu": 0.0, "elu": 2.0**-100}
KINDS = tuple(FLOORS)
SIZES = [  # queries, keys, head_dim, value_dim, features: chunks have 64 tokens, and ranges 1,024
    (1, 1, 1, 1, 1),
    (3, 67, 5, 3, 17),
    (63, 64, 16, 31, 29),
    (65, 63, 17, 16, 16),
    (131, 1031, 13, 37, 41),
    (1031, 131, 64, 7, 11),
]
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def make_request(kind, sizes=(131, 131, 13, 37, 41), *, heads=(4, 4), causal=False, dtype=torch.float64, hidden=None):
    queries, keys, head_dim, value_dim, features = sizes
    generator = torch.Generator().manual_seed(queries + keys)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    query = random(2, queries, heads[0], head_dim).transpose(1, 2)
    key, value = random(2, heads[1], keys, head_dim), random(2, heads[1], keys, value_dim)
    projection = None if kind == "elu" else random(features, head_dim)
    query, key, value = (side.to(dtype) for side in (query, key, value))
    if projection is not None:
        projection = projection.to(torch.float64 if dtype == torch.float64 else torch.float32)
    return FeatureRequest(query, key, value, projection, hidden, kind, 0.21, FLOORS[kind], 2.0**40, causal)


def make_hidden(heads, keys):
    """Keys that are hidden: the first one, and every third."""
    hidden = torch.zeros(2, heads, 1, keys, dtype=torch.bool)
    hidden[..., 0] = hidden[0, :, :, ::3] = True
    if heads > 1:
        hidden[:, 1] = ~hidden[:, 1]
    return hidden


def attend_pair_by_pair(request, query, key, value):
    """Compute the weights of all pairs, from tokens in float64."""
    projection = None if request.projection is None else request.projection.double()
    features = FeatureMap(request.kind, projection, request.norm_factor, request.floor)
    group = query.shape[1] // key.shape[1]
    key, value = (side.repeat_interleave(group, dim=1) for side in (key, value))
    of_key, log_weight = features.map_keys(key)
    weights = features.map_queries(query) @ (of_key + features.added_floor).mT
    if log_weight is not None:
        weights = weights * (log_weight - log_weight.detach().amax(-1, keepdim=True)).exp()[:, :, None]
    if request.hidden is not None:
        weights = weights.masked_fill(request.hidden, 0.0)
    if request.causal:
        weights = weights.tril()
    total = weights.sum(-1, keepdim=True)
    return (weights @ value) / total.masked_fill(total == 0, 1.0)


def with_gradients(attend, request, dtype, *, differentiate=True):
    """The output of a function of tokens, and their gradients."""
    leaves = [side.detach().to(dtype).requires_grad_(differentiate) for side in request[:3]]
    output = attend(*leaves)
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return [
        output.detach(),
        *(torch.autograd.grad(output, leaves, direction.to(output.dtype)) if differentiate else ()),
    ]


def by_kernel(request):
    return lambda *tokens: attend_by_features(FeatureRequest(*tokens, *request[3:]))[0]


def compute(request, *, differentiate=True):
    """Outputs and gradients of the kernel, and those that are expected."""
    ours = with_gradients(by_kernel(request), request, request.query.dtype, differentiate=differentiate)
    pairs = partial(attend_pair_by_pair, request)
    expected = with_gradients(pairs, request, torch.float64, differentiate=differentiate)
    return zip(ours, expected, strict=True)


def assert_close(ours, expected, dtype):
    allowed = ROUNDING[dtype] * float(expected.abs().max().clamp(min=1e-2))
    assert (ours.double() - expected).abs().max() < allowed


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_pairs(kind, sizes, poison_scratch_memory):
    for ours, expected in compute(make_request(kind, sizes)):
        assert_close(ours, expected, torch.float64)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 131])
@pytest.mark.parametrize("kind", KINDS)
def test_causal_agrees_with_pairs(kind, length, poison_scratch_memory):
    for ours, expected in compute(make_request(kind, (length, length, 13, 37, 41), causal=True)):
        assert_close(ours, expected, torch.float64)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_dtypes(kind, dtype, causal):
    for ours, expected in compute(make_request(kind, dtype=dtype, causal=causal)):
        assert ours.dtype == dtype
        assert_close(ours, expected, dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [(4, 4, 1), (4, 4, 4), (4, 2, 1), (4, 2, 4)], ids=str)
def test_hidden_keys_and_shared_key_heads(heads, causal):
    hidden = make_hidden(heads[2], 131)
    request = make_request("exponential", heads=heads[:2], causal=causal, hidden=hidden)
    assert attend_by_features(request)[1].shape[1] == (4 if causal or heads[2] > 1 else heads[1])
    for ours, expected in compute(request, differentiate=not causal or heads[0] == heads[1]):
        assert_close(ours, expected, torch.float64)


@pytest.mark.parametrize("causal", [False, True])
def test_large_weights_of_late_and_early_keys(causal):
    """Logarithms of weights differ by hundreds, in both orders."""
    request = make_request("exponential", causal=causal)
    for first, last in ((1.0, 9.0), (9.0, 1.0)):
        sizes = torch.linspace(first, last, request.key.shape[2], dtype=torch.float64)
        for ours, expected in compute(request._replace(key=request.key * sizes[:, None])):
            assert ours.isfinite().all()
            assert_close(ours, expected, torch.float64)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_hidden_numbers_have_no_influence(kind, causal):
    hidden = make_hidden(1, 131)
    request = make_request(kind, causal=causal, hidden=hidden)
    changed = request._replace(
        key=request.key.masked_fill(hidden.mT, torch.nan), value=request.value.masked_fill(hidden.mT, torch.inf)
    )
    results = [with_gradients(by_kernel(tokens), tokens, torch.float64) for tokens in (request, changed)]
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    assert not results[0][2].masked_select(hidden.mT).any()


@pytest.mark.parametrize("number", [torch.nan, torch.inf, 2.0**41])
def test_tokens_that_are_not_finite_reach_the_rows_that_see_them(number):
    request = make_request("exponential", causal=True)
    query, key = request.query.clone(), request.key.clone()
    query[0, 0, 3, 1] = key[1, 2, 70, 5] = number
    output = attend_by_features(request._replace(query=query, key=key))[0]
    expected = torch.zeros(output.shape[:3], dtype=torch.bool)
    expected[0, 0, 3] = expected[1, 2, 70:] = True
    assert torch.equal(output.isnan().all(-1), expected)
    assert torch.equal(output.isnan().any(-1), expected)
    flags = attend_by_features(request._replace(query=query, key=key, causal=False))[3]
    assert flags[..., 0].nonzero().tolist() == [[1, 2]]
    assert flags[..., 1].all()


@pytest.mark.parametrize(("causal", "heads"), [(False, 4), (True, 4), (True, 1)])
def test_same_bits_with_any_number_of_threads(causal, heads):
    """With many more threads than heads, a causal call sums the keys of a head before its ranges are computed."""
    sizes = (1097, 1097, 8, 8, 19)
    request = make_request("exponential", sizes, heads=(heads, heads), dtype=torch.float32, causal=causal)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            results.append(with_gradients(by_kernel(request), request, torch.float32))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(*pair) for pair in zip(results[0], results[1], strict=True))
    assert all(torch.equal(*pair) for pair in zip(results[0], results[2], strict=True))


def test_second_derivatives():
    """Of all keys in torch; causally they are refused."""
    request = make_request("exponential", (7, 7, 3, 2, 5), heads=(1, 1))
    leaves = [side.detach().contiguous().requires_grad_() for side in request[:3]]

    def attend(*tokens, causal=False):
        query, key, value = tokens
        return attend_by_features(request._replace(query=query, key=key, value=value, causal=causal))[0]

    assert torch.autograd.gradgradcheck(attend, leaves, fast_mode=True)
    (gradient,) = torch.autograd.grad(attend(*leaves, causal=True).sum(), leaves[1], create_graph=True)
    with pytest.raises(RefusedError):
        gradient.sum().backward()


def operator_inputs(kind):
    request = make_request(kind, (5, 5, 3, 2, 7), heads=(2, 2), dtype=torch.float32, causal=kind == "relu")
    return [side.requires_grad_() for side in request[:3]] + list(request[3:])


@parametrize_opcheck(KINDS, default_kinds=("exponential",))
def test_passes_opcheck(name, utilities, without_shape_checks):
    torch.library.opcheck(torch.ops.regard.feature_attention.default, operator_inputs(name), test_utils=utilities)


@pytest.mark.parametrize("kind", KINDS)
def test_operator_and_eager_path_give_the_same_bits(kind):
    inputs, results = operator_inputs(kind), []
    for function in (FEATURES.torch_op, FEATURES.compute_with_grad):
        output = function(*inputs)[0]
        results.append([output, *torch.autograd.grad(output.square().sum(), inputs[:3])])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["performer", "linear"])
def test_mechanisms_agree_with_sums_of_blocks(name, causal):
    """And the states that they leave."""
    query, key, value = make_request("elu", (131, 131, 8, 5, 0), heads=(4, 2))[:3]
    mask = regard.masks.causal() if causal else None
    pair = [regard.mechanism(name, heads=4, head_dim=8, impl=impl).double() for impl in ("auto", "reference")]
    if name == "performer":
        pair[1].projection = pair[0].projection
    outputs, states = zip(*(each.step(query, key, value, each.empty_state(), mask) for each in pair), strict=True)
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-11)
    few = [side[:, :, :3] for side in (query, key, value)]
    steps = [each.step(*few, state, mask)[0] for each, state in zip(pair, states, strict=True)]
    torch.testing.assert_close(*steps, rtol=0, atol=1e-11)


def test_refusals_name_the_limit():
    wide = make_request("exponential", (3, 3, 1031, 2, 5))
    assert "1024" in refuses_features(wide)
    assert "at least one" in refuses_features(make_request("elu", (0, 3, 2, 2, 0)))
    grouped = make_request("elu", heads=(4, 2), causal=True)
    grouped.query.requires_grad_()
    assert "key head" in refuses_features(grouped)
