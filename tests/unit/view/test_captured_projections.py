"""What a layer reads of a token, times the row of a matrix, is a number of the query or the key that was recorded."""

import numpy as np
import pytest
import torch

import regard
from regard.view import LayerReading, read
from regard.view.captured_projections import add_projections, capture_projections
from regard.view.from_recording import layers_of
from regard.view.page_data import build_page_data
from small_language_models import language_model


def assert_exact(layer: LayerReading) -> None:
    """Each number that the projections give is that of the layer, or of a pair that was rotated by position."""
    assert layer.projections is not None
    for side, heads in ((layer.projections.query, layer.query), (layer.projections.key, layer.key)):
        for head, component in enumerate(side.components):
            computed = side.tokens.astype("f8") @ side.rows[head] + side.biases[head]
            tokens = slice(0, 1) if side.is_rotated else slice(None)  # position 0 rotates by 0
            np.testing.assert_allclose(computed[tokens], heads[head, tokens, component], atol=1e-4)


def test_queries_and_keys_of_minilm_follow_from_what_its_layers_read() -> None:
    reading = read(regard.load("minilm"), "I ate an apple.")
    for layer in reading.layers:
        assert isinstance(layer, LayerReading)
        assert_exact(layer)
        assert layer.projections is not None
        assert not layer.projections.query.is_rotated
        assert layer.projections.key.tokens is layer.projections.query.tokens


def test_rotated_and_grouped_keys_follow_too() -> None:
    reading = read(language_model("llama"), "the cat sees the oak")
    for layer in reading.layers:
        assert isinstance(layer, LayerReading)
        assert_exact(layer)
        assert layer.projections is not None
        assert layer.projections.key.is_rotated


def test_a_layer_that_norms_its_queries_has_none() -> None:
    layer = regard.MultiHeadAttention(20, 5, query_norm=regard.layers.RMSNorm(4))
    with torch.no_grad(), capture_projections(layer) as captured, regard.record(layer) as seen:
        layer(torch.randn(1, 7, 20))
    (made,) = add_projections(layers_of(seen), captured)
    assert isinstance(made, LayerReading)
    assert made.projections is None


def test_a_page_has_projections_if_there_is_room_and_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = read(regard.load("minilm"), "I ate an apple.")
    (attention,) = build_page_data([reading], "", 10**9)["texts"][0]["attentions"]
    assert all("read" in layer for layer in attention["layers"])
    monkeypatch.setattr("regard.view.page_data.MAX_BYTES", 1000)
    (attention,) = build_page_data([reading], "", 10**9)["texts"][0]["attentions"]
    assert {layer["unread"] for layer in attention["layers"]} == {"size"}
