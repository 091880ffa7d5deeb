"""The task of sound classification, for ``regard.train.run``.

Batches of sounds with the labels that a model has.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, final

from torch import Tensor

from regard.audio.sound_augmentation import SoundAugmentation
from regard.audio.sound_file import SOUNDS
from regard.media import LabelledFile
from regard.models import AudioEncoder
from regard.models.audio_encoder import AudioEncoderOutput
from regard.tasks.decoded_files import DecodedFiles, FileSet
from regard.tasks.file_task import FileClassificationTask
from regard.tasks.labelled_data import find_labels
from regard.tasks.medium_task import LabelledBatches
from regard.tasks.new_conformer import Build, build_conformer, describe_model
from regard.tasks.numbered_batches import NumberedBatch
from regard.tasks.sentences import Indices
from regard.tasks.sound_batches import Features, SoundBatches, decode_sounds
from regard.tasks.sound_classification.recipe import SoundClassificationRecipe
from regard.tasks.sound_task import SoundTask


@final
class LabelledSoundBatches(LabelledBatches, SoundBatches[LabelledFile]):
    """Batches of labelled sounds."""

    def least_frames(self, index: int) -> int:
        """A sound of any length has its label."""
        return 1


@final
class SoundClassificationTask(SoundTask[SoundClassificationRecipe], FileClassificationTask[SoundClassificationRecipe]):
    """Training a sound classifier by ``recipe``: see ``FileClassificationTask``.

    ``build`` makes a new model; another function than the default, which builds a Conformer, trains another
    architecture.
    """

    model: AudioEncoder
    head = MappingProxyType({"head": "classification"})

    def __init__(self, recipe: SoundClassificationRecipe, *, build: Build = build_conformer) -> None:
        super().__init__(recipe)
        self._build = build

    def loss_of(self, output: AudioEncoderOutput, batch: NumberedBatch, rows: Indices) -> Tensor:
        """The sum of the losses of the ``rows`` of a batch, a scalar."""
        assert output.logits is not None
        return self.label_loss(output.logits, batch, rows)

    def build_model(self, files: list[LabelledFile]) -> tuple[AudioEncoder, list[LabelledFile]]:
        """Build a new model for these sounds; return it, and those whose headers can be read."""
        good, processor = self._choose_processor(files)
        self._size = self.presets.choose_size(len(good), self._recipe.model)
        model = self._build(self._recipe, self._size, bands=processor.mels, labels=find_labels(good, SOUNDS))
        model.processor = processor
        return model, good

    def describe_model(self) -> str:
        """Describe the model in a line."""
        return describe_model(self._recipe, self._size, self.model, self._processor)

    def decode(
        self, files: list[LabelledFile], others: list[LabelledFile]
    ) -> tuple[DecodedFiles[LabelledFile, Features], DecodedFiles[LabelledFile, Features] | None]:
        """Decode the training sounds and the validation sounds ``others``."""
        recipe = self._recipe
        return decode_sounds(files, others, self._processor, memory=recipe.memory, skip_bad=recipe.skip_bad)

    def choose_augmentation(self) -> tuple[SoundAugmentation, str]:
        """The augmentation of training sounds, without advice."""
        return self._recipe.augmentation(), ""

    def make_batches(
        self, examples: FileSet[LabelledFile, Any], augmentation: SoundAugmentation
    ) -> LabelledSoundBatches:
        """Make the batches of sounds."""
        return LabelledSoundBatches(examples, size=self._recipe.batch, seed=self._seed, augmentation=augmentation)
