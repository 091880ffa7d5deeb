"""What was heard in a sound: words from the path of a transcriber, and the sound that a page plays."""

import base64
import io
import json
import re

import numpy as np
import pytest
import soundfile
import torch

from regard.models.ctc import decode_ctc_spans
from regard.transcription import Transcriber
from regard.view import read_file
from regard.view.page import render_page
from regard.view.sound_track import MAX_PLAYED_SECONDS, HeardWord, encode_sound, join_labels
from small_audio_models import audio_model
from sound_files import tone


def transcriber(labels=("a", "b", " ")):
    """A model that often writes a label: the blank is unlikely."""
    model = audio_model(labels=labels, head="ctc")
    with torch.no_grad():
        model.head.bias[0] -= 5.0
        model.head.weight *= 20.0
    return model


def decoded(data: str) -> tuple[np.ndarray, int]:
    assert data.startswith("data:audio/wav;base64,")
    return soundfile.read(io.BytesIO(base64.b64decode(data.partition(",")[2])))


def test_labels_are_those_of_the_transcriber_at_the_tokens_of_the_path():
    model, sound = transcriber(), tone(1.5) + 0.3 * np.random.default_rng(0).normal(size=12000)
    track = read_file(model, sound).track
    (transcription,) = Transcriber(model).transcribe([sound])
    assert len(track.labels) > 4
    assert [(label.text, label.start, label.end) for label in track.labels] == [
        (label.text, label.start, label.end) for label in transcription.labels
    ]
    assert track.text == transcription.text
    features, mask = model.processor([sound])
    with torch.no_grad():
        (spans,) = decode_ctc_spans(model(features, mask=mask))
    assert [label.queries for label in track.labels] == [range(span.begin, span.end) for span in spans]


def test_labels_are_joined_to_words():
    texts = ["a", "b", " ", " ", "c", " ", "d", "e"]
    labels = [HeardWord(text, float(at), at + 1.0, range(at, at + 1)) for at, text in enumerate(texts)]
    assert join_labels(labels) == (
        HeardWord("ab", 0.0, 2.0, range(2)),
        HeardWord("c", 4.0, 5.0, range(4, 5)),
        HeardWord("de", 6.0, 8.0, range(6, 8)),
    )
    assert join_labels([]) == ()


def test_a_model_of_words_has_a_label_for_each_word():
    track = read_file(transcriber((" yes", " no")), tone(0.5)).track
    assert track.words == track.labels
    assert {word.text for word in track.words} <= {"yes", "no"}


def test_a_classifier_is_played_and_hears_no_words():
    track = read_file(audio_model(), tone()).track
    assert (track.words, track.rate) == ((), 8000)
    np.testing.assert_array_equal(track.samples, tone().astype(np.float32))


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_sound_in_a_page_has_the_samples_at_16_khz(rate):
    samples, found = decoded(encode_sound(tone(0.5, rate=rate).astype(np.float32), rate))
    assert (found, samples.ndim, len(samples)) == (16000, 1, 8000)
    np.testing.assert_allclose(samples[1000:-1000], tone(0.5, rate=16000)[1000:-1000], atol=2e-3)


def test_loud_sounds_are_made_quieter_and_long_ones_are_left_out():
    samples, _ = decoded(encode_sound(3 * tone(0.1, rate=16000, loudness=1.0).astype(np.float32), 16000))
    np.testing.assert_allclose(samples, tone(0.1, rate=16000, loudness=1.0), atol=2e-3)
    assert encode_sound(np.zeros(1000 * MAX_PLAYED_SECONDS, np.float32), 1000)
    assert not encode_sound(np.zeros(1000 * MAX_PLAYED_SECONDS + 1, np.float32), 1000)


def test_page_holds_the_sound_and_the_words():
    model = transcriber(("a", "\u202eb", "<b>"))
    reading = read_file(model, tone(0.5))
    page = render_page([reading])
    assert "; media-src data:; " in page
    assert "<b>" not in page.partition('id="data">')[2].partition("</script>")[0]
    (text,) = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["texts"]
    samples, _ = decoded(text["sound"]["audio"])
    assert len(samples) == 8000
    assert "\u202e" not in json.dumps(text["sound"]["labels"], ensure_ascii=False)
    label = reading.track.labels[0]
    times = [round(label.start, 3), round(label.end, 3)]
    assert text["sound"]["labels"][0][1:] == [*times, label.queries.start, label.queries.stop]
