"""Scores of classifiers: accuracy, precision, recall, F1, confusion matrix, and calibration.

    precision = TP / (TP + FP)      recall = TP / (TP + FN)      F1 = 2 TP / (2 TP + FP + FN)      0 / 0 = 0
    macro F1  = the mean of the labels' F1, over the labels that occur in the texts or the predictions
    micro F1  = 2 TP / (2 TP + FP + FN) with the counts of all labels together
    loss      = the mean of -ln p of the true label; with several labels per text, of all yes/no decisions
    expected calibration error = sum over bins of n_b / n |fraction right in b - mean confidence in b|

The definitions follow scikit-learn with ``zero_division=0``; calibration: Guo et al. 2017, "On calibration of
modern neural networks", equation 3, with bins of equal width. With one label per text the confidence is the largest
probability. With several, each label of each text is a decision of its own: its confidence is its probability, and
"right" is whether the text has the label; accuracy is the fraction of texts with exactly the right labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from regard.arguments import explain_arguments
from regard.errors import (
    DataError,
    OptionError,
    ShapeError,
    check_count,
    check_flag,
    check_number,
    short_repr,
)
from regard.text.tokenizer import check_texts

MAX_BINS = 1000
"""Most bins of a calibration."""
_TINY = 1e-12
"""Least probability in the loss, so that it stays finite."""


@final
@explain_arguments
@dataclass(frozen=True)
class LabelScores:
    """Scores of a label: ``support`` texts have it, ``predicted`` were predicted to."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int
    predicted: int


@final
@explain_arguments
@dataclass(frozen=True)
class CalibrationBin:
    """Predictions with a confidence from ``low`` to ``high``: their number, mean confidence, and the fraction right."""

    low: float
    high: float
    count: int
    confidence: float
    right: float


@final
@explain_arguments
@dataclass(frozen=True)
class ClassificationScores:
    """Scores of a classifier on ``texts`` texts.

    ``baseline`` is the accuracy of always answering ``majority``, the most frequent label or set of labels, joined by
    "|". ``confusion`` counts texts by true label (row) and predicted label (column); None with several labels per text.
    """

    texts: int
    accuracy: float
    macro_f1: float
    micro_f1: float
    loss: float
    majority: str
    baseline: float
    calibration_error: float
    labels: tuple[LabelScores, ...]
    confusion: tuple[tuple[int, ...], ...] | None
    calibration: tuple[CalibrationBin, ...]


@explain_arguments
def score_probabilities(
    probabilities: NDArray[np.floating],
    truth: NDArray[np.bool_],
    labels: Sequence[str],
    *,
    several: bool = False,
    threshold: float = 0.5,
    bins: int = 10,
) -> ClassificationScores:
    """Score predictions.

    Args:
        probabilities: (texts, labels).
        truth: (texts, labels), True where a text has a label; exactly one in each row unless ``several``.
        labels: the names of the labels.
        several: whether a text may have several labels.
        threshold: the least probability of a label that is predicted, with ``several``.
        bins: the number of bins of the calibration, 1 to 1,000.

    Raises ShapeError for shapes that do not fit, DataError without texts or for probabilities outside 0 to 1,
    OptionError for options out of range.
    """
    check_flag("several", several)
    check_number("threshold", threshold, minimum=0.0, maximum=1.0)
    check_count("bins", bins, maximum=MAX_BINS)
    check_texts("labels", labels)
    probabilities, truth = _to_array("probabilities", probabilities, np.float64), _to_array("truth", truth, np.bool_)
    _check(probabilities, truth, labels, several=several)
    best = probabilities.argmax(axis=1)
    predicted = probabilities >= threshold if several else np.eye(len(labels), dtype=bool)[best]
    true_positives, support = (predicted & truth).sum(axis=0), truth.sum(axis=0)
    counts = predicted.sum(axis=0)
    named = _label_scores(labels, true_positives, support, counts)
    f1 = [label.f1 for label in named if label.support + label.predicted]
    majority, baseline = majority_answer(truth, labels)
    calibration = _calibrate(probabilities, truth, several=several, bins=bins)
    return ClassificationScores(
        texts=len(truth),
        accuracy=float((predicted == truth).all(axis=1).mean()),
        macro_f1=sum(f1) / max(1, len(f1)),
        micro_f1=float(_divide(2 * true_positives.sum(), support.sum() + counts.sum())),
        loss=_loss(probabilities, truth, several=several),
        majority=majority,
        baseline=baseline,
        calibration_error=_calibration_error(calibration),
        labels=named,
        confusion=None if several else _confusion(truth.argmax(axis=1), best, len(labels)),
        calibration=calibration,
    )


