"""The skeleton of tasks that learn from files of a medium, pictures or sounds, and of those that classify them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from regard.layers.eval_mode import eval_mode
from regard.log import log
from regard.media import LabelledFile, Medium, check_labels, label_matrix, read_and_report_labelled
from regard.tasks.decoded_files import DecodedFiles, FileBatches, FileSet, split_files
from regard.tasks.label_validation import balanced_weights, baseline_score, describe_score, validate_labels
from regard.tasks.labelled_data import (
    choose_metric,
    describe_labels,
    find_labels,
    report_conflicts,
    report_lost_labels,
    report_replaced_head,
)
from regard.tasks.numbered_batches import NumberedBatch, TimeFractions
from regard.tasks.recipe_task import AnyRecipe, RecipeTask
from regard.tasks.sentences import Indices
from regard.train import RunContext, Validation


class FileTask(RecipeTask[AnyRecipe], ABC):
    """Training a model of files of a ``medium``.

    ``prepare`` sets ``model``, ``batches`` to the training files, ``held_out`` to the validation files, and ``metric``
    to what decides which weights are best.
    """

    medium: ClassVar[Medium]
    batches: FileBatches[Any, Any]
    held_out: FileBatches[Any, Any]
    metric: str

    def __init__(self, recipe: AnyRecipe) -> None:
        super().__init__(recipe)
        self._measured = TimeFractions(("waiting_for_data", "augmenting"))

    def try_model(self) -> None:
        """Compute an example, so that a model that cannot compute it fails before training."""
        self.model.eval()
        inputs = self.batches.inputs(np.arange(1), torch.device("cpu"))
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            self.model(**inputs)

    def recipe(self) -> dict[str, Any]:
        """The recipe's fields, with the model that was chosen, and a hash of the files and what is learned of them."""
        return {
            **self._recipe.fields(),
            "metric": self.metric,
            "model": self.model.config_fields() | {"processor": self.model.require_processor().fields()},
            self.medium.several: self.batches.digest + self.held_out.digest,
        }

    @final
    def epoch(self, number: int) -> list[NumberedBatch]:
        """The batches of epoch ``number`` (from 0), in order."""
        return self.batches.epoch(number)

    @final
    def metrics(self) -> dict[str, float]:
        """The shares of the time in which training waited for decoded files, and augmented them."""
        return self._measured.shares((self.batches.waited, self.batches.augmented))

    @final
    def metadata(self) -> dict[str, Any]:
        """The numbers of files, and the model that training started from."""
        return {self.medium.several: len(self.batches), "held_out": len(self.held_out), "start": self._start_name}


class LabelledBatches(FileBatches[LabelledFile, Any], ABC):
    """Batches of labelled files; ``truth`` (files, labels) is True where a file has a label."""

    def learn(self, labels: tuple[str, ...], medium: Medium) -> None:
        """Set the ``truth`` for the labels of a model."""
        self.truth = label_matrix(self.examples.files, labels, "the model", medium)

    def target_bytes(self) -> bytes:
        """The labels of the files."""
        return np.packbits(self.truth).tobytes()

    def truth_of(self, batch: NumberedBatch, rows: Indices) -> Tensor:
        """The labels of the ``rows`` of a batch, (rows, labels)."""
        return torch.from_numpy(self.truth[batch.examples[rows]])


