"""Scores of classifiers: numbers computed by hand from scikit-learn's and Guo et al.'s definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from regard.classification import score_probabilities
from regard.errors import DataError, OptionError, ShapeError

LABELS = ("cat", "dog", "fox", "owl")
TRUE = [0, 0, 0, 1, 1, 2]
PREDICTED = [0, 0, 1, 1, 2, 2]
CONFIDENCE = [0.9, 0.6, 0.5, 0.7, 0.4, 1.0]


def rows(predicted, confidence, size=4):
    """Probabilities whose largest is the confidence of the predicted class; the rest is shared by the others."""
    result = np.full((len(predicted), size), 0.0)
    for row, label, share in zip(result, predicted, confidence, strict=True):
        row[:] = (1 - share) / (size - 1)
        row[label] = share
    return result


@pytest.fixture
def scores():
    return score_probabilities(rows(PREDICTED, CONFIDENCE), np.eye(4, dtype=bool)[TRUE], LABELS)


def test_accuracy_and_f1(scores):
    # TP 2 1 1 0, support 3 2 1 0, predicted 2 2 2 0: F1 = 2 TP / (support + predicted)
    assert scores.texts == 6
    assert scores.accuracy == pytest.approx(4 / 6)
    assert [one.f1 for one in scores.labels] == pytest.approx([4 / 5, 2 / 4, 2 / 3, 0])
    assert [one.precision for one in scores.labels] == pytest.approx([1, 1 / 2, 1 / 2, 0])
    assert [one.recall for one in scores.labels] == pytest.approx([2 / 3, 1 / 2, 1, 0])
    assert [(one.label, one.support, one.predicted) for one in scores.labels] == [
        ("cat", 3, 2), ("dog", 2, 2), ("fox", 1, 2), ("owl", 0, 0)
    ]  # fmt: skip
    assert scores.macro_f1 == pytest.approx((4 / 5 + 2 / 4 + 2 / 3) / 3)  # the owl does not occur
    assert scores.micro_f1 == pytest.approx(4 / 6)


def test_confusion_and_baseline(scores):
    assert scores.confusion == ((2, 1, 0, 0), (0, 1, 1, 0), (0, 0, 1, 0), (0, 0, 0, 0))
    assert (scores.majority, scores.baseline) == ("cat", 0.5)


def test_loss_is_the_mean_logarithm_of_the_true_label_s_probability(scores):
    true = [0.9, 0.6, 0.5 / 3, 0.7, 0.6 / 3, 1.0]
    assert scores.loss == pytest.approx(-sum(map(math.log, true)) / 6)


def test_calibration_sorts_predictions_by_confidence(scores):
    """Bins are closed above: 0.9 is in (0.8, 0.9], 1.0 in (0.9, 1.0]."""
    filled = {round(one.high, 1): (one.count, one.confidence, one.right) for one in scores.calibration if one.count}
    assert filled == {
        0.4: (1, 0.4, 0.0), 0.5: (1, 0.5, 0.0), 0.6: (1, 0.6, 1.0), 0.7: (1, 0.7, 1.0), 0.9: (1, 0.9, 1.0),
        1.0: (1, 1.0, 1.0),
    }  # fmt: skip
    assert scores.calibration_error == pytest.approx((0.4 + 0.5 + 0.4 + 0.3 + 0.1 + 0.0) / 6)


def test_two_bins():
    """Confidences 0.6, 0.8 and 0.55 in one bin: their mean is 0.65, and two of three are right."""
    probabilities = np.array([[0.6, 0.4], [0.2, 0.8], [0.45, 0.55]])
    actual = score_probabilities(probabilities, np.eye(2, dtype=bool)[[0, 1, 0]], ("no", "yes"), bins=2)
    assert [one.count for one in actual.calibration] == [0, 3]
    assert actual.calibration[1].confidence == pytest.approx(0.65)
    assert actual.calibration[1].right == pytest.approx(2 / 3)
    assert actual.calibration_error == pytest.approx(abs(2 / 3 - 0.65))


def test_several_labels_per_text():
    truth = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]], dtype=bool)
    probabilities = np.array([[0.8, 0.1, 0.6], [0.3, 0.5, 0.2], [0.7, 0.4, 0.1]])
    actual = score_probabilities(probabilities, truth, LABELS[:3], several=True)
    # predicted: cat fox | dog | cat; TP 1 0 1, support 1 1 1, predicted 2 1 1
    assert actual.accuracy == pytest.approx(1 / 3)  # exactly the right labels
    assert [one.f1 for one in actual.labels] == pytest.approx([2 / 3, 0, 1])
    assert actual.macro_f1 == pytest.approx((2 / 3 + 0 + 1) / 3)
    assert actual.micro_f1 == pytest.approx(2 * 2 / (3 + 4))
    right = [0.8, 0.9, 0.6, 0.7, 0.5, 0.8, 0.3, 0.4, 0.9]
    assert actual.loss == pytest.approx(-sum(map(math.log, right)) / 9)
    assert actual.confusion is None
    assert sum(one.count for one in actual.calibration) == 9


def test_threshold_for_several_labels():
    truth, probabilities = np.array([[1, 1]], dtype=bool), np.array([[0.4, 0.2]])
    counts = [
        sum(one.predicted for one in score_probabilities(
            probabilities, truth, ("a", "b"), several=True, threshold=threshold
        ).labels)
        for threshold in (0.1, 0.4, 0.41)
    ]  # fmt: skip
    assert counts == [2, 1, 0]


def test_majority_baseline_for_several_labels():
    truth = np.array([[1, 1], [1, 1], [0, 0]], dtype=bool)
    actual = score_probabilities(np.full((3, 2), 0.5), truth, ("a", "b"), several=True)
    assert (actual.majority, actual.baseline) == ("a|b", pytest.approx(2 / 3))


@pytest.mark.parametrize(
    ("probabilities", "truth", "options", "error"),
    [
        (np.ones((2, 3)), np.eye(2, dtype=bool), {}, ShapeError),
        (np.zeros((0, 2)), np.zeros((0, 2), dtype=bool), {}, DataError),
        (np.full((2, 2), np.nan), np.eye(2, dtype=bool), {}, DataError),
        (np.full((2, 2), -0.1), np.eye(2, dtype=bool), {}, DataError),
        (np.full((2, 2), 0.5), np.ones((2, 2), dtype=bool), {}, DataError),
        (np.full((2, 2), 0.5), np.eye(2, dtype=bool), {"bins": 0}, OptionError),
    ],
)
def test_invalid_arguments_are_refused(probabilities, truth, options, error, without_shape_checks):
    with pytest.raises(error):
        score_probabilities(probabilities, truth, ("no", "yes"), **options)
