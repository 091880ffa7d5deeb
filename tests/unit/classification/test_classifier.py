"""Classification of texts: order, batches, several labels, empty and long texts."""

from __future__ import annotations

import pytest
import torch

from regard.classification import Classifier
from regard.errors import CheckpointError, DataError, OptionError
from small_classifiers import TEXTS, classifier


def test_predictions_are_in_the_order_of_the_texts():
    model = Classifier(classifier())
    alone = [model.classify([text])[0] for text in TEXTS]
    together = model.classify(TEXTS)
    assert [one.text for one in together] == TEXTS
    for one, other in zip(alone, together, strict=True):
        assert one.labels == other.labels
        assert list(one.probabilities.values()) == pytest.approx(list(other.probabilities.values()), abs=1e-6)


@pytest.mark.parametrize("tokens", [1, 17, 4096])
def test_batch_size_changes_no_prediction(tokens):
    whole = Classifier(classifier()).probabilities(TEXTS)
    torch.testing.assert_close(Classifier(classifier(), tokens=tokens).probabilities(TEXTS), whole, atol=1e-6, rtol=0)


def test_the_most_probable_label_is_predicted():
    (actual,) = Classifier(classifier()).classify(TEXTS[:1])
    assert sum(actual.probabilities.values()) == pytest.approx(1)
    assert actual.label == max(actual.probabilities, key=actual.probabilities.get)
    assert actual.labels == (actual.label,)


def test_labels_above_the_threshold_are_predicted():
    model = classifier(several=True)
    (actual,) = Classifier(model).classify(TEXTS[:1])
    shares = actual.probabilities
    for threshold in (0.0, *shares.values(), 1.0):
        (one,) = Classifier(model, threshold=threshold).classify(TEXTS[:1])
        assert set(one.labels) == {label for label, share in shares.items() if share >= threshold}
        assert list(one.labels) == sorted(one.labels, key=lambda label: -shares[label])


def test_an_empty_text_has_no_label():
    first, empty, last = Classifier(classifier()).classify([TEXTS[0], " ", TEXTS[1]])
    assert (empty.labels, empty.label, dict(empty.probabilities)) == ((), None, {})
    assert first.label
    assert last.label
    assert Classifier(classifier()).classify([]) == []


def test_long_text_is_refused_or_truncated():
    model, long = Classifier(classifier(limit=7)), "the old dog and " * 20
    with pytest.raises(DataError, match="text 2 is too long"):
        model.classify([TEXTS[0][:3], long])
    cut, shorter = model.classify([long, long[:-50]], truncate=True)
    assert cut.probabilities == pytest.approx(shorter.probabilities)


def test_training_mode_is_kept():
    model = classifier().train()
    Classifier(model).classify(TEXTS[:2])
    assert model.training


def test_other_models_are_refused(tmp_path):
    model = classifier()
    model.encoder.save(tmp_path / "encoder")
    with pytest.raises(CheckpointError, match="another kind of model"):
        Classifier.load(tmp_path / "encoder")
    with pytest.raises(CheckpointError, match="no such folder"):
        Classifier.load(tmp_path / "nowhere")
    model.tokenizer = None
    with pytest.raises(CheckpointError, match="no tokenizer"):
        Classifier(model)
    with pytest.raises(OptionError, match="threshold"):
        Classifier(classifier(), threshold=2)
    with pytest.raises(OptionError, match="list of texts"):
        Classifier(classifier()).classify("a text")
