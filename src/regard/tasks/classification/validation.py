"""Validation of a classifier: accuracy, F1, loss and calibration error on validation texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch

from regard import masks
from regard.classification import Classifier, score_probabilities
from regard.layers.eval_mode import eval_mode
from regard.models import TextClassifier
from regard.tasks.classification.data import Batches
from regard.tasks.label_validation import score_of
from regard.tasks.recipe_task import sample_rows
from regard.text.labelled import LabelledText
from regard.train import Validation

_NUM_SAMPLES, _SAMPLE_CHARACTERS = 3, 200


@final
class TextValidation:
    """Measures classifiers on ``texts``; ``batches`` holds the same texts as token ids.

    ``metric`` decides which weights are the best: "accuracy", "macro_f1", "micro_f1" or "loss".
    """

    def __init__(self, texts: Sequence[LabelledText], batches: Batches, *, metric: str) -> None:
        self.texts, self.batches, self.metric = texts, batches, metric

    def measure(self, model: TextClassifier) -> Validation:
        """Measure the metrics, with samples of predictions."""
        probabilities = self._probabilities(model)
        scores = score_probabilities(
            probabilities, self.batches.corpus.truth, model.labels, several=model.config.several
        )
        metrics = {
            "accuracy": scores.accuracy,
            "macro_f1": scores.macro_f1,
            "micro_f1": scores.micro_f1,
            "loss": scores.loss,
            "calibration_error": scores.calibration_error,
        }
        return Validation(score_of(scores, self.metric), metrics, self._samples(model, probabilities))

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

    def _samples(self, model: TextClassifier, probabilities: np.ndarray) -> tuple[str, ...]:
        """Some texts with their labels and predictions."""
        classifier, lines = Classifier(model), []
        for index in sample_rows(len(self.texts), _NUM_SAMPLES):
            one = self.texts[index]
            found = classifier.predict(one.text, probabilities[index].tolist())
            shown = ", ".join(f"{label} {found.probabilities[label]:.2f}" for label in found.labels) or "no label"
            wanted = "|".join(one.labels) or "no label"
            lines += [f"text:       {one.text[:_SAMPLE_CHARACTERS]}", f"label:      {wanted}", f"prediction: {shown}"]
        return tuple(lines)
