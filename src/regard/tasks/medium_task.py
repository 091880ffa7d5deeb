"""The skeleton of tasks that learn from examples of a medium, texts, pictures or sounds, and that classify them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from regard.copy_to_device import copy_to
from regard.devices import to_float64
from regard.layers.eval_mode import eval_mode
from regard.log import log
from regard.media import Labelled, Medium, label_matrix
from regard.tasks.label_validation import balanced_weights, baseline_score, describe_score, label_loss, validate_labels
from regard.tasks.labelled_data import choose_metric, describe_labels
from regard.tasks.numbered_batches import Batches, NumberedBatch
from regard.tasks.recipe_task import AnyRecipe, RecipeTask, RowTask
from regard.tasks.sentences import Indices
from regard.train import RunContext, Validation


class MediumTask(RecipeTask[AnyRecipe], ABC):
    """Training a model of examples of a ``medium``.

    ``prepare`` sets ``model``, ``batches`` to the training examples, ``held_out`` to the validation examples, and
    ``metric`` to what decides which weights are best.
    """

    medium: ClassVar[Medium]
    batches: Any
    held_out: Any
    metric: str

    def try_model(self) -> None:
        """Compute the longest examples, so that a model that cannot compute them fails before training."""
        self.model.eval()
        for batches in (self.batches, self.held_out):
            inputs = batches.inputs(batches.cut_for_validation(len(batches))[0][:1], torch.device("cpu"))
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                self.model(**inputs)

    def model_fields(self) -> dict[str, Any]:
        """The fields of the model for ``recipe``: its hyperparameters, and how it reads files."""
        fields: dict[str, Any] = self.model.config_fields()
        return fields | {"processor": self.model.require_processor().fields()}

    def recipe(self) -> dict[str, Any]:
        """The recipe's fields, with the model that was chosen, and a hash of examples and what is learned of them."""
        return {
            **self._recipe.fields(),
            "metric": self.metric,
            "model": self.model_fields(),
            self.medium.plural: self.batches.digest + self.held_out.digest,
        }

    @final
    def metadata(self) -> dict[str, Any]:
        """The numbers of examples, and the model that training started from."""
        return {self.medium.plural: len(self.batches), "held_out": len(self.held_out), "start": self._start_name}


class LabelledBatches(Batches, ABC):
    """Batches of labelled examples; ``truth`` (examples, labels) is True where one has a label."""

    truth: npt.NDArray[np.bool_]

    def learn(self, entries: Sequence[Labelled], labels: tuple[str, ...], medium: Medium) -> None:
        """Set the ``truth`` of the examples, which are ``entries`` of a medium, for the labels of a model."""
        self.truth = label_matrix(entries, labels, "the model", medium)

    def target_bytes(self) -> bytes:
        """The labels of the examples, for ``digest``."""
        return np.packbits(self.truth).tobytes()

    def truth_of(self, batch: NumberedBatch, rows: Indices) -> Tensor:
        """The labels of the ``rows`` of a batch, (rows, labels)."""
        return torch.from_numpy(self.truth[batch.examples[rows]])


class ClassifierTask(MediumTask[AnyRecipe], RowTask[AnyRecipe]):
    """Training a classifier of a ``medium``.

    ``prepare`` makes the choices that the recipe leaves open, and reports them. ``batches`` and ``held_out`` are
    ``LabelledBatches`` with the texts or files of their examples, ``entries``, and the ``inputs`` of the model.
    """

    several: bool = False
    """Whether an example may have several labels, or none."""

    def __init__(self, recipe: AnyRecipe) -> None:
        super().__init__(recipe)
        self._weights: Tensor | None = None
        self._seed = 0

    @property
    def _classifier(self) -> Any:
        """The recipe, with the fields of a classifier."""
        return self._recipe

    @abstractmethod
    def load_start(self) -> Any:
        """Load the model to start from; None for a new one. Raises CheckpointError for one that cannot be used."""

    @abstractmethod
    def read(self, start: Any, context: RunContext) -> tuple[LabelledBatches, LabelledBatches]:
        """Read the data, hold some out, and make ``model`` of the model to start from, or a new one.

        Returns the batches for training and for validation. Raises DataError for data that cannot be used.
        """

    def describe_data(self) -> Iterable[str]:
        """Describe what else was chosen for the training data, beside the labels."""
        return ()

    def prepare(self, context: RunContext) -> None:
        """Read the data, hold some out, and make or load the model.

        Raises DataError for data that cannot be used, OptionError for an invalid recipe or settings, CheckpointError
        for a model that cannot be started from, and what the model raises for the longest example.
        """
        recipe, medium, self._seed = self._classifier, self.medium, context.settings.seed
        self.check()
        self.batches, self.held_out = self.read(self.load_start(), context)
        labels, listed = self.model.labels, [entry.labels for entry in self.batches.entries]
        for sentence in describe_labels(labels, listed, several=self.several, plural=medium.plural):
            log.info(sentence)
        for sentence in self.describe_data():
            log.info(sentence)
        for batches in (self.batches, self.held_out):
            batches.learn(batches.entries, labels, medium)
        self.metric = choose_metric(recipe.metric, self.held_out.truth, labels, medium)
        if recipe.class_weights == "balanced":
            self._weights = balanced_weights(self.batches.truth, several=self.several)
        self.try_model()

    @final
    def tokens(self, batch: NumberedBatch) -> int:
        """The number of predictions of a batch: its examples, or with several labels examples x labels."""
        return len(batch) * (len(self.model.labels) if self.several else 1)

    @property
    def unit(self) -> str:
        """The unit of ``tokens``, in the plural."""
        return "predictions" if self.several else self.medium.plural

    def rows_loss(self, model: nn.Module, batch: NumberedBatch, rows: Indices) -> Tensor:
        """The sum of the losses of the ``rows`` of a batch, a scalar with a gradient."""
        inputs = self.batches.inputs(batch.examples[rows], next(model.parameters()).device)
        return self.label_loss(model(**inputs).logits, batch, rows)

    def label_loss(self, logits: Tensor, batch: NumberedBatch, rows: Indices) -> Tensor:
        """The sum of the losses of logits (rows, labels) for the ``rows`` of a batch."""
        truth, smoothing = copy_to(self.batches.truth_of(batch, rows), logits.device), self._classifier.smoothing
        return label_loss(logits, truth, several=self.several, smoothing=smoothing, weights=self._weights)

    @property
    def validation_batch(self) -> int:
        """The most examples of a batch of ``validate``."""
        return 2 * self.medium.batch

    @final
    @torch.no_grad()
    def validate(self, model: nn.Module) -> Validation:
        """Measure accuracy, F1, loss and calibration error on the validation examples."""
        held, device = self.held_out, next(model.parameters()).device
        found = np.zeros(held.truth.shape)
        with eval_mode(model):
            for rows in held.cut_for_validation(self.validation_batch):
                logits = to_float64(model(**held.inputs(rows, device)).logits)
                found[rows] = (logits.sigmoid() if self.several else logits.softmax(1)).cpu().numpy()
        options: dict[str, Any] = {"metric": self.metric, "several": self.several}
        return validate_labels(found, held.truth, self.model.labels, held.entries, self.medium, **options)

    @final
    def baseline(self) -> float | None:
        """The score of a model that gives each label its frequency as the probability."""
        return baseline_score(self.held_out.truth, self.model.labels, self.metric, several=self.several)

    @final
    def describe(self, score: float) -> str:
        """Format a score, for example "accuracy 0.914 on held-out pictures"."""
        return describe_score(score, self.metric, self.medium)
