"""Classification of pictures with a trained model.

picture -> pixels -> logits -> probabilities of the labels
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from regard.arguments import explain_arguments
from regard.classification.media_classifier import MediaClassifier, embed_files
from regard.errors import CheckpointError, check_count, check_kind
from regard.layers.eval_mode import eval_mode
from regard.models import ImageEncoder
from regard.models.model_folder import FolderOrName
from regard.vision.picture_file import PICTURES, Picture

BATCH = 64
"""Default pictures of a batch."""
ACCEPTS = "paths, bytes, arrays of uint8, or pictures of Pillow"
"""The accepted forms of a picture."""


class PicturePredictor(MediaClassifier):
    """The base of classifiers of pictures: the probabilities of ``labels``, from logits.

    ``model`` reads ``batch`` pictures at a time, made by its processor. Raises CheckpointError for a model without one.
    """

    kind = PICTURES
    accepts = ACCEPTS

    @abstractmethod
    def __init__(self, model: ImageEncoder, *, batch: int) -> None:
        super().__init__(model, batch=batch)
        self.model, self.processor = model, model.require_processor()

    @abstractmethod
    def compute_logits(self, pixels: Tensor) -> Float[Tensor, "batch labels"]:
        """Compute the logits of the labels for pixels (batch, channels, height, width)."""

    def read(self, file: Picture, *, name: str | None = None) -> UInt8[np.ndarray, "channels height width"]:
        """The pixels of a picture. Raises DataError for one that cannot be read."""
        return self.model.make_input(file, name=name)

    @torch.no_grad()
    def probabilities_of(self, inputs: Sequence[np.ndarray]) -> Float[Tensor, "pictures labels"]:
        """The probabilities of the labels for pixels, uint8 (channels, height, width)."""
        found = [torch.zeros(0, len(self.labels), dtype=torch.float64)]
        with eval_mode(self.model):
            batches = self.model.batch_inputs(inputs, batch=self.batch)
            found += [self.compute_logits(some).double().softmax(1).cpu() for some in batches]
        return torch.cat(found)


@final
@explain_arguments
class PictureClassifier(PicturePredictor):
    """Classifies pictures with ``model``, an image encoder with a head; ``batch`` is the number of pictures at a time.

    Raises CheckpointError for a model without labels or without a processor.
    """

    def __init__(self, model: ImageEncoder, *, batch: int = BATCH) -> None:
        check_kind("model", model, ImageEncoder, do="PictureClassifier.load(folder), or regard.load(folder)")
        check_count("batch", batch)
        if not model.labels:
            raise CheckpointError(
                "the model has no head, so it cannot classify",
                expected="a model with labels",
                got="a model without labels",
                do="train a head on it: regard train classify --from FOLDER --data pictures/",
            )
        super().__init__(model, batch=batch)

    @classmethod
    def load(cls, folder: FolderOrName, *, device: str | None = None, batch: int = BATCH) -> PictureClassifier:
        """Load a classifier from a model folder. Raises CheckpointError if the folder holds no image classifier."""
        return cls(ImageEncoder.load(folder, device=device), batch=batch)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels."""
        return self.model.labels

    def compute_logits(self, pixels: Tensor) -> Float[Tensor, "batch labels"]:
        """Compute the logits of the labels for pixels (batch, channels, height, width)."""
        logits: Tensor = self.model(pixels).logits
        return logits


@explain_arguments
def embed_pictures(
    model: ImageEncoder, pictures: Sequence[Picture], *, batch: int = BATCH
) -> Float[Tensor, "pictures width"]:
    """The pooled vectors of pictures, in float32 on the CPU. Raises DataError for a picture that cannot be read."""
    check_kind("model", model, ImageEncoder, do="regard.load(folder)")
    return embed_files(model, pictures, PICTURES, ACCEPTS, batch=batch)