class FileClassificationTask(FileTask[AnyRecipe]):
    """Training a classifier of files of a ``medium``.

    ``prepare`` makes the choices that the recipe leaves open, and reports them. It needs the fields of a classifier's
    recipe: ``data``, ``validation``, ``where``, ``class_weights`` and ``metric``.
    """

    batches: Any
    held_out: Any
    head: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Hyperparameters of a model that classifies."""

    def __init__(self, recipe: AnyRecipe) -> None:
        super().__init__(recipe)
        self._weights: Tensor | None = None
        self._seed = 0

    @abstractmethod
    def load_start(self, context: RunContext) -> Any:
        """Check recipe and settings before data is read, and load the model to start from; None for a new one.

        Raises OptionError for an invalid recipe or settings, CheckpointError for a model that cannot be started from.
        """

    @abstractmethod
    def build_model(self, files: list[LabelledFile]) -> tuple[Any, list[LabelledFile]]:
        """Build a new model for these files; return it, and the files whose headers can be read."""

    @abstractmethod
    def describe_model(self) -> str:
        """Describe the model in a line."""

    @abstractmethod
    def decode(
        self, files: list[LabelledFile], others: list[LabelledFile]
    ) -> tuple[DecodedFiles[LabelledFile, Any], DecodedFiles[LabelledFile, Any] | None]:
        """Decode the training files and the validation files ``others``: see ``decode_both``."""

    @abstractmethod
    def choose_augmentation(self) -> tuple[Any, str]:
        """The augmentation of training files, and advice about it, or ""."""

    @abstractmethod
    def make_batches(self, examples: FileSet[LabelledFile, Any], augmentation: Any) -> LabelledBatches:
        """Make the batches of files."""

    def prepare(self, context: RunContext) -> None:
        """Read and decode the files, hold some out, and make or load the model.

        Raises DataError for data that cannot be used, and what the methods raise.
        """
        recipe, medium = self._data_recipe, self.medium
        self._seed = context.settings.seed
        start = self.load_start(context)
        named = files = read_and_report_labelled(recipe.data, medium, recipe.where.columns)
        paths = recipe.validation
        others = read_and_report_labelled(paths, medium, recipe.where.columns) if paths else []
        labels = find_labels(files, medium)
        if start is None:
            self.model, files = self.build_model(files)
        else:
            is_kept = start.classifies and set(start.labels) == set(labels)
            self.model = start if is_kept else start.with_labels(labels, **self.head)
            report_replaced_head(str(recipe.start), start.labels, labels, is_kept=is_kept)
        labels = self.model.labels
        log.info(f"the model: {self.describe_model()}")
        check_labels(others, labels, "the training data", medium)
        training, held = split_labelled(*self.decode(files, others), medium, seed=self._seed)
        report_lost_labels(named, training.decoded.files, medium)
        listed = [file.labels for file in training.files]
        for sentence in describe_labels(labels, listed, several=False, things=medium.several):
            log.info(sentence)
        augmentation, advice = self.choose_augmentation()
        log.info(f"augmentation: {augmentation}{advice}")
        self.batches = self.make_batches(training, augmentation)
        self.held_out = self.make_batches(held, type(augmentation)())
        for one in (self.batches, self.held_out):
            one.learn(labels, medium)
        self.metric = choose_metric(recipe.metric, self.held_out.truth, labels, medium)
        if recipe.class_weights == "balanced":
            self._weights = balanced_weights(self.batches.truth, several=False)
        self.try_model()

    @property
    def _data_recipe(self) -> Any:
        """The recipe, with the fields of a classifier."""
        return self._recipe

    @final
    def tokens(self, batch: NumberedBatch) -> int:
        """The number of files of a batch."""
        return len(batch)

    @property
    def unit(self) -> str:
        """The unit of ``tokens``, in the plural."""
        return self.medium.several

    @final
    @torch.no_grad()
    def validate(self, model: nn.Module) -> Validation:
        """Measure accuracy, F1, loss and calibration error on the validation files."""
        held, device = self.held_out, next(model.parameters()).device
        found = np.zeros(held.truth.shape)
        with eval_mode(model):
            for rows in held.cut_for_validation(2 * self.medium.batch):
                found[rows] = model(**held.inputs(rows, device)).logits.double().softmax(1).cpu().numpy()
        return validate_labels(
            found, held.truth, self.model.labels, held.examples.files, self.medium, metric=self.metric
        )

    @final
    def baseline(self) -> float | None:
        """The score of a model that gives each label its frequency as the probability."""
        return baseline_score(self.held_out.truth, self.model.labels, self.metric)

    @final
    def describe(self, score: float) -> str:
        """Format a score, for example "accuracy 0.914 on held-out pictures"."""
        return describe_score(score, self.metric, self.medium)


def split_labelled(
    decoded: DecodedFiles[LabelledFile, Any],
    others: DecodedFiles[LabelledFile, Any] | None,
    medium: Medium,
    *,
    seed: int,
) -> tuple[FileSet[LabelledFile, Any], FileSet[LabelledFile, Any]]:
    """The labelled files for training and for validation: see ``split_files``. Copies with other labels are reported.

    Raises DataError if there is nothing to tell apart.
    """
    labels = [file.labels for file in decoded.files]
    report_conflicts(decoded.digests, decoded.files, labels, medium)
    other = None if others is None else FileSet.whole(others)
    training, held = split_files(FileSet.whole(decoded), other, labels, medium, seed=seed)
    find_labels(training.files, medium)
    return training, held
