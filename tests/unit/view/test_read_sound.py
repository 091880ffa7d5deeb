"""Reading of a sound: layers, labels, times, and the spectrogram and marks of its page."""

import json
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import regard
from regard.errors import CheckpointError, DataError, ShapeError
from regard.view import PictureLayer, read_file
from regard.view.page import render_page
from small_audio_models import audio_model
from sound_files import tone


@pytest.mark.parametrize("seconds", [0.01, 0.05, 0.085, 0.31])
def test_layers_and_labels_are_those_of_the_model(seconds):
    """Also of sounds of one token, and of tokens with fewer frames."""
    model, sound = audio_model(), tone(seconds)
    reading = read_file(model, sound)
    features, mask = model.processor([sound])
    with regard.record(model) as seen, torch.no_grad():
        output = model(features, mask=mask)
    assert {layer.grid.tokens for layer in reading.layers} == {output.hidden.shape[1]}
    assert reading.axis.seconds_per_token == 0.04
    for layer, call in zip(reading.layers, seen, strict=True):
        np.testing.assert_allclose(layer.attention.weights(), call.weights()[0].numpy(), atol=1e-6)
    expected = dict(zip(model.labels, output.logits[0].double().softmax(0).tolist(), strict=True))
    assert dict(reading.probabilities) == pytest.approx(expected)
    assert [share for _, share in reading.probabilities] == sorted(expected.values(), reverse=True)
    if output.hidden.shape[1] > 3:
        assert reading.layers[0].name_of(3) == "0.12 s"


def test_models_without_labels_of_a_sound():
    for options in ({"labels": ()}, {"head": "ctc"}):
        assert read_file(audio_model(**options), tone()).probabilities == ()


def test_spectrogram_is_drawn_upright():
    """Low bands are at the bottom, the loudest place is white, and a token is a whole column of cells."""
    features = np.zeros((9, 7), dtype=np.float32)
    features[2, 0] = 5.0  # the lowest band
    drawn = audio_model().draw_input(torch.from_numpy(features))
    assert (drawn.grid.rows, drawn.grid.columns) == (1, 3)
    pixels = drawn.pixels[0]
    high, wide = pixels.shape[0] // 7, pixels.shape[1] // 9
    assert (pixels[-high:, 2 * wide : 3 * wide] == 255).all()
    assert np.count_nonzero(pixels) == high * wide
    assert drawn.cell == (pixels.shape[0], 4 * wide)


def test_page_has_times_and_frequencies():
    reading = read_file(audio_model(), tone(), name="a\u202e<b>")
    page = render_page([reading], model="m")
    assert "<b>" not in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    (text,) = data["texts"]
    assert text["sound"]["seconds"] == 0.04
    assert text["sound"]["length"] == pytest.approx(0.32)
    marks = text["sound"]["marks"]
    assert [hertz for hertz, _ in marks] == sorted(hertz for hertz, _ in marks)
    assert all(before[1] > after[1] for before, after in pairwise(marks))  # from the top
    mel = lambda hertz: 2595 * np.log10(1 + hertz / 700)  # noqa: E731
    for hertz, share in marks:  # the bands are evenly spaced on the mel scale, 8 steps from 0 to 4,000 Hz
        assert share == pytest.approx(1 - (mel(hertz) / (mel(4000) / 8) - 0.5) / 7, abs=1e-2)
    assert (text["layers"][0]["rows"], text["layers"][0]["columns"]) == (1, reading.layers[0].grid.tokens)


def test_errors():
    model = audio_model()
    with pytest.raises(DataError, match="cannot read"):
        read_file(model, "none.wav")
    with pytest.raises(DataError, match="nothing to show"):
        render_page([])
    layer = read_file(model, tone()).layers[0]
    with pytest.raises(ShapeError, match="does not match"):
        PictureLayer(replace(layer.grid, columns=5), layer.attention, layer.cell)
    model.processor = None
    with pytest.raises(CheckpointError, match="how its features are made"):
        read_file(model, tone())
