"""Weights recomputed from a layer's recording, for every mechanism: against the papers, in float64."""

import numpy as np
import pytest
import torch
from torch import nn

import regard
from oracles import recurrent as papers
from regard import masks, positions
from regard.conformance.oracles.attention import attention
from regard.conformance.oracles.positions import alibi, t5_buckets
from regard.errors import RefusedError, ShapeError
from regard.masks import Mask
from regard.mechanisms.local_p import LocalPredictive
from regard.positions.base import PairBias
from regard.view.attention_layer import AttentionLayer
from regard.view.from_recording import layers_of
from regard.view.layer_reading import LayerReading
from regard.view.layer_weights import LayerWeights

HEADS, QUERIES, KEYS, HEAD_DIM = 3, 5, 7, 11
WIDTH = HEADS * HEAD_DIM


def record_layer(mechanism: nn.Module, queries: int = QUERIES, keys: int = KEYS, **options):
    """Return the recorded layer, and its random query and key (heads, length, head_dim) in float64."""
    torch.manual_seed(3)
    query, key = torch.randn(1, HEADS, queries, HEAD_DIM), torch.randn(1, HEADS, keys, HEAD_DIM)
    with regard.record(mechanism) as recording:
        mechanism(query, key, torch.randn(1, HEADS, keys, HEAD_DIM), **options)
    (layer,) = layers_of(recording)
    return layer, query[0].double().numpy(), key[0].double().numpy()


def to_numpy(parameter: nn.Parameter) -> np.ndarray:
    return parameter.detach().double().numpy()


def make_weigh(name: str, mechanism: nn.Module, head: int) -> papers.Weigh:
    if name == "additive":
        parts = (mechanism.query_weight, mechanism.key_weight, mechanism.score_vector)
        return papers.additive(*(to_numpy(part)[head] for part in parts))
    if name == "luong_dot":
        return papers.dot
    if name == "luong_general":
        return papers.general(to_numpy(mechanism.weight)[head])
    return papers.concat(to_numpy(mechanism.weight)[head], to_numpy(mechanism.score_vector)[head])


@pytest.mark.parametrize("name", ["additive", "luong_dot", "luong_general", "luong_concat"])
def test_weights_of_other_mechanisms(name: str) -> None:
    mechanism = regard.mechanism(name, heads=HEADS, head_dim=HEAD_DIM)
    layer, query, key = record_layer(mechanism)
    expected = [[make_weigh(name, mechanism, h)(query[h, i], key[h]) for i in range(QUERIES)] for h in range(HEADS)]
    np.testing.assert_allclose(layer.weights(), expected, atol=2e-5)


def test_scaled_dot_product_with_a_mask() -> None:
    mask = masks.causal() & masks.window(2, 1)
    layer, query, key = record_layer(regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM), mask=mask)
    allowed = [[KEYS - QUERIES + i - 2 <= j <= KEYS - QUERIES + i for j in range(KEYS)] for i in range(QUERIES)]
    _, expected = attention(query[None], key[None], key[None], np.array(allowed))
    np.testing.assert_allclose(layer.weights(), expected[0], atol=2e-6)


def test_distance_bias() -> None:
    layer, query, key = record_layer(
        regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM), bias=positions.ALiBi(HEADS)
    )
    _, expected = attention(query[None], key[None], key[None], bias=alibi(HEADS, QUERIES, KEYS)[None])
    np.testing.assert_allclose(layer.weights(), expected[0], atol=2e-6)


def test_trained_distance_bias() -> None:
    position = positions.T5Buckets(HEADS)
    nn.init.normal_(position.weight)
    layer, query, key = record_layer(regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM), bias=position)
    bias = to_numpy(position.weight)[t5_buckets(QUERIES, KEYS)].transpose(2, 0, 1)
    _, expected = attention(query[None], key[None], key[None], bias=bias[None])
    np.testing.assert_allclose(layer.weights(), expected[0], atol=2e-6)


@pytest.mark.parametrize("values", [True, False])
def test_relative_positions(values: bool) -> None:
    position = positions.ShawRelative(HEAD_DIM, 2, values=values)
    layer, query, key = record_layer(regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM), bias=position)
    distance = np.arange(KEYS)[None] - np.arange(QUERIES)[:, None] + QUERIES - KEYS
    vectors = to_numpy(position.key_vectors)[distance.clip(-2, 2) + 2]
    bias = np.einsum("hqd,qkd->hqk", query, vectors) / np.sqrt(HEAD_DIM)
    _, expected = attention(query[None], key[None], key[None], bias=bias[None])
    np.testing.assert_allclose(layer.weights(), expected[0], atol=2e-6)
    assert (layer.relative_vectors.value is not None) == values


