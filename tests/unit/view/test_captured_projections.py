"""What a layer reads of a token, times the row of a matrix, is a number of the query or the key that was recorded."""

import numpy as np
import pytest
import torch

import regard
from picture_files import random_pixels
from regard.models import Swin, SwinConfig
from regard.recording.captured_inputs import capture_projections
from regard.view import LayerReading, read, read_file
from regard.view.captured_projections import add_projections
from regard.view.from_recording import layers_of
from regard.view.page_data import build_page_data
from regard.view.picture_data import build_pictures_data
from regard.view.read_pair import read_pair
from regard.view.window_reading import WindowReading
from regard.vision import ImageProcessor
from small_image_models import image_classifier
from small_language_models import language_model
from small_translators import SOURCE, TARGET, transformer


def assert_exact(layer: LayerReading) -> None:
    """Each number that the projections give is that of the layer, or of a pair that was rotated by position."""
    assert layer.projections is not None
    for side, heads in ((layer.projections.query, layer.query), (layer.projections.key, layer.key)):
        for head, component in enumerate(side.components):
            computed = side.tokens.astype("f8") @ side.rows[head] + side.biases[head]
            computed = computed if side.normed is None else side.normed[head]
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


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantized_weights_are_read_with_their_scales(weights: str) -> None:
    model = regard.load("minilm", weights=weights)
    for layer in read(model, "I ate an apple.").layers:
        assert isinstance(layer, LayerReading)
        assert layer.projections is not None
        side = layer.projections.query
        computed = np.einsum("tw,hw->ht", side.tokens.astype("f8"), side.rows) + side.biases[:, None]
        shown = np.take_along_axis(layer.query, side.components[:, None, None], 2)[..., 0]
        np.testing.assert_allclose(computed, shown, atol=0.03 * np.abs(layer.query).max())
        assert side.is_rounded
        assert not side.is_rotated


def test_windows_of_a_swin_are_read_by_their_places_on_the_map() -> None:
    torch.manual_seed(3)
    config = SwinConfig((13, 11), (2, 2), channels=1, width=8, depths=(2, 2), heads=(2, 4), window=3, labels=("a", "b"))
    model = Swin(config).eval()
    model.processor = ImageProcessor((13, 11), channels=1, mean=(0.5,), std=(0.25,))
    for layer in read_file(model, random_pixels(13, 11, channels=1)).layers:
        attention = layer.attention
        assert isinstance(attention, WindowReading)
        assert attention.projections is not None
        for side, heads in ((attention.projections.query, attention.query), (attention.projections.key, attention.key)):
            assert len(side.tokens) == heads.shape[1]
            computed = np.einsum("tw,hw->ht", side.tokens.astype("f8"), side.rows) + side.biases[:, None]
            shown = np.take_along_axis(heads.numpy(), side.components[:, None, None], 2)[..., 0]
            np.testing.assert_allclose(computed, shown, atol=1e-5)


def record_layer(layer: regard.MultiHeadAttention) -> LayerReading:
    with torch.no_grad(), capture_projections(layer) as captured, regard.record(layer) as seen:
        layer(torch.randn(1, 7, 20))
    (made,) = add_projections(layers_of(seen), captured)
    assert isinstance(made, LayerReading)
    return made


def test_a_norm_of_queries_stands_between_product_and_rotation() -> None:
    norm = regard.layers.RMSNorm(4)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
    layer = regard.MultiHeadAttention(20, 5, query_norm=norm, position=regard.positions.Rotary(4))
    made = record_layer(layer)
    assert made.projections is not None
    assert_exact(made)
    side = made.projections.query
    assert side.is_rotated
    weight, bias = layer.query_projection.weight, layer.query_projection.bias
    before = side.tokens.astype("f8") @ weight.detach().double().numpy().T + bias.detach().double().numpy()
    heads = before.reshape(-1, 5, 4)
    normed = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-6) * norm.weight.detach().double().numpy()
    assert side.normed is not None
    for head, component in enumerate(side.components):
        np.testing.assert_allclose(side.normed[head], normed[:, head, component], atol=1e-5)


def test_a_layer_that_changes_its_queries_in_another_way_has_none() -> None:
    class Cube(torch.nn.Module):
        def forward(self, heads: torch.Tensor) -> torch.Tensor:
            return heads**3

    assert record_layer(regard.MultiHeadAttention(20, 5, query_norm=Cube())).projections is None


def test_a_translation_reads_the_target_for_queries_and_the_source_for_keys() -> None:
    reading = read_pair(transformer(), SOURCE, TARGET)
    for layer in reading.alignment.layers:
        assert isinstance(layer, LayerReading)
        assert_exact(layer)
        assert layer.projections is not None
        lengths = len(layer.projections.query.tokens), len(layer.projections.key.tokens)
        assert lengths == (layer.queries, layer.keys)
        assert lengths[0] != lengths[1]


def test_patches_of_a_picture_are_read_too() -> None:
    reading = read_file(image_classifier(size=(12, 8)), random_pixels(12, 8, channels=1))
    for layer in reading.layers:
        assert isinstance(layer.attention, LayerReading)
        assert_exact(layer.attention)
    (text,) = build_pictures_data([reading], "", 10**9)["texts"]
    assert all("read" in layer for layer in text["layers"])


def test_a_page_has_projections_if_there_is_room_and_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = read(regard.load("minilm"), "I ate an apple.")
    (attention,) = build_page_data([reading], "", 10**9)["texts"][0]["attentions"]
    assert all("read" in layer for layer in attention["layers"])
    monkeypatch.setattr("regard.view.page_data.MAX_BYTES", 1000)
    (attention,) = build_page_data([reading], "", 10**9)["texts"][0]["attentions"]
    assert {layer["unread"] for layer in attention["layers"]} == {"size"}


def test_a_recording_that_keeps_inputs_is_shown_from_the_tokens_on() -> None:
    model, pieces = regard.load("minilm"), ["[CLS]", "an", "apple", "[SEP]"]
    for inputs in (True, False):
        with torch.no_grad(), regard.record(model, inputs=inputs) as seen:
            model(torch.arange(4)[None] + 1000)
        (reading,) = regard.show(seen, tokens=pieces).readings
        for layer in reading.layers:
            assert (layer.projections is not None) == inputs
            if inputs:
                assert_exact(layer)


def test_fast_paths_of_torch_are_kept_while_inputs_are() -> None:
    block = torch.nn.TransformerEncoderLayer(16, 4, dropout=0.0, batch_first=True)
    model, tokens = torch.nn.TransformerEncoder(block, 2).eval(), torch.randn(1, 9, 16)
    with torch.inference_mode():
        plain = model(tokens)
        with regard.record(model, inputs=True) as seen:
            assert torch.equal(model(tokens), plain)
    assert len(seen) == 2
