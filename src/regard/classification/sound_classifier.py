"""Classification of sounds with a trained model.

sound -> log-mel spectrogram -> logits -> probabilities of the labels
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.arguments import explain_arguments
from regard.audio.sound_file import SOUNDS, Sound
from regard.classification.media_classifier import MediaClassifier, embed_files
from regard.errors import CheckpointError, check_kind
from regard.models import AudioEncoder
from regard.models.model_folder import FolderOrName

BATCH = 32
"""Default sounds of a batch."""
ACCEPTS = "paths, bytes, or float arrays (samples,)"
"""The accepted forms of a sound."""


@final
@explain_arguments
class SoundClassifier(MediaClassifier):
    """Classifies sounds with ``model``, an audio encoder with a head; ``batch`` is the number of sounds at a time.

    Raises CheckpointError for a model without labels, without a processor, or with a ctc head.
    """

    kind = SOUNDS
    accepts = ACCEPTS

    def __init__(self, model: AudioEncoder, *, batch: int = BATCH) -> None:
        check_kind("model", model, AudioEncoder, do="SoundClassifier.load(folder), or regard.load(folder)")
        super().__init__(model, batch=batch)
        if not model.labels or not model.classifies:
            raise CheckpointError(
                "the model has no classification head, so it cannot classify",
                expected="a model with labels",
                got="a ctc head, which writes texts" if model.labels else "a model without labels",
                do="write texts with it: regard transcribe"
                if model.labels
                else "train a head on it: regard train classify --from FOLDER --data sounds/",
            )
        self.model, self.processor = model, model.require_processor()

    @classmethod
    def load(cls, folder: FolderOrName, *, device: str | None = None, batch: int = BATCH) -> SoundClassifier:
        """Load a classifier from a model folder. Raises CheckpointError if the folder holds no classifier of sounds."""
        return cls(AudioEncoder.load(folder, device=device), batch=batch)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels."""
        return self.model.labels

    def read(self, file: Sound | np.ndarray[Any, Any], *, name: str | None = None) -> Float[Tensor, "frames bands"]:
        """The features of a sound. Raises DataError for one that cannot be read."""
        return self.model.make_input(file, name=name)

    def probabilities_of(self, inputs: Sequence[Float[Tensor, "_ bands"]]) -> Float[Tensor, "sounds labels"]:
        """The probabilities of the labels for features of sounds."""
        found = [torch.zeros(0, len(self.labels), dtype=torch.float64)]
        for output in self.model.run_inputs(inputs, batch=self.batch):
            assert output.logits is not None
            found.append(output.logits.double().softmax(1).cpu())
        return torch.cat(found)


@explain_arguments
def embed_sounds(
    model: AudioEncoder, sounds: Sequence[Sound | np.ndarray[Any, Any]], *, batch: int = BATCH
) -> Float[Tensor, "sounds width"]:
    """The pooled vectors of sounds, in float32 on the CPU. Raises DataError for a sound that cannot be read."""
    check_kind("model", model, AudioEncoder, do="regard.load(folder)")
    return embed_files(model, sounds, SOUNDS, ACCEPTS, batch=batch)
