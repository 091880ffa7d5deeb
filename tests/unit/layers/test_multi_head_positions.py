"""Positions and caches in the layer: the last query is at the last key, however tokens are split into calls."""

import pytest
import torch
from torch.testing import assert_close

import regard
from capabilities import causal_or_none
from oracles import blocks as oracle
from regard import masks, positions
from regard.conformance.oracles import positions as position_oracle
from regard.errors import RefusedError

WIDTH, HEADS = 12, 3

POSITIONS = [
    positions.Rotary(4),
    positions.Rotary(4, layout="pairs", scaling=positions.DynamicScaling(2.0, 5)),
    positions.ALiBi(HEADS),
    positions.T5Buckets(HEADS),
    positions.ShawRelative(4, 2),
]


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("key_value_heads", [1, 3])
@pytest.mark.parametrize("position", POSITIONS, ids=repr)
def test_last_queries_equal_those_of_the_whole_sequence(position, key_value_heads):
    layer = regard.MultiHeadAttention(WIDTH, HEADS, key_value_heads=key_value_heads, position=position).double()
    tokens = randn(2, 11, WIDTH)
    whole = layer(tokens, mask=masks.causal())
    assert_close(layer(tokens[:, 8:], tokens, mask=masks.causal()), whole[:, 8:])
    assert_close(layer.attend_memory(tokens[:, 8:], layer.project_memory(tokens), mask=masks.causal()), whole[:, 8:])


def test_distance_bias_agrees_with_the_oracle():
    layer = regard.MultiHeadAttention(WIDTH, HEADS, position=positions.ALiBi(HEADS), bias=False).double()
    projections = (layer.query_projection, layer.key_projection, layer.value_projection, layer.output_projection)
    sides = [oracle.Linear(projection.weight.detach().numpy().T) for projection in projections]
    tokens = randn(2, 7, WIDTH)
    expected, _ = oracle.multi_head(
        tokens.numpy(), oracle.MultiHead(*sides, HEADS, HEADS), bias=position_oracle.alibi(HEADS, 7, 7)
    )
    assert_close(layer(tokens).detach(), torch.from_numpy(expected), rtol=0, atol=1e-12)


def test_rotary_positions_depend_on_word_order():
    tokens, order = torch.randn(1, 7, WIDTH), torch.randperm(7)
    plain = regard.MultiHeadAttention(WIDTH, HEADS)
    with_rotary = regard.MultiHeadAttention(WIDTH, HEADS, position=positions.Rotary(4))
    assert_close(plain(tokens[:, order]), plain(tokens)[:, order])
    assert (with_rotary(tokens[:, order]) - with_rotary(tokens)[:, order]).abs().max() > 1e-2


def test_attend_memory_from_an_offset():
    layer = regard.MultiHeadAttention(WIDTH, HEADS, position=positions.Rotary(4)).double()
    query, memory = randn(1, 3, WIDTH), randn(1, 7, WIDTH)
    projected = layer.project_memory(memory)
    assert_close(layer.attend_memory(query, projected, offset=4), layer(query, memory))
    pieces = [layer.attend_memory(query[:, at : at + 1], projected, offset=at) for at in range(3)]
    assert_close(torch.cat(pieces, dim=1), layer.attend_memory(query, projected, offset=0))
    assert (layer.attend_memory(query, projected, offset=0) - layer(query, memory)).abs().max() > 1e-3


@pytest.mark.parametrize("position", [positions.T5Buckets(HEADS), positions.ShawRelative(4, 2)], ids=repr)
def test_trained_positions_are_parameters_of_the_layer(position):
    layer = regard.MultiHeadAttention(WIDTH, HEADS, position=position)
    layer(torch.randn(1, 5, WIDTH)).square().sum().backward()
    names = {name for name, _ in layer.named_parameters() if name.startswith("position.")}
    assert names == {f"position.{name}" for name, _ in position.named_parameters()}
    assert all(parameter.grad.abs().max() > 0 for parameter in position.parameters())
    position.zero_grad()


@pytest.mark.parametrize("name", [entry.name for entry in regard.catalogue()])
def test_masked_tokens_have_no_influence(name):
    layer = regard.MultiHeadAttention(WIDTH, HEADS, mechanism=name).eval()
    tokens, causal = torch.randn(2, 7, WIDTH), causal_or_none(layer.mechanism)
    mask = masks.padding([7, 4]) if causal is None else causal & masks.padding([7, 4])
    moved = tokens.clone()
    moved[1, 4:] = torch.nan
    before, after = (layer(inputs, mask=mask) for inputs in (tokens, moved))
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1, :4], after[1, :4])


@pytest.mark.parametrize("name", [row.name for row in regard.catalogue() if not row.bias])
def test_a_layer_refuses_a_bias_that_its_mechanism_does_not_support(name):
    with pytest.raises(RefusedError, match=r"(?s)refuses the position ALiBi: a bias .*to do: +choose such a position"):
        regard.MultiHeadAttention(8, 2, mechanism=name, position=positions.ALiBi(2))
    tokens = torch.randn(1, 2, 3, 4)
    mechanism = regard.mechanism(name, heads=2, head_dim=4)
    with pytest.raises(RefusedError, match=r"(?s)refuses: a bias .*to do: +leave out the bias, or use a position"):
        mechanism(tokens, tokens, tokens, bias=positions.ALiBi(2))


def test_a_refusal_says_what_to_change():
    linear = regard.mechanism("linear", heads=2, head_dim=4)
    tokens = torch.randn(1, 2, 3, 4)
    with pytest.raises(RefusedError, match=r"(?s)to do: +regard.catalogue\(\) lists which masks"):
        linear(tokens, tokens, tokens, masks.window(1, 0), bias=positions.ALiBi(2))
