"""Linformer: the ways of sharing a projection, lengths, and the rates of its errors."""

import numpy as np
import pytest
import torch
from torch import nn

import regard
from regard import masks, positions
from regard.conformance.oracles import linformer as oracle
from regard.conformance.oracles.complex_step import check_gradients
from regard.errors import OptionError, RefusedError, RegardError
from regard.kernels.token_projection import TokenProjection
from regard.mechanisms import Linformer, linformer
from regard.mechanisms.linformer import SHARINGS, make_projection

BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, HEAD_DIM, LENGTH, PROJECTED = 2, 4, 2, 5, 11, 7, 13, 3


def build(sharing="headwise", **options):
    if sharing == "layerwise":
        options = {"projection": make_projection(PROJECTED, LENGTH), **options}
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "length": LENGTH, "projected": PROJECTED}
    return Linformer(**{**sizes, "sharing": sharing, **options}).double()


def make_inputs(key_heads=HEADS):
    generator = torch.Generator().manual_seed(3)
    shapes = ((HEADS, QUERIES), (key_heads, KEYS), (key_heads, KEYS))
    return [torch.randn(BATCH, *shape, HEAD_DIM, generator=generator, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("key_heads", [HEADS, KEY_HEADS, 1])
@pytest.mark.parametrize("sharing", SHARINGS)
def test_each_sharing_agrees_with_the_equation(sharing, key_heads):
    mechanism, inputs = build(sharing), make_inputs(key_heads)
    for mask, allowed in (
        (None, None),
        (masks.padding([KEYS, 4]), np.arange(KEYS)[None] < np.array([KEYS, 4])[:, None]),
    ):
        allowed = None if allowed is None else allowed[:, None, None]
        numbers = [one.detach().numpy() for one in (*inputs, *mechanism.projections)]
        expected = oracle.attention(*numbers, allowed)
        np.testing.assert_allclose(mechanism(*inputs, mask).detach().numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mask", ["none", "padding", "per head"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sharing", ["headwise", "key-value", "layerwise"])
def test_a_layer_projects_the_length_first(sharing, bias, mask, monkeypatch):
    """(E X) W^T + (E 1) b^T in place of E (X W^T + 1 b^T): the same outputs and gradients, by the equation."""
    width = HEADS * HEAD_DIM
    layer = regard.MultiHeadAttention(width, HEADS, key_value_heads=KEY_HEADS, mechanism=build(sharing), bias=bias)
    layer = layer.double()
    if mask != "per head":
        monkeypatch.setattr(TokenProjection, "compute", None)
    made = torch.Generator().manual_seed(4)
    numbers = {"query": (QUERIES, width), "key": (KEYS, width), "value": (KEYS, width)}
    numbers = {name: torch.randn(BATCH, *size, generator=made, dtype=torch.float64) for name, size in numbers.items()}
    for name, one in layer.named_parameters():
        numbers[name] = torch.randn(one.shape, generator=made, dtype=torch.float64) / 3
    of_call, allowed = None, None
    if mask == "padding":
        of_call, allowed = masks.padding([KEYS - 2, 0]), np.arange(KEYS)[None] < np.array([KEYS - 2, 0])[:, None]
        allowed = allowed[:, None, None]
    elif mask == "per head":
        allowed = np.random.default_rng(1).random((1, HEADS, 1, KEYS)) < 0.6
        of_call = masks.keep(torch.tensor(allowed))

    def expected(given):
        def project(name, tokens):
            return tokens @ given[f"{name}.weight"].T + given.get(f"{name}.bias", 0)

        def heads(side):
            projected = project(f"{side}_projection", given[side])
            return projected.reshape(*projected.shape[:2], -1, HEAD_DIM).swapaxes(1, 2)

        own = [f"mechanism.{side}_projection" for side in ("key", "value")]
        own = own if sharing == "headwise" else ["mechanism.projection"] * 2
        mixed = oracle.attention(
            *(heads(side) for side in ("query", "key", "value")), *(given[n] for n in own), allowed
        )
        return project("output_projection", mixed.swapaxes(1, 2).reshape(BATCH, QUERIES, width))

    leaves = {name: one.clone().requires_grad_() for name, one in numbers.items()}
    sides = [leaves[side] for side in ("query", "key", "value")]
    parameters = {name: one for name, one in leaves.items() if "." in name}
    output = torch.func.functional_call(layer, parameters, tuple(sides), {"mask": of_call})
    arrays = {name: one.numpy() for name, one in numbers.items()}
    np.testing.assert_allclose(output.detach(), expected(arrays), atol=1e-12)
    upstream = torch.randn(output.shape, generator=made, dtype=torch.float64)
    found = torch.autograd.grad(output, list(leaves.values()), upstream)
    gradients = {name: one.numpy() for name, one in zip(leaves, found, strict=True)}
    check_gradients(lambda moved: expected(moved) * upstream.numpy(), arrays, gradients, atol=1e-9)


def test_self_attention_projects_the_length_of_its_tokens_once(monkeypatch):
    layer = regard.MultiHeadAttention(28, HEADS, mechanism=build("key-value")).double()
    tokens, calls = torch.randn(BATCH, KEYS, 28, dtype=torch.float64), []
    plain = layer(tokens)
    original = linformer._project
    monkeypatch.setattr(linformer, "_project", lambda weight, of: calls.append(of.shape[-1]) or original(weight, of))
    assert torch.equal(layer(tokens), plain)
    assert calls.count(28) == 1
    sides = (layer.query_projection, layer.key_projection, layer.value_projection)
    mixed = layer.mechanism(*(layer._project_heads(tokens, one, "query") for one in sides))
    torch.testing.assert_close(layer._merge_heads(mixed, layer.mechanism, tokens), plain)
    with regard.record(layer) as seen:
        assert torch.equal(layer(tokens), plain)
    torch.testing.assert_close(seen[0].key, layer._project_heads(tokens, layer.key_projection, "key"))
    torch.testing.assert_close(seen[0].value, layer._project_heads(tokens, layer.value_projection, "value"))


@pytest.mark.parametrize("case", ["rotation", "norm", "own projection of each head", "more keys than tokens"])
def test_a_layer_projects_the_width_first_where_it_must_or_where_that_is_less(case, monkeypatch):
    def refuse(*_):
        raise AssertionError("the length was projected first")

    monkeypatch.setattr(Linformer, "_attend_absorbed", refuse)
    rotary = positions.Rotary(6) if case == "rotation" else None
    norm = regard.layers.RMSNorm(6) if case == "norm" else None
    sharing = "none" if case.startswith("own") else "headwise"
    projected = 40 if case.startswith("more") else PROJECTED
    options = {"length": LENGTH, "projected": projected, "sharing": sharing}
    layer = regard.MultiHeadAttention(
        24, HEADS, mechanism="linformer", mechanism_options=options, position=rotary, key_norm=norm
    )
    tokens = torch.randn(BATCH, KEYS, 24)
    assert layer(tokens).isfinite().all()


@pytest.mark.parametrize("key", [None, "text", torch.zeros(1, 2, 3, 5)])
def test_projected_values_without_projected_keys_are_refused(key):
    value = TokenProjection(torch.zeros(1, 3, 7), torch.zeros(10, 7), None, 2)
    with pytest.raises(RegardError, match="tensor"):
        Linformer(heads=2, head_dim=5)(torch.zeros(1, 2, 3, 5), key, value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_layer_in_half_precision_and_autocast(dtype):
    layer = regard.MultiHeadAttention(28, HEADS, mechanism=build().float())
    tokens = torch.randn(BATCH, KEYS, 28)
    exact = layer(tokens)
    with torch.autocast("cpu", dtype):
        for one in (layer(tokens), layer(tokens, tokens.clone()), layer(tokens, tokens, tokens.clone())):
            torch.testing.assert_close(one.float(), exact, atol=0.03, rtol=0.03)
    torch.testing.assert_close(layer.to(dtype)(tokens.to(dtype)).float(), exact, atol=0.03, rtol=0.03)


def test_hidden_and_visible_tokens_that_are_not_finite():
    layer, mask = regard.MultiHeadAttention(28, HEADS, mechanism=build()).double(), masks.padding([KEYS, 4])
    tokens, query = torch.randn(BATCH, KEYS, 28, dtype=torch.float64), torch.randn(BATCH, 3, 28, dtype=torch.float64)
    clean = layer(query, tokens, mask=mask)
    tokens[1, 4:] = torch.nan
    tokens.requires_grad_()
    hidden = layer(query, tokens, mask=mask)
    assert torch.equal(hidden, clean)
    (gradient,) = torch.autograd.grad(hidden.sum(), tokens)
    assert torch.equal(gradient[1, 4:], torch.zeros_like(gradient[1, 4:]))
    assert layer(query, tokens, mask=masks.padding([KEYS, 5]))[1].isnan().all()


@pytest.mark.parametrize(
    ("sharing", "names", "heads"),
    [
        ("headwise", {"key_projection", "value_projection"}, ()),
        ("key-value", {"projection"}, ()),
        ("layerwise", {"projection"}, ()),
        ("none", {"key_projection", "value_projection"}, (HEADS,)),
    ],
)
def test_parameters_of_each_sharing(sharing, names, heads):
    parameters = dict(build(sharing).named_parameters())
    assert set(parameters) == names
    assert all(one.shape == (*heads, PROJECTED, LENGTH) for one in parameters.values())


@pytest.mark.parametrize("sharing", SHARINGS)
def test_gradients_agree_with_finite_differences(sharing):
    mechanism, inputs = build(sharing), [one.requires_grad_() for one in make_inputs(KEY_HEADS)]
    names, parameters = zip(*mechanism.named_parameters(), strict=True)

    def output(query, key, value, *numbers):
        weights = dict(zip(names, numbers, strict=True))
        return torch.func.functional_call(mechanism, weights, (query, key, value, masks.padding([KEYS, 4])))

    assert torch.autograd.gradcheck(output, (*inputs, *parameters), fast_mode=True)


def test_layers_share_one_parameter():
    projection = make_projection(PROJECTED, LENGTH)
    options = {"length": LENGTH, "projected": PROJECTED, "sharing": "layerwise", "projection": projection}
    model = nn.Sequential(
        *(regard.MultiHeadAttention(28, HEADS, mechanism="linformer", mechanism_options=options) for _ in range(2))
    )
    assert sum(parameter is projection for parameter in model.parameters()) == 1
    model(torch.randn(1, KEYS, 28)).square().sum().backward()
    assert projection.grad[:, :KEYS].any()
    assert not projection.grad[:, KEYS:].any()
    assert all(layer.mechanism.projection is projection for layer in model)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sharing": "headwide"}, r"(?s)unknown sharing 'headwide'.*'headwise'"),
        (
            {"sharing": "layerwise", "projection": make_projection(2, LENGTH)},
            r"(?s)the projection that the layers share does not fit.*nn.Parameter \(3, 13\).*make_proj",
        ),
        ({"sharing": "layerwise", "projection": torch.randn(PROJECTED, LENGTH)}, "does not fit"),
        ({"sharing": "none", "projection": make_projection(PROJECTED, LENGTH)}, "has projections of its own"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        Linformer(heads=HEADS, head_dim=HEAD_DIM, length=LENGTH, projected=PROJECTED, **options)


def test_too_many_keys_are_refused():
    tokens = torch.randn(1, HEADS, LENGTH + 1, HEAD_DIM, dtype=torch.float64)
    said = r"(?s)made for at most 13 keys, and there are 14.*to do: .*length=14 and train it, or cut the text to 13"
    with pytest.raises(RefusedError, match=said):
        build()(tokens, tokens, tokens)


def test_identity_projections_equal_exact_attention():
    mechanism, (query, key, value) = build(projected=KEYS, length=KEYS), make_inputs()
    for parameter in mechanism.parameters():
        parameter.data = (
            torch.eye(KEYS, dtype=torch.float64)[torch.randperm(KEYS)] if False else torch.eye(KEYS).double()
        )
    torch.testing.assert_close(mechanism(query, key, value), regard.attention(query, key, value), rtol=0, atol=1e-12)


def fit_slope(counts, errors):
    return np.polyfit(np.log(counts), np.log(errors), 1)[0]


def test_error_rate_of_random_projections():
    """|P F^T F V - P V| falls as 1/sqrt(projected) for projections as drawn: Johnson and Lindenstrauss, theorem 1.

    P are weights of exact attention. The theorem bounds the product of low rank, which a trained projection replaces.
    """
    length, counts = 64, (16, 64, 256, 1024)
    torch.manual_seed(7)
    query, key, value = torch.randn(3, 1, 2, length, HEAD_DIM, dtype=torch.float64)
    weights = regard.mechanism("dot_product", heads=2, head_dim=HEAD_DIM).weights(query, key)
    exact, errors = weights @ value, []
    for projected in counts:
        squares = []
        for _ in range(10):
            drawn = Linformer(heads=2, head_dim=HEAD_DIM, length=length, projected=projected).value_projection.double()
            squares.append(((weights @ drawn.mT) @ (drawn @ value) - exact).square().mean().detach())
        errors.append(np.mean(squares) ** 0.5)
    assert -0.55 < fit_slope(counts, errors) < -0.45, errors


def test_error_against_exact_attention_decreases_with_the_rank():
    """With E = F whose rows pick keys at random, the error of a sample's mean: 1/sqrt(projected)."""
    length, counts = 512, (8, 32, 128)
    torch.manual_seed(8)
    query, key, value = torch.randn(3, 1, HEADS, length, HEAD_DIM, dtype=torch.float64)
    exact, errors = regard.attention(query, key, value), []
    for projected in counts:
        mechanism = build("key-value", projected=projected, length=length)
        squares = []
        for _ in range(10):
            drawn = torch.randint(length, (projected,))
            mechanism.projection.data = nn.functional.one_hot(drawn, length).double()
            squares.append((mechanism(query, key, value) - exact).square().mean().detach())
        errors.append(np.mean(squares) ** 0.5)
    assert -0.6 < fit_slope(counts, errors) < -0.4, errors


@pytest.mark.parametrize("sharing", SHARINGS)
def test_visible_nan_affects_only_its_sequence_and_head(sharing):
    mechanism, (query, key, value) = build(sharing), make_inputs()
    key[1, 2, 3, 0] = torch.nan
    output = mechanism(query, key, value)
    assert output[1, 2].isnan().all()
    output[1, 2] = 0
    assert output.isfinite().all()
