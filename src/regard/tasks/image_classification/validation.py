"""Validation of an image classifier: accuracy, F1, loss and calibration error on validation pictures."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from jaxtyping import Float

from regard.classification import ClassificationScores, score_probabilities
from regard.models import ImageEncoder
from regard.tasks.image_classification.batches import Batches
from regard.train import Validation

_NUM_SAMPLES = 3
_BATCH = 128


@final
class PictureValidation:
    """Measures classifiers on the pictures of ``batches``; ``metric`` decides which weights are the best."""

    def __init__(self, batches: Batches, *, metric: str) -> None:
        self.batches, self.metric = batches, metric

    def measure(self, model: ImageEncoder) -> Validation:
        """Measure the metrics, with samples of predictions."""
        probabilities = self._probabilities(model)
        scores = score_probabilities(probabilities, self.batches.truth, model.labels)
        metrics = {
            "accuracy": scores.accuracy,
            "macro_f1": scores.macro_f1,
            "micro_f1": scores.micro_f1,
            "loss": scores.loss,
            "calibration_error": scores.calibration_error,
        }
        return Validation(self._score(scores), metrics, self._samples(model, probabilities))

    def _score(self, scores: ClassificationScores) -> float:
        value = float(getattr(scores, self.metric))
        return -value if self.metric == "loss" else value

    @torch.no_grad()
    def _probabilities(self, model: ImageEncoder) -> Float[np.ndarray, "pictures labels"]:
        found = np.zeros(self.batches.truth.shape)
        was_training = model.training
        model.eval()
        for begin in range(0, len(found), _BATCH):
            rows = np.arange(begin, min(begin + _BATCH, len(found)))
            logits = model(self.batches.normalise(self.batches.read(rows, model.device))).logits
            found[rows] = logits.double().softmax(1).cpu().numpy()
        model.train(was_training)
        return found

    def _samples(self, model: ImageEncoder, probabilities: Float[np.ndarray, "pictures labels"]) -> tuple[str, ...]:
        """Some pictures with their labels and predictions."""
        pictures, lines = self.batches.pictures.pictures, []
        for index in range(0, len(pictures), max(1, len(pictures) // _NUM_SAMPLES))[:_NUM_SAMPLES]:
            best = int(probabilities[index].argmax())
            predicted = f"{model.labels[best]} {probabilities[index, best]:.2f}"
            lines += [f"picture:    {pictures[index].place}", f"label:      {pictures[index].label}"]
            lines += [f"prediction: {predicted}"]
        return tuple(lines)
