"""What was recorded of a layer gives its weights again, whichever mechanism scored: against the papers, in float64."""

import numpy as np
import pytest
import torch
from torch import nn

import regard
from oracles import recurrent as papers
from oracles.attention import attention
from oracles.positions import alibi, t5_buckets
from regard import masks, positions
from regard.errors import RefusedError
from regard.mechanisms.local_p import LocalPredictive
from regard.view.seen_layer import layers_of

HEADS, QUERIES, KEYS, HEAD_DIM = 3, 5, 7, 11
WIDTH = HEADS * HEAD_DIM


def seen_by(mechanism: nn.Module, queries: int = QUERIES, keys: int = KEYS, **options):
    """The layer, and its random query and key (heads, length, head_dim) in float64."""
    torch.manual_seed(3)
    query, key = torch.randn(1, HEADS, queries, HEAD_DIM), torch.randn(1, HEADS, keys, HEAD_DIM)
    with regard.record(mechanism) as seen:
        mechanism(query, key, torch.randn(1, HEADS, keys, HEAD_DIM), **options)
    (layer,) = layers_of(seen)
    return layer, query[0].double().numpy(), key[0].double().numpy()


def numbers(parameter: nn.Parameter) -> np.ndarray:
    return parameter.detach().double().numpy()


def weigher(name: str, mechanism: nn.Module, head: int) -> papers.Weigh:
    if name == "additive":
        parts = (mechanism.query_weight, mechanism.key_weight, mechanism.score_vector)
        return papers.additive(*(numbers(part)[head] for part in parts))
    if name == "luong_dot":
        return papers.dot
    if name == "luong_general":
        return papers.general(numbers(mechanism.weight)[head])
    return papers.concat(numbers(mechanism.weight)[head], numbers(mechanism.score_vector)[head])


@pytest.mark.parametrize("name", ["additive", "luong_dot", "luong_general", "luong_concat"])
def test_scores_of_other_mechanisms(name: str) -> None:
    mechanism = regard.mechanism(name, heads=HEADS, head_dim=HEAD_DIM)
    layer, query, key = seen_by(mechanism)
    expected = [[weigher(name, mechanism, h)(query[h, i], key[h]) for i in range(QUERIES)] for h in range(HEADS)]
    np.testing.assert_allclose(layer.weights(), expected, atol=2e-5)


def test_the_scaled_dot_product_under_a_mask() -> None:
    mask = masks.causal() & masks.window(2, 1)
    layer, query, key = seen_by(regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM), mask=mask)
    allowed = [[KEYS - QUERIES + i - 2 <= j <= KEYS - QUERIES + i for j in range(KEYS)] for i in range(QUERIES)]
    _, expected = attention(query[None], key[None], key[None], np.array(allowed))
    np.testing.assert_allclose(layer.weights(), expected[0], atol=2e-6)


def test_a_bias_by_distance() -> None:
    layer, query, key = seen_by(
        regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM), bias=positions.ALiBi(HEADS)
    )
    _, expected = attention(query[None], key[None], key[None], bias=alibi(HEADS, QUERIES, KEYS)[None])
    np.testing.assert_allclose(layer.weights(), expected[0], atol=2e-6)


def test_a_trained_bias_by_distance() -> None:
    position = positions.T5Buckets(HEADS)
    nn.init.normal_(position.weight)
    layer, query, key = seen_by(regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM), bias=position)
    bias = numbers(position.weight)[t5_buckets(QUERIES, KEYS)].transpose(2, 0, 1)
    _, expected = attention(query[None], key[None], key[None], bias=bias[None])
    np.testing.assert_allclose(layer.weights(), expected[0], atol=2e-6)


@pytest.mark.parametrize("values", [True, False])
def test_relative_positions(values: bool) -> None:
    position = positions.ShawRelative(HEAD_DIM, 2, values=values)
    layer, query, key = seen_by(regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM), bias=position)
    distance = np.arange(KEYS)[None] - np.arange(QUERIES)[:, None] + QUERIES - KEYS
    vectors = numbers(position.key_vectors)[distance.clip(-2, 2) + 2]
    bias = np.einsum("hqd,qkd->hqk", query, vectors) / np.sqrt(HEAD_DIM)
    _, expected = attention(query[None], key[None], key[None], bias=bias[None])
    np.testing.assert_allclose(layer.weights(), expected[0], atol=2e-6)
    assert (layer.relative.value is not None) == values


def test_local_attention_under_its_bell_curve() -> None:
    torch.manual_seed(11)
    mechanism = LocalPredictive(heads=1, head_dim=HEAD_DIM, window=2)
    query, key = torch.randn(1, 1, QUERIES, HEAD_DIM), torch.randn(1, 1, KEYS, HEAD_DIM)
    with regard.record(mechanism) as seen:
        mechanism(query, key, key)
    (layer,) = layers_of(seen)
    weight, of_position, vector = mechanism.align.weight, mechanism.position_weight, mechanism.position_vector
    weigh = papers.local_p(*(numbers(part)[0] for part in (weight, of_position, vector)), 2)
    expected = [weigh(row, key[0, 0].double().numpy()) for row in query[0, 0].double().numpy()]
    np.testing.assert_allclose(layer.weights()[0], expected, atol=2e-5)
    assert (np.array(expected) == 0).any(), "some keys lie outside the window"


def test_steps_of_one_layer_are_joined_and_grouped_heads_repeated() -> None:
    torch.manual_seed(13)
    layer = regard.MultiHeadAttention(2 * HEAD_DIM, 2, key_value_heads=1).eval()
    tokens, memory = torch.randn(1, QUERIES, 2 * HEAD_DIM), torch.randn(1, KEYS, 2 * HEAD_DIM)
    with regard.record(layer) as seen, torch.no_grad():
        for step in tokens.split(1, dim=1):
            layer(step, memory)
    (found,) = layers_of(seen)
    with torch.no_grad():
        query = layer.query_projection(tokens)[0].double().numpy().reshape(QUERIES, 2, HEAD_DIM).transpose(1, 0, 2)
        key = layer.key_projection(memory)[0].double().numpy()[None]
    _, expected = attention(query[None], key[None], key[None])
    np.testing.assert_allclose(found.weights(), expected[0], atol=2e-6)
    assert found.value.shape == (2, KEYS, HEAD_DIM)


def test_what_the_page_cannot_compute_again_is_refused() -> None:
    mechanism = regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM)
    with pytest.raises(RefusedError, match=r"dot product under relative positions(.|\n)*LuongDot"):
        seen_by(regard.mechanism("luong_dot", heads=HEADS, head_dim=HEAD_DIM), bias=positions.ShawRelative(HEAD_DIM, 2))
    with pytest.raises(RefusedError, match="a bias of type Tensor"):
        seen_by(mechanism, bias=torch.zeros(1, 1, QUERIES, KEYS))
    heads_differ = masks.keep(torch.rand(1, HEADS, QUERIES, KEYS) < 0.5)
    with pytest.raises(RefusedError, match="one mask for all heads"):
        seen_by(mechanism, mask=heads_differ)
