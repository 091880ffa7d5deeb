"""Validation of a classifier: accuracy, F1, loss and calibration error on validation texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch

from regard import masks
from regard.layers.eval_mode import eval_mode
from regard.media import TEXTS
from regard.models import TextClassifier
from regard.tasks.classification.data import Batches
from regard.tasks.label_validation import validate_labels
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