@pytest.mark.parametrize(("queries", "keys"), [(QUERIES, KEYS), (KEYS, KEYS), (KEYS, QUERIES)])
def test_relative_positions_of_transformer_xl(queries: int, keys: int) -> None:
    """Dai et al. 2019, section 3.3: (q + u) . k + (q + v) . W s(i - j), where the query has its u, and c = v - u."""
    position = positions.RelativeSinusoidal(HEADS, HEAD_DIM, 12)
    nn.init.normal_(position.query_bias)
    mechanism = regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM)
    layer, query, key = record_layer(mechanism, queries, keys, bias=position)
    assert isinstance(layer, LayerReading)
    behind = np.arange(queries)[:, None] + keys - queries - np.arange(keys)
    angles = behind[..., None] / 10_000 ** (2 * np.arange(6) / 12)
    sinusoids = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(*behind.shape, 12)
    vectors = np.einsum("hcw,qkw->hqkc", to_numpy(position.weight).reshape(HEADS, HEAD_DIM, 12), sinusoids)
    bias = np.einsum("hqc,hqkc->hqk", query + to_numpy(position.query_bias)[:, None], vectors) / np.sqrt(HEAD_DIM)
    _, expected = attention(query[None], key[None], key[None], bias=bias[None])
    np.testing.assert_allclose(layer.weights(), expected[0], atol=2e-6)


def test_local_p_with_its_gaussian_window() -> None:
    torch.manual_seed(11)
    mechanism = LocalPredictive(heads=1, head_dim=HEAD_DIM, window=2)
    query, key = torch.randn(1, 1, QUERIES, HEAD_DIM), torch.randn(1, 1, KEYS, HEAD_DIM)
    with regard.record(mechanism) as recording:
        mechanism(query, key, key)
    (layer,) = layers_of(recording)
    weight, of_position, vector = mechanism.align.weight, mechanism.position_weight, mechanism.position_vector
    weigh = papers.local_p(*(to_numpy(part)[0] for part in (weight, of_position, vector)), 2)
    expected = [weigh(row, key[0, 0].double().numpy()) for row in query[0, 0].double().numpy()]
    np.testing.assert_allclose(layer.weights()[0], expected, atol=2e-5)
    assert (np.array(expected) == 0).any(), "some keys lie outside the window"


def test_calls_of_one_layer_are_joined_and_grouped_heads_repeated() -> None:
    torch.manual_seed(13)
    layer = regard.MultiHeadAttention(2 * HEAD_DIM, 2, key_value_heads=1).eval()
    tokens, memory = torch.randn(1, QUERIES, 2 * HEAD_DIM), torch.randn(1, KEYS, 2 * HEAD_DIM)
    with regard.record(layer) as recording, torch.no_grad():
        for step in tokens.split(1, dim=1):
            layer(step, memory)
    (actual,) = layers_of(recording)
    with torch.no_grad():
        query = layer.query_projection(tokens)[0].double().numpy().reshape(QUERIES, 2, HEAD_DIM).transpose(1, 0, 2)
        key = layer.key_projection(memory)[0].double().numpy()[None]
    _, expected = attention(query[None], key[None], key[None])
    np.testing.assert_allclose(actual.weights(), expected[0], atol=2e-6)
    assert actual.value.shape == (2, KEYS, HEAD_DIM)


def test_relative_positions_under_an_unscaled_dot_product() -> None:
    position = positions.ShawRelative(HEAD_DIM, 2, values=False)
    layer, query, key = record_layer(regard.mechanism("luong_dot", heads=HEADS, head_dim=HEAD_DIM), bias=position)
    assert isinstance(layer, LayerReading), "vectors by distance meet the query itself, as in the steps of the page"
    _, expected = attention(query[None], key[None], key[None], bias=shaw_bias(position, query)[None], scale=1.0)
    np.testing.assert_allclose(layer.weights(), expected[0], atol=2e-5)


def shaw_bias(position: positions.ShawRelative, query: np.ndarray) -> np.ndarray:
    """Product of the query and the vector of each distance: Shaw et al. 2018, equation 4."""
    distance = np.arange(KEYS)[None] - np.arange(QUERIES)[:, None] + QUERIES - KEYS
    vectors = to_numpy(position.key_vectors)[distance.clip(-2, 2) + 2]
    return np.einsum("hqd,qkd->hqk", query, vectors)


