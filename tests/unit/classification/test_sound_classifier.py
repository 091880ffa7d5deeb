"""Classification of sounds: probabilities, files and arrays, batches, and errors."""

import numpy as np
import pytest
import torch

from regard.classification import MediaClassifier, embed_files
from regard.errors import CheckpointError, DataError, OptionError
from small_audio_models import audio_model
from sound_files import sound_bytes, tone

SOUNDS = [tone(0.2), tone(0.31, hertz=900), tone(0.11, hertz=1300)]


def test_probabilities_are_those_of_the_model():
    classifier = MediaClassifier(audio_model(), batch=2)
    features, mask = classifier.processor(SOUNDS)
    with torch.no_grad():
        expected = classifier.model(features, mask=mask).logits.double().softmax(1)
    found = classifier.probabilities(SOUNDS)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert found.dtype == torch.float64
    predictions = classifier.classify(SOUNDS)
    assert [one.label for one in predictions] == [classifier.labels[best] for best in expected.argmax(1)]
    assert predictions[1].text == "sound 2"
    assert classifier.classify([]) == []


def test_files_of_other_rates_and_channels(tmp_path):
    classifier = MediaClassifier(audio_model())
    file = sound_bytes(np.stack([tone(), tone()], axis=1), subtype="DOUBLE")
    (tmp_path / "a.wav").write_bytes(file)
    (prediction,) = classifier.classify([str(tmp_path / "a.wav")])
    (same,) = classifier.classify([tone()])
    assert prediction.text == str(tmp_path / "a.wav")
    assert prediction.label == same.label
    assert prediction.probabilities == pytest.approx(same.probabilities, abs=1e-6)


def test_vectors_are_pooled():
    model = audio_model()
    features, mask = model.processor(SOUNDS)
    with torch.no_grad():
        expected = model(features, mask=mask).pooled
    torch.testing.assert_close(embed_files(model, SOUNDS, batch=2), expected, atol=1e-5, rtol=0)
    assert embed_files(model, []).shape == (0, model.width)


def test_errors():
    model = audio_model()
    with pytest.raises(OptionError, match="not a list"):
        MediaClassifier(model).classify("a.wav")
    with pytest.raises(DataError, match="cannot read"):
        MediaClassifier(model).classify(["none.wav"])
    for labels, head, facts in (((), "classification", "without labels"), (("a", "b"), "ctc", "writes texts")):
        with pytest.raises(CheckpointError, match=facts):
            MediaClassifier(audio_model(labels=labels, head=head))
    model.processor = None
    with pytest.raises(CheckpointError, match="how its features are made"):
        embed_files(model, SOUNDS)
