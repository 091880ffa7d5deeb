"""Transcription: texts and times by the most likely path, losses of what can be written, and other models."""

import numpy as np
import pytest
import torch

from regard import masks
from regard.audio import pad_features
from regard.errors import CheckpointError, OptionError
from regard.models import ctc_loss
from regard.models.audio_encoder import AudioEncoderOutput
from regard.models.ctc import LabelSpan, count_needed_tokens, decode_ctc_spans
from regard.transcription import Transcriber
from regard.transcription.scores import TranscriptionMeasure
from regard.transcription.text_labels import TextLabels
from small_audio_models import audio_model
from sound_files import sound_bytes, tone

LABELS = (" ", "a", "b")


def output_of_paths(paths, rows=4):
    """An output whose most likely labels are ``paths``; tokens after the end of a path are hidden."""
    longest = max(map(len, paths))
    logits, visible = torch.randn(len(paths), longest, rows).double(), torch.zeros(len(paths), longest).bool()
    for number, path in enumerate(paths):
        visible[number, : len(path)] = True
        for token, label in enumerate(path):
            logits[number, token, label] += 20.0
    hidden = torch.zeros(len(paths), longest, 1).double()
    return AudioEncoderOutput(hidden, hidden[:, 0], visible, logits)


def test_spans_of_labels():
    """Equal labels are one unless a blank is between them; numbers are those behind the blank."""
    output = output_of_paths([[0, 2, 2, 0, 2, 3, 3], [1], [0, 0]])
    assert decode_ctc_spans(output) == [
        [LabelSpan(1, 1, 3), LabelSpan(1, 4, 5), LabelSpan(2, 5, 7)],
        [LabelSpan(0, 0, 1)],
        [],
    ]
    assert [count_needed_tokens(one) for one in ([], [1], [1, 2, 1], [1, 1, 2, 2, 2])] == [0, 1, 3, 8]


def test_text_and_times_follow_from_the_most_likely_labels(monkeypatch):
    """A token is 4 frames, and a frame 10 ms; the last of 11 frames has ended after 0.11 seconds."""
    model = audio_model(labels=LABELS, head="ctc")
    transcriber = Transcriber(model)
    output = output_of_paths([[2, 0, 1, 3, 3], [0, 2, 2]])
    monkeypatch.setattr(model, "forward", lambda features, *, mask: output)
    first, second = transcriber.transcribe_features([torch.zeros(18, 7), torch.zeros(11, 7)], ["one", "two"])
    assert (first.name, first.text, second.name, second.text) == ("one", "a b", "two", "a")
    assert [(one.text, one.start, one.end) for one in first.labels] == [
        ("a", 0.0, pytest.approx(0.04)),
        (" ", pytest.approx(0.08), pytest.approx(0.12)),
        ("b", pytest.approx(0.12), pytest.approx(0.18)),
    ]
    (label,) = second.labels
    assert (label.text, label.start, label.end) == ("a", pytest.approx(0.04), pytest.approx(0.11))


def test_sounds_are_transcribed_alike_alone_and_in_batches(tmp_path):
    model = audio_model(labels=LABELS, head="ctc")
    (tmp_path / "a.wav").write_bytes(sound_bytes(tone(0.5)))
    sounds = [tmp_path / "a.wav", sound_bytes(tone(0.2)), tone(0.3, hertz=900.0).astype(np.float32)]
    model.save(tmp_path / "m")
    transcriber = Transcriber.load(tmp_path / "m", batch=2)
    assert transcriber.batch == 2
    found = transcriber.transcribe(sounds)
    assert [one.name for one in found] == [str(tmp_path / "a.wav"), "sound 2", "sound 3"]
    for sound, one in zip(sounds, found, strict=True):
        (alone,) = Transcriber(model).transcribe([sound])
        assert (alone.text, alone.labels) == (one.text, one.labels)
    assert model.training is False
    with pytest.raises(OptionError, match="list"):
        Transcriber(model).transcribe("a.wav")


@torch.no_grad()
def test_loss_counts_the_texts_that_can_be_written():
    """One has an unknown character, one needs more tokens than its sound has; both count in the error rates."""
    torch.manual_seed(5)
    model = audio_model(labels=LABELS, head="ctc")
    features, mask = pad_features([torch.randn(frames, 7) for frames in (37, 20, 5, 12)])
    output, texts = model(features, mask=mask), ["a b", "ax", "bb", "b"]
    measure = TranscriptionMeasure(TextLabels(LABELS))
    measure.add(output, texts)
    losses = [float(ctc_loss(model(features[[row]], mask=masks.padding([length])), [target]))
              for row, length, target in ((0, 37, [1, 0, 2]), (3, 12, [2]))]  # fmt: skip
    assert measure.loss == pytest.approx(sum(losses) / 4, rel=1e-5)
    assert measure.without_loss == 2
    assert measure.score().texts == 4
    empty = TranscriptionMeasure(TextLabels(LABELS))
    empty.add(output, ["x"] * 4)
    assert (empty.loss, empty.without_loss) == (None, 4)


def test_other_models_are_refused():
    with pytest.raises(CheckpointError, match="a head that classifies sounds"):
        Transcriber(audio_model())
    with pytest.raises(CheckpointError, match="a model without a head"):
        Transcriber(audio_model(labels=()))
    model = audio_model(head="ctc")
    model.processor = None
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json"):
        Transcriber(model)