def test_relative_positions_with_a_projected_query_are_stored_as_weights() -> None:
    mechanism = regard.mechanism("luong_general", heads=HEADS, head_dim=HEAD_DIM)
    position = positions.ShawRelative(HEAD_DIM, 2, values=False)
    layer, query, key = record_layer(mechanism, bias=position)
    projected = np.einsum("hqd,hde->hqe", query, to_numpy(mechanism.weight))
    _, expected = attention(projected[None], key[None], key[None], bias=shaw_bias(position, query)[None], scale=1.0)
    assert "vectors by distance" in reason_for_stored_weights(layer)
    np.testing.assert_allclose(layer.weights(), expected[0], atol=2e-5)


def reason_for_stored_weights(layer: AttentionLayer) -> str:
    """Assert that a layer is stored as weights alone, and return the reason."""
    assert isinstance(layer, LayerWeights)
    assert layer.weights_are == "distribution"
    return layer.reason


def test_bias_that_does_not_depend_on_distance_is_stored_as_weights() -> None:
    bias = torch.randn(1, HEADS, QUERIES, KEYS)
    layer, query, key = record_layer(regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM), bias=bias)
    _, expected = attention(query[None], key[None], key[None], bias=bias.double().numpy())
    assert "bias" in reason_for_stored_weights(layer)
    np.testing.assert_allclose(layer.weights(), expected[0], atol=2e-6)


def test_masks_that_differ_by_head_have_steps() -> None:
    allowed = torch.rand(1, HEADS, QUERIES, KEYS) < 0.5
    mask = masks.keep(allowed)
    layer, query, key = record_layer(regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM), mask=mask)
    _, expected = attention(query[None], key[None], key[None], allowed.numpy())
    assert isinstance(layer, LayerReading)
    np.testing.assert_allclose(layer.weights(), expected[0], atol=2e-6)
    np.testing.assert_allclose(layer.weights_of_block(1, range(1, 3)), expected[0, 1, 1:3], atol=2e-6)


def test_a_batch_is_refused() -> None:
    mechanism = regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM)
    tokens = torch.randn(2, HEADS, KEYS, HEAD_DIM)
    with regard.record(mechanism) as recording:
        mechanism(tokens, tokens, tokens)
    with pytest.raises(ShapeError, match="one text at a time"):
        layers_of(recording)


@pytest.mark.parametrize(
    ("key", "mask", "bias"),
    [(1, None, None), (0, masks.causal(), None), (0, None, positions.ALiBi(HEADS))],
    ids=["other keys", "a mask by position", "a bias by position"],
)
def test_calls_that_cannot_be_joined_are_refused(key: int, mask: Mask | None, bias: PairBias | None) -> None:
    mechanism = regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM)
    keys = torch.randn(2, 1, HEADS, KEYS, HEAD_DIM)
    with regard.record(mechanism) as recording:
        for call_keys in (keys[0], keys[key]):
            mechanism(torch.randn(1, HEADS, 1, HEAD_DIM), call_keys, call_keys, mask, bias=bias)
    with pytest.raises(RefusedError, match="cannot be shown as one"):
        layers_of(recording)


def test_steps_of_a_recurrent_decoder_are_rows() -> None:
    """Bahdanau et al. 2015: one call for each step; the weights of each are kept, without queries and keys."""

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.of_state, self.of_source, self.column = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
            self.kept: list[torch.Tensor] = []

        def forward(self, state: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                weights = self.column(torch.tanh(self.of_state(state) + self.of_source(source))).squeeze(-1).softmax(-1)
                self.kept.append(weights[0])
                state = weights[:, None] @ source
            return state

    torch.manual_seed(7)
    decoder, state, source = Decoder(), torch.randn(1, 1, 4), torch.randn(1, 5, 4)
    with torch.no_grad(), regard.record(decoder) as seen:
        decoder(state, source)
    (layer,) = layers_of(seen)
    assert (layer.heads, layer.queries, layer.keys) == (1, 3, 5)
    np.testing.assert_allclose(layer.weights()[0], torch.stack(decoder.kept))
    with pytest.raises(ShapeError, match="other numbers of queries and keys"):
        regard.show(seen, tokens=["a", "b", "c", "d", "e"])
    regard.show(seen, tokens=["x", "y", "z"], key_tokens=["a", "b", "c", "d", "e"])
