"""Validation of an image classifier: accuracy, F1, loss and calibration error on validation pictures."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from jaxtyping import Float

from regard.layers.eval_mode import eval_mode
from regard.models import ImageEncoder
from regard.tasks.image_classification.batches import Batches
from regard.tasks.label_validation import validate_labels
from regard.train import Validation
from regard.vision.picture_file import PICTURES

_BATCH = 128


@final
class PictureValidation:
    """Measures classifiers on the pictures of ``batches``; ``metric`` decides which weights are the best."""

    def __init__(self, batches: Batches, *, metric: str) -> None:
        self.batches, self.metric = batches, metric

    def measure(self, model: ImageEncoder) -> Validation:
        """Measure the metrics, with samples of predictions."""
        return validate_labels(
            self._probabilities(model),
            self.batches.truth,
            model.labels,
            self.batches.pictures.pictures,
            PICTURES,
            metric=self.metric,
        )

    @torch.no_grad()
    def _probabilities(self, model: ImageEncoder) -> Float[np.ndarray, "pictures labels"]:
        found = np.zeros(self.batches.truth.shape)
        with eval_mode(model):
            for begin in range(0, len(found), _BATCH):
                rows = np.arange(begin, min(begin + _BATCH, len(found)))
                logits = model(self.batches.normalise(self.batches.read(rows, model.device))).logits
                found[rows] = logits.double().softmax(1).cpu().numpy()
        return found
