"""The validation of a classifier, from the probabilities of the labels of each picture, sound or text, and its loss.

The loss: cross-entropy for one label per text or file, binary cross-entropy for several.

    one        L = sum_t w[y_t] ((1 - e) (-log p_t[y_t]) + e / K sum_k (-log p_t[k]))         p_t = softmax(logits_t)
    several    L = sum_t sum_k -w_k y_tk log p_tk - (1 - y_tk) log(1 - p_tk)                  p_tk = sigmoid(logits_tk)

Balanced class weights give every label the same total weight: w_k = n / (K n_k) with one label per text, so that they
are 1 on average over the n texts; with several labels per text w_k = (n - n_k) / n_k, which makes having a label weigh
as much as not having it. e is the label smoothing factor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from regard.classification import ClassificationScores, majority_answer, score_probabilities
from regard.classification.classifier import THRESHOLD
from regard.kernels.operators.cross_entropy_op import cross_entropy
from regard.media import LabelledFile, Medium
from regard.tasks.recipe_task import sample_rows
from regard.text.labelled import LabelledText
from regard.train import Validation
from regard.train.loss import IGNORE_INDEX

_NUM_SAMPLES, _SAMPLE_CHARACTERS = 3, 200


def validate_labels(
    probabilities: Float[np.ndarray, "files labels"],
    truth: Bool[np.ndarray, "files labels"],
    labels: Sequence[str],
    entries: Sequence[LabelledText | LabelledFile],
    kind: Medium,
    *,
    metric: str,
    several: bool = False,
) -> Validation:
    """Accuracy, F1, loss and calibration error, with samples of predictions; ``metric`` counts.

    ``several`` says whether a text may have several labels.
    """
    scores = score_probabilities(probabilities, truth, tuple(labels), several=several)
    metrics = {
        "accuracy": scores.accuracy,
        "macro_f1": scores.macro_f1,
        "micro_f1": scores.micro_f1,
        "loss": scores.loss,
        "calibration_error": scores.calibration_error,
    }
    return Validation(
        score_of(scores, metric), metrics, _samples(probabilities, labels, entries, kind, several=several)
    )


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
    return f"{metric.replace('_f1', ' F1')} {abs(score):.3f} on held-out {kind.plural}"


def score_of(scores: ClassificationScores, metric: str) -> float:
    """The score by ``metric``: higher is better."""
    value = float(getattr(scores, metric))
    return -value if metric == "loss" else value


def _samples(
    probabilities: Float[np.ndarray, "files labels"],
    labels: Sequence[str],
    entries: Sequence[LabelledText | LabelledFile],
    kind: Medium,
    *,
    several: bool,
) -> tuple[str, ...]:
    """Some texts or files with their labels and predictions."""
    lines: list[str] = []
    for index in sample_rows(len(entries), _NUM_SAMPLES):
        entry = entries[index]
        shown = entry.text[:_SAMPLE_CHARACTERS] if isinstance(entry, LabelledText) else entry.place
        best = np.argsort(-probabilities[index], kind="stable").tolist()
        best = [label for label in best if probabilities[index, label] >= THRESHOLD] if several else best[:1]
        found = ", ".join(f"{labels[label]} {probabilities[index, label]:.2f}" for label in best) or "no label"
        lines += [f"{kind.singular + ':':<11} {shown}", f"label:      {'|'.join(entry.labels) or 'no label'}"]
        lines += [f"prediction: {found}"]
    return tuple(lines)


def label_loss(
    logits: Float[Tensor, "batch labels"],
    truth: Bool[Tensor, "batch labels"],
    *,
    several: bool,
    smoothing: float = 0.0,
    weights: Float[Tensor, " labels"] | None = None,
) -> Float[Tensor, ""]:
    """The loss of logits, summed, in float32 or wider; ``truth`` is True where a text has a label."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    weights = None if weights is None else weights.to(logits.device, wide)
    if several:
        return functional.binary_cross_entropy_with_logits(
            logits.to(wide), truth.to(wide), pos_weight=weights, reduction="sum"
        )
    labels = truth.to(torch.uint8).argmax(dim=1)
    losses = cross_entropy(logits, labels, smoothing=smoothing, ignored=IGNORE_INDEX)
    return losses.sum() if weights is None else (losses * weights[labels]).sum()


def balanced_weights(truth: Bool[np.ndarray, "texts labels"], *, several: bool) -> Float[Tensor, " labels"]:
    """The class weights (labels,) that balance texts with this ``truth`` (texts, labels); every label occurs."""
    counts = truth.sum(axis=0).astype(np.float64)
    texts, labels = truth.shape
    found = (texts - counts) / counts if several else texts / (labels * counts)
    return torch.from_numpy(found).float()
