"""The task of image classification, for ``regard.train.run``."""

from __future__ import annotations

import hashlib
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.media import LabelledFile
from regard.models import ImageEncoder
from regard.tasks.decoded_files import DecodedFiles
from regard.tasks.file_task import FileClassificationTask
from regard.tasks.image_classification import new_model
from regard.tasks.image_classification.data import LabelledPictureBatches, PictureSet
from regard.tasks.image_classification.presets import PRESETS, choose_picture_size
from regard.tasks.image_classification.recipe import ImageClassificationRecipe
from regard.tasks.image_classification.validation import picture_loss, teacher_pixels
from regard.tasks.labelled_data import find_labels
from regard.tasks.numbered_batches import NumberedBatch
from regard.tasks.picture_batches import decode_pictures, measure_pictures
from regard.tasks.sentences import Indices
from regard.train import RunContext
from regard.vision.augmentation import Augmentation
from regard.vision.augmentation_operations import load_kornia
from regard.vision.picture_file import PICTURES


@final
class ImageClassificationTask(FileClassificationTask[ImageClassificationRecipe]):
    """Training an image classifier by ``recipe``: see ``FileClassificationTask``."""

    model: ImageEncoder
    medium = PICTURES
    presets = PRESETS
    check_hyperparameters = staticmethod(new_model.check_hyperparameters)

    def __init__(self, recipe: ImageClassificationRecipe) -> None:
        super().__init__(recipe)
        self._teacher: ImageEncoder | None = None
        self._teacher_labels: Tensor | None = None

    def check(self) -> None:
        """Raise as ``RecipeTask.check``, and MissingPackageError without the package of the augmentation."""
        super().check()
        if self._recipe.augmentation(32).policy != "none":
            load_kornia("enhance")

    def load_start(self) -> ImageEncoder | None:
        """Load the teacher, and the model to start from. Raises as ``ClassifierTask.load_start``."""
        start, self._teacher = new_model.load_start(self._recipe), new_model.load_teacher(self._recipe)
        return start

    def prepare(self, context: RunContext) -> None:
        """Prepare as ``FileClassificationTask``, and the teacher too.

        Raises RefusedError for a model whose pictures have no fixed size.
        """
        super().prepare(context)
        if self._teacher is not None:
            labels = new_model.check_teacher(self._teacher, self.model.labels, str(self._recipe.teacher))
            self._teacher.to(context.device)
            self._teacher_labels = labels.to(context.device)

    def recipe(self) -> dict[str, Any]:
        """The recipe's fields, with the model that was chosen, and a hash of the pictures and of the teacher."""
        return {
            **super().recipe(),
            "teacher_weights": None if self._teacher is None else _weights_digest(self._teacher),
        }

    def build_model(self, files: list[LabelledFile]) -> tuple[ImageEncoder, list[LabelledFile]]:
        """Build a new model for these pictures; return it, and those whose headers can be read."""
        recipe = self._recipe
        good, (height, width), all_alike, all_grey = measure_pictures(files, skip_bad=recipe.skip_bad)
        size = recipe.picture_size or choose_picture_size(height, width, all_alike=all_alike)
        channels, labels = 1 if all_grey else 3, find_labels(good, PICTURES)
        model, self._size = new_model.new_model(recipe, size, pictures=len(good), channels=channels, labels=labels)
        return model, good

    def describe_model(self) -> str:
        """Describe the model in a line."""
        return new_model.describe_model(self._recipe, self._size, self.model)

    def decode(
        self, files: list[LabelledFile], others: list[LabelledFile]
    ) -> tuple[DecodedFiles[LabelledFile, np.ndarray], DecodedFiles[LabelledFile, np.ndarray] | None]:
        """Decode the training pictures and the validation pictures ``others``."""
        recipe, processor = self._recipe, self.model.require_processor()
        return decode_pictures(files, others, processor, memory=recipe.memory, skip_bad=recipe.skip_bad)

    def choose_augmentation(self) -> tuple[Augmentation, str]:
        """The augmentation of training pictures, and advice about mirrored ones."""
        augmentation = self._recipe.augmentation(min(self.model.picture_size))
        mirrors = self._recipe.flip is None and augmentation.flip
        return augmentation, "; `flip=False` if mirrored pictures mean another" if mirrors else ""

    def make_batches(self, examples: PictureSet, augmentation: Augmentation) -> LabelledPictureBatches:
        """Make the batches of pictures."""
        processor, size = self.model.require_processor(), self._recipe.batch
        return LabelledPictureBatches(examples, processor, size=size, seed=self._seed, augmentation=augmentation)

    def rows_loss(self, model: nn.Module, batch: NumberedBatch, rows: Indices) -> Tensor:
        """The sum of the losses of the ``rows`` of a batch, a scalar with a gradient."""
        self._measured.begin()
        pictures = self.batches.augment(batch, rows, next(model.parameters()).device)
        teacher = None if self._teacher is None else self._ask_teacher(self._teacher, pictures.pixels)
        output = model(self.batches.normalise(pictures.pixels))
        self.batches.prefetch_following(batch)
        return picture_loss(
            output,
            pictures,
            smoothing=self._recipe.smoothing,
            weights=self._weights,
            teacher=teacher,
            distill=self._recipe.distill or "hard",
        )

    @torch.no_grad()
    def _ask_teacher(self, teacher: ImageEncoder, pixels: Tensor) -> Float[Tensor, "rows labels"]:
        """The teacher's logits for the augmented pictures, in the order of the model's labels."""
        assert teacher.processor is not None
        seen = teacher_pixels(pixels, teacher.channels, teacher.picture_size)
        logits: Tensor = teacher(teacher.processor.normalise(seen)).logits
        return logits[:, self._teacher_labels]


def _weights_digest(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for weight in model.state_dict().values():
        digest.update(weight.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()
