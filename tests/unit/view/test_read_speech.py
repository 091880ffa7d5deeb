"""Words of a speech model have the times of a constructed attention, in the reading, the terminal and the page."""

import json
import re

import numpy as np
import pytest
from rich.console import Console

from known_speech import FRAMES, PIECES, STARTS, TEXT, WORDS, KnownSpeech
from regard.errors import DataError
from regard.view import print_readings, read_file
from regard.view import read_speech as reader
from regard.view.page import render_page
from sound_files import tone


def reading():
    return read_file(KnownSpeech(), tone(2.0, rate=16000), name="talk.wav")


def test_words_have_the_times_of_the_head_that_follows():
    track = reading().track
    assert [(word.text, word.start, word.end) for word in track.words] == [
        (text, pytest.approx(start), pytest.approx(end)) for text, start, end in WORDS
    ]
    assert [label.start for label in track.labels] == pytest.approx([0.02 * start for start in STARTS[:-1]])
    assert [label.text for label in track.labels] == list(PIECES[:-1])
    assert [word.queries for word in track.words] == [range(1), range(1, 3), range(3, 4), range(4, 7)]
    assert (track.text, track.best_head) == (TEXT, (1, 2))
    assert "layer 1 head 2 (0." in track.timing
    assert "says little" not in track.timing


def test_frames_after_the_end_of_the_sound_are_left_out():
    shown = reading()
    for layer in shown.layers:
        assert (layer.attention.keys, layer.key_grid.tokens) == (FRAMES, FRAMES)
    np.testing.assert_allclose(shown.layers[1].attention.weights_of(2).sum(axis=1), 0.9, rtol=1e-6)


def test_terminal_prints_the_words_with_their_times():
    console = Console(width=100, record=True)
    print_readings([reading()], console)
    said = console.export_text()
    assert TEXT in said
    for text, start, end in WORDS:
        assert re.search(rf"{re.escape(text)} +{start:.2f} s +{end:.2f} s", said)
    assert "layer 1 head 2" in said


def test_page_opens_at_the_head_that_follows():
    page = render_page([reading()])
    (text,) = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["texts"]
    assert text["sound"]["best_head"] == [1, 2]
    assert text["sound"]["words"][1] == ["sat,", 0.28, 0.74, 1, 3]
    assert text["layers"][0]["keys_place"]["columns"] == FRAMES


def test_weights_of_neighbouring_frames_are_added_where_a_page_would_be_large(monkeypatch):
    """Times stay those of single frames; here 4,800 weights, of which 3 frames become a cell."""
    exact = reading()
    monkeypatch.setattr(reader, "MAX_WEIGHTS", 1700)
    merged = reading()
    assert [(word.start, word.end) for word in merged.track.words] == [
        (word.start, word.end) for word in exact.track.words
    ]
    assert merged.axis.seconds_per_token == pytest.approx(0.06)
    assert merged.layers[0].name_of_key(2) == "0.12 s"
    for layer, single in zip(merged.layers, exact.layers, strict=True):
        weights = single.attention.weights()
        expected = [weights[:, :, begin : begin + 3].sum(axis=2) for begin in range(0, FRAMES, 3)]
        np.testing.assert_allclose(layer.attention.weights(), np.stack(expected, axis=2), atol=1e-6)
    assert merged.note == "A cell of the map has 60 ms."


def test_too_many_weights_are_refused(monkeypatch):
    monkeypatch.setattr(reader, "MAX_WEIGHTS", 100)
    with pytest.raises(DataError, match=r"(?s)talk.wav is too long to show.*4,800"):
        reading()
