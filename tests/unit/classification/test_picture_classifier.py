"""Classification and embedding of pictures: probabilities, batches, and models that cannot be used."""

import numpy as np
import pytest
import torch

from picture_files import random_pixels, write_folders
from regard.classification import MediaClassifier, embed_files
from regard.errors import CheckpointError, DataError, OptionError
from regard.models import load
from regard.vision import ImageProcessor
from small_image_models import image_classifier

PICTURES = [random_pixels(9 + seed, 13, 1, seed) for seed in range(7)]


def test_probabilities_are_the_softmax_of_the_logits():
    model = image_classifier()
    found = MediaClassifier(model, batch=3).probabilities(PICTURES)
    with torch.no_grad():
        logits = model(model.processor(PICTURES)).logits.double().numpy()
    weights = np.exp(logits - logits.max(1, keepdims=True))
    np.testing.assert_allclose(found, weights / weights.sum(1, keepdims=True), atol=1e-6)


def test_predictions_name_the_most_probable_label(tmp_path):
    write_folders(tmp_path, count=2)
    paths = sorted(tmp_path.rglob("*.png"))
    classifier = MediaClassifier(image_classifier())
    found = classifier.classify([*paths, PICTURES[0], paths[0].read_bytes()])
    assert [one.text for one in found] == [*map(str, paths), "picture 7", "picture 8"]
    for one in found:
        assert one.label == max(one.probabilities, key=lambda label: one.probabilities[label])
    assert found[0].probabilities == pytest.approx(found[-1].probabilities, abs=1e-6)
    assert classifier.classify([]) == []


def test_vectors_are_the_pooled_output():
    model = image_classifier()
    with torch.no_grad():
        expected = model(model.processor(PICTURES)).pooled
    rounding = 1e-6 * expected.abs().max().item()  # of sums, whose terms are as large as the largest number
    torch.testing.assert_close(embed_files(model, PICTURES, batch=2), expected, atol=rounding, rtol=0.0)
    assert embed_files(model, []).shape == (0, 20)


def test_pictures_of_different_sizes_without_resizing():
    """A model that interpolates its positions reads each size in a batch of its own."""
    model = image_classifier()
    model.processor = ImageProcessor(None, channels=1, mean=(0.5,), std=(0.25,))
    pictures = [random_pixels(8, 12, 1), random_pixels(12, 8, 1), random_pixels(12, 8, 1, seed=2)]
    vectors = embed_files(model, pictures)
    for number, picture in enumerate(pictures):
        torch.testing.assert_close(vectors[number : number + 1], embed_files(model, [picture]), atol=1e-6, rtol=1e-5)


def test_saved_classifier_is_the_same(tmp_path):
    model = image_classifier()
    model.save(tmp_path / "m")
    found = MediaClassifier.load(tmp_path / "m").probabilities(PICTURES)
    assert torch.equal(found, MediaClassifier(model).probabilities(PICTURES))
    assert load(tmp_path / "m").processor == model.processor


def test_models_and_pictures_that_cannot_be_used(tmp_path):
    with pytest.raises(CheckpointError, match="no head"):
        MediaClassifier(image_classifier(labels=()))
    model = image_classifier()
    with pytest.raises(OptionError, match="list of pictures"):
        MediaClassifier(model).classify("a.png")
    with pytest.raises(DataError, match=r"none\.png"):
        MediaClassifier(model).classify([tmp_path / "none.png"])
    with pytest.raises(OptionError):
        MediaClassifier(model, batch=0)
    model.processor = None
    with pytest.raises(CheckpointError, match="preprocessor_config"):
        MediaClassifier(model)
