"""Classification of pictures by the texts of labels."""

import numpy as np
import pytest
import torch

from picture_files import random_pixels
from regard.classification import MediaClassifier, ZeroShotClassifier
from regard.errors import CheckpointError, DataError, OptionError
from small_clips import small_clip
from small_image_models import image_classifier

LABELS = ["a cat", "a dog", "snow"]
PICTURES = [random_pixels(12, 12, 1, seed) for seed in range(5)]


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.mark.parametrize("templates", [("{}",), ("a photo of {}.", "{} in a picture")])
def test_equation(templates):
    model = small_clip()
    classifier = ZeroShotClassifier(model, LABELS, templates=templates, batch=2)
    with torch.no_grad():
        centres = []
        for label in LABELS:
            ids = [model.tokenizer.encode(template.format(label)).ids for template in templates]
            vectors = [model.text(one).embedding[0].double().numpy() for one in ids]
            centres.append(unit(np.mean([unit(vector) for vector in vectors], axis=0)))
        pooled = np.stack([model.vision(model.processor([one])).pooled[0].double().numpy() for one in PICTURES])
    scores = np.exp(np.exp(model.logit_scale.item()) * unit(pooled) @ np.stack(centres).T)
    expected = scores / scores.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(classifier.probabilities(PICTURES).numpy(), expected, atol=1e-5)
    predictions = classifier.classify(PICTURES)
    assert [one.label for one in predictions] == [LABELS[row.argmax()] for row in expected]
    assert classifier.labels == tuple(LABELS)


def test_load(tmp_path):
    model = small_clip()
    model.save(tmp_path / "clip")
    loaded = ZeroShotClassifier.load(tmp_path / "clip", LABELS)
    assert torch.equal(loaded.probabilities(PICTURES), ZeroShotClassifier(model, LABELS).probabilities(PICTURES))
    assert loaded.probabilities([]).shape == (0, 3)
    with pytest.raises(CheckpointError, match="no head"):
        MediaClassifier.load(tmp_path / "clip")
    image_classifier().save(tmp_path / "vit")
    with pytest.raises(CheckpointError, match="another kind of model"):
        ZeroShotClassifier.load(tmp_path / "vit", LABELS)


@pytest.mark.parametrize(
    ("labels", "words"),
    [("a cat", "labels is not"), ([], "labels is not"), (["a", 3], "labels is not"), (["a", " "], "labels is not"),
     (["a", "b", "a"], "twice")],
)  # fmt: skip
def test_labels_that_are_no_texts(labels, words):
    with pytest.raises(OptionError, match=words):
        ZeroShotClassifier(small_clip(), labels)


@pytest.mark.parametrize(
    ("templates", "words"),
    [("{}", "templates is not"), ([], "templates is not"), (["a photo"], "where the label"), (["{} {}"], "where the")],
)
def test_templates_without_a_place(templates, words):
    with pytest.raises(OptionError, match=words):
        ZeroShotClassifier(small_clip(), LABELS, templates=templates)


def test_models_that_cannot():
    with pytest.raises(OptionError, match="wrong model"):
        ZeroShotClassifier(small_clip().vision, LABELS)
    with pytest.raises(DataError, match="too long"):
        ZeroShotClassifier(small_clip(), ["a" * 99])
    for tower, part in (("text", "tokenizer"), ("vision", "processor")):
        model = small_clip()
        setattr(getattr(model, tower), part, None)
        with pytest.raises(CheckpointError):
            ZeroShotClassifier(model, LABELS)
