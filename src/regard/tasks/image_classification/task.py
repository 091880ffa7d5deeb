"""The task of image classification, for ``regard.train.run``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.media import LabelledFile, check_labels
from regard.models import ImageEncoder
from regard.tasks.classification.loss import balanced_weights
from regard.tasks.image_classification import new_model
from regard.tasks.image_classification.data import Batches, read_pictures, split_pictures
from regard.tasks.image_classification.presets import (
    FINE_TUNING,
    SIZES,
    choose_picture_size,
)
from regard.tasks.image_classification.recipe import ImageClassificationRecipe
from regard.tasks.image_classification.validation import PictureValidation, picture_loss, teacher_pixels
from regard.tasks.label_validation import baseline_score, describe_score
from regard.tasks.labelled_data import (
    choose_metric,
    describe_labels,
    find_labels,
    report_lost_labels,
    report_replaced_head,
)
from regard.tasks.numbered_batches import NumberedBatch, TimeShares
from regard.tasks.picture_batches import measure_pictures
from regard.tasks.recipe_task import RecipeTask
from regard.tasks.sentences import Indices
from regard.train import RankShard, RunContext, Validation
from regard.vision.augmentation import Augmentation
from regard.vision.augmentation_operations import load_kornia
from regard.vision.picture_file import PICTURES


@final
class ImageClassificationTask(RecipeTask[ImageClassificationRecipe]):
    """Training an image classifier by ``recipe``.

    ``prepare`` makes the choices that the recipe leaves open, and reports them. It sets ``batches`` to the training
    pictures and ``validation`` to the metrics on validation pictures.
    """

    model: ImageEncoder
    batches: Batches
    validation: PictureValidation
    sizes = SIZES
    fine_tuning = FINE_TUNING
    unit = "pictures"

    def __init__(self, recipe: ImageClassificationRecipe) -> None:
        super().__init__(recipe)
        self._weights: Tensor | None = None
        self._teacher: ImageEncoder | None = None
        self._teacher_labels: Tensor | None = None
        self._measured = TimeShares(("waiting_for_data", "augmenting"))

    def prepare(self, context: RunContext) -> None:
        """Read and decode the pictures, hold some out, and make or load the model.

        Raises DataError for data that cannot be used, OptionError for an invalid recipe, CheckpointError for a model
        that cannot be started from, RefusedError for a model whose pictures have no fixed size.
        """
        recipe, say, seed = self._recipe, context.say, context.settings.seed
        recipe.check_effect()
        if recipe.start is None:
            new_model.check_hyperparameters(recipe)
        if recipe.augmentation(32).policy != "none":
            load_kornia("enhance")  # fails here if it is not installed, before data is read
        # Settings that are invalid even with the shortest warm-up fail here, too.
        self.complete(context.settings)
        start, self._teacher = new_model.load_start(recipe), new_model.load_teacher(recipe)
        named = pictures = read_pictures(recipe, recipe.data, say)
        others = read_pictures(recipe, recipe.validation, say) if recipe.validation else []
        labels = find_labels(pictures, PICTURES)
        if start is None:
            pictures = self._build_model(pictures, labels, say)
        else:
            self.model = new_model.with_labels(start, labels)
            report_replaced_head(str(recipe.start), start.labels, labels, is_kept=self.model is start, say=say)
        labels = self.model.labels
        say(f"the model: {new_model.describe_model(recipe, self._size, self.model)}")
        check_labels(others, labels, "the training data", PICTURES)
        processor = self.model.processor
        assert processor is not None
        training, held_out = split_pictures(recipe, pictures, others, processor, seed=seed, say=say)
        find_labels(training.files, PICTURES)
        report_lost_labels(named, training.decoded.files, PICTURES, say)
        listed = [(one.label,) for one in training.files]
        for sentence in describe_labels(labels, listed, several=False, things="pictures"):
            say(sentence)
        augmentation = recipe.augmentation(min(self.model.picture_size))
        mirrors = recipe.flip is None and augmentation.flip
        advice = "; flip=False (--no-flip) if mirrored pictures mean another" if mirrors else ""
        say(f"augmentation: {augmentation}{advice}")
        self.batches, held = (
            Batches(one, labels, processor, size=recipe.batch, seed=seed, augmentation=own)
            for one, own in ((training, augmentation), (held_out, Augmentation()))
        )
        self.validation = PictureValidation(
            held, metric=choose_metric(recipe.metric, held.truth, labels, PICTURES, say)
        )
        if recipe.class_weights == "balanced":
            self._weights = balanced_weights(self.batches.truth, several=False)
        if self._teacher is not None:
            self._teacher_labels = new_model.check_teacher(self._teacher, labels, str(recipe.teacher))
            self._teacher.to(context.device)
            self._teacher_labels = self._teacher_labels.to(context.device)
        self._try_model()

    def recipe(self) -> dict[str, Any]:
        """The recipe's fields, with the model that was chosen, and a hash of the pictures and of the teacher."""
        processor = self.model.processor
        assert processor is not None
        return {
            **self._recipe.fields(),
            "metric": self.validation.metric,
            "model": self.model.config_fields() | {"processor": processor.fields()},
            "pictures": self.batches.digest + self.validation.batches.digest,
            "teacher_weights": None if self._teacher is None else _weights_digest(self._teacher),
        }

    def epoch(self, number: int) -> list[NumberedBatch]:
        """The batches of an epoch."""
        return self.batches.epoch(number)

    def tokens(self, batch: NumberedBatch) -> int:
        """The number of pictures of a batch."""
        return len(batch)

    def loss(self, model: nn.Module, batch: NumberedBatch, shard: RankShard) -> Tensor:
        """The sum of the losses of a shard of a batch, a scalar with a gradient."""
        self._measured.begin()
        own: Indices = shard.rows(np.arange(len(batch)))
        loss = self._loss(model, batch, own if len(own) else np.arange(1))
        self.batches.ask_after(batch)
        return loss if len(own) else loss * 0.0  # every process takes part in each step, even without rows

    def metrics(self) -> dict[str, float]:
        """The shares of the time in which training waited for decoded pictures, and augmented them."""
        return self._measured.shares((self.batches.waited, self.batches.augmented))

    def validate(self, model: nn.Module) -> Validation:
        """Measure accuracy, F1, loss and calibration error on the validation pictures."""
        assert isinstance(model, ImageEncoder)
        return self.validation.measure(model)

    def baseline(self) -> float | None:
        """The score of a model that gives each label its frequency as the probability."""
        return baseline_score(self.validation.batches.truth, self.model.labels, self.validation.metric)

    def metadata(self) -> dict[str, Any]:
        """The numbers of pictures, and the model that training started from."""
        counts = {"pictures": len(self.batches), "held_out": len(self.validation.batches)}
        return {**counts, "start": self._start_name}

    def describe(self, score: float) -> str:
        """Format a score, for example "accuracy 0.914 on held-out pictures"."""
        return describe_score(score, self.validation.metric, PICTURES)

    def _loss(self, model: nn.Module, batch: NumberedBatch, rows: Indices) -> Tensor:
        device = next(model.parameters()).device
        made = self.batches.augment(batch, rows, device)
        teacher = None if self._teacher is None else self._ask_teacher(self._teacher, made.pixels)
        return picture_loss(
            model(self.batches.normalise(made.pixels)),
            made,
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

    def _build_model(
        self, pictures: Sequence[LabelledFile], labels: tuple[str, ...], say: Callable[[str], None]
    ) -> list[LabelledFile]:
        """Build a new model for these pictures, and return those whose headers can be read."""
        recipe = self._recipe
        good, (height, width), all_alike, all_grey = measure_pictures(pictures, skip_bad=recipe.skip_bad, say=say)
        size = recipe.picture_size or choose_picture_size(height, width, all_alike=all_alike)
        labels = find_labels(good, PICTURES)
        self.model, self._size = new_model.new_model(
            recipe, size, pictures=len(good), channels=1 if all_grey else 3, labels=labels
        )
        return good

    def _try_model(self) -> None:
        """Classify a picture, so that a model that cannot compute it fails before training."""
        self.model.eval()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            self.model(self.batches.normalise(self.batches.read(np.arange(1), torch.device("cpu"))))


def _weights_digest(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for weight in model.state_dict().values():
        digest.update(weight.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()
