"""Validation of a classifier: accuracy, F1, loss and calibration error on validation texts; and the loss of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard import masks
from regard.layers.eval_mode import eval_mode
from regard.media import TEXTS
from regard.models import TextClassifier
from regard.tasks.classification.data import Batches
from regard.tasks.label_validation import label_loss, validate_labels
from regard.tasks.sentences import Indices
from regard.text.labelled import LabelledText
from regard.train import Validation


@final
class TextValidation:
    """Measures classifiers on ``texts``; ``batches`` holds the same texts as token ids.

    ``metric`` decides which weights are the best: "accuracy", "macro_f1", "micro_f1" or "loss".
    """

    def __init__(self, texts: Sequence[LabelledText], batches: Batches, *, metric: str) -> None:
        self.texts, self.batches, self.metric = texts, batches, metric

    def measure(self, model: TextClassifier) -> Validation:
        """Measure the metrics, with samples of predictions."""
        return validate_labels(
            self._probabilities(model),
            self.batches.corpus.truth,
            model.labels,
            self.texts,
            TEXTS,
            metric=self.metric,
            several=model.config.several,
        )

    @torch.no_grad()
    def _probabilities(self, model: TextClassifier) -> np.ndarray:
        """The probabilities (texts, labels) of the validation texts."""
        found = np.zeros(self.batches.corpus.truth.shape)
        with eval_mode(model):
            for texts in self.batches.batches_by_length():
                batch = self.batches.batch(texts).to(model.device)
                logits = model(batch.ids, mask=masks.padding(batch.lengths)).logits
                found[texts] = model.probabilities(logits).cpu().numpy()
        return found


def text_loss(
    model: nn.Module,
    batches: Batches,
    texts: Indices,
    *,
    several: bool,
    smoothing: float = 0.0,
    weights: Float[Tensor, " labels"] | None = None,
) -> Float[Tensor, ""]:
    """The loss summed over ``texts``, indices into ``batches``: a scalar. ``weights`` are w; None is 1 for each."""
    batch = batches.batch(texts).to(next(model.parameters()).device)
    logits = model(batch.ids, mask=masks.padding(batch.lengths)).logits
    return label_loss(logits, batch.truth, several=several, smoothing=smoothing, weights=weights)