@explain_arguments
def majority_answer(truth: NDArray[np.bool_], labels: Sequence[str]) -> tuple[str, float]:
    """The most frequent set of labels, joined by "|", and the fraction of texts that have exactly it.

    ``truth`` is (texts, labels), as for ``score_probabilities``.
    """
    sets, counts = np.unique(truth, axis=0, return_counts=True)
    row = sets[counts.argmax()]
    names = "|".join(label for label, has in zip(labels, row, strict=True) if has)
    return names or "no label", float(counts.max() / len(truth))


def _to_array(name: str, value: object, dtype: type[np.generic]) -> NDArray[Any]:
    """Convert to an array of ``dtype``. Raises OptionError for values that cannot be."""
    try:
        return np.asarray(value, dtype=dtype)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # RuntimeError: tensors of torch
        raise OptionError(
            f"{name} is not an array of numbers",
            expected="an array (texts, labels)",
            got=short_repr(value),
            do="pass a NumPy array with a row for each text and a column for each label",
        ) from error


def _check(
    probabilities: Float[np.ndarray, "texts labels"],
    truth: Bool[np.ndarray, "texts labels"],
    labels: Sequence[str],
    *,
    several: bool,
) -> None:
    if probabilities.ndim != 2 or probabilities.shape != truth.shape or probabilities.shape[1] != len(labels):
        raise ShapeError(
            "probabilities, truth and labels do not fit together",
            expected=f"two arrays (texts, {len(labels)})",
            got=f"{probabilities.shape} and {truth.shape}",
            do="give one column for each label",
        )
    if len(truth) == 0:
        raise DataError("there is no text to score", expected="texts", got="none", do="check the data")
    if not ((probabilities >= 0) & (probabilities <= 1 + 1e-6)).all():
        raise DataError(
            "probabilities are not between 0 and 1",
            expected="0 to 1",
            got="other numbers, or NaN",
            do="check the model",
        )
    if not several and not (truth.sum(axis=1) == 1).all():
        raise DataError(
            "a text does not have exactly one label", expected="one label", got="another number", do="pass several=True"
        )


def _label_scores(
    labels: Sequence[str],
    true_positives: NDArray[np.integer],
    support: NDArray[np.integer],
    predicted: NDArray[np.integer],
) -> tuple[LabelScores, ...]:
    """The scores of each label from its counts, (labels,)."""
    precision, recall = _divide(true_positives, predicted), _divide(true_positives, support)
    f1 = _divide(2 * true_positives, support + predicted)
    return tuple(
        LabelScores(label, float(precision[at]), float(recall[at]), float(f1[at]), int(support[at]), int(predicted[at]))
        for at, label in enumerate(labels)
    )


def _divide(above: NDArray[np.integer] | int, below: NDArray[np.integer] | int) -> NDArray[np.float64]:
    """Divide, with 0 / 0 = 0."""
    above, below = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _loss(
    probabilities: Float[np.ndarray, "texts labels"], truth: Bool[np.ndarray, "texts labels"], *, several: bool
) -> float:
    if several:
        return float(-np.log(np.maximum(np.where(truth, probabilities, 1 - probabilities), _TINY)).mean())
    return float(-np.log(np.maximum(probabilities[truth], _TINY)).mean())


def _confusion(true: NDArray[np.integer], predicted: NDArray[np.integer], size: int) -> tuple[tuple[int, ...], ...]:
    counts = np.bincount(true * size + predicted, minlength=size * size).reshape(size, size)
    return tuple(tuple(row) for row in counts.tolist())


def _calibrate(
    probabilities: Float[np.ndarray, "texts labels"],
    truth: Bool[np.ndarray, "texts labels"],
    *,
    several: bool,
    bins: int,
) -> tuple[CalibrationBin, ...]:
    """Sort the decisions into bins of equal width by their confidence."""
    if several:
        confidence, right = probabilities.ravel(), truth.ravel()
    else:
        confidence = probabilities.max(axis=1)
        right = truth[np.arange(len(truth)), probabilities.argmax(axis=1)]
    # Bins are open below and closed above, as in the paper; 0 belongs to the first.
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    confidences = _divide(np.bincount(place, weights=confidence, minlength=bins), counts)
    fractions = _divide(np.bincount(place, weights=right, minlength=bins), counts)
    return tuple(
        CalibrationBin(
            index / bins, (index + 1) / bins, int(counts[index]), float(confidences[index]), float(fractions[index])
        )
        for index in range(bins)
    )


def _calibration_error(calibration: Sequence[CalibrationBin]) -> float:
    total = sum(part.count for part in calibration)
    return sum(part.count / total * abs(part.right - part.confidence) for part in calibration)
