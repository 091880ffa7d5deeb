"""The validation of a classifier, from the probabilities of the labels of each picture, sound or text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from regard.classification import ClassificationScores, majority_answer, score_probabilities
from regard.media import LabelledFile, Medium
from regard.tasks.recipe_task import sample_rows
from regard.train import Validation

_NUM_SAMPLES = 3


def validate_labels(
    probabilities: Float[np.ndarray, "files labels"],
    truth: Bool[np.ndarray, "files labels"],
    labels: Sequence[str],
    files: Sequence[LabelledFile],
    kind: Medium,
    *,
    metric: str,
) -> Validation:
    """Accuracy, F1, loss and calibration error, with samples of predictions; ``metric`` counts."""
    scores = score_probabilities(probabilities, truth, tuple(labels))
    metrics = {
        "accuracy": scores.accuracy,
        "macro_f1": scores.macro_f1,
        "micro_f1": scores.micro_f1,
        "loss": scores.loss,
        "calibration_error": scores.calibration_error,
    }
    return Validation(score_of(scores, metric), metrics, _samples(probabilities, labels, files, kind))


def baseline_score(
    truth: Bool[np.ndarray, "files labels"], labels: Sequence[str], metric: str, *, several: bool = False
) -> float | None:
    """The score of a model that gives each label its frequency as the probability, whatever its input is.

    None if all files have the same labels, since no model can be better than that.
    """
    _, share = majority_answer(truth, labels)
    if share == 1.0:
        return None
    frequencies = np.broadcast_to(truth.mean(axis=0), truth.shape)
    score = score_of(score_probabilities(frequencies, truth, tuple(labels), several=several), metric)
    return max(score, share) if metric == "accuracy" else score


def describe_score(score: float, metric: str, kind: Medium) -> str:
    """Format a score, for example "accuracy 0.914 on held-out pictures"."""
    return f"{metric.replace('_f1', ' F1')} {abs(score):.3f} on held-out {kind.several}"


def score_of(scores: ClassificationScores, metric: str) -> float:
    """The score by ``metric``: higher is better."""
    value = float(getattr(scores, metric))
    return -value if metric == "loss" else value


def _samples(
    probabilities: Float[np.ndarray, "files labels"],
    labels: Sequence[str],
    files: Sequence[LabelledFile],
    kind: Medium,
) -> tuple[str, ...]:
    """Some files with their labels and predictions."""
    lines: list[str] = []
    for index in sample_rows(len(files), _NUM_SAMPLES):
        best = int(probabilities[index].argmax())
        lines += [f"{kind.one + ':':<11} {files[index].place}", f"label:      {files[index].label}"]
        lines += [f"prediction: {labels[best]} {probabilities[index, best]:.2f}"]
    return tuple(lines)
