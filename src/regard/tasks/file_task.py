"""The skeleton of tasks that learn from decoded files of a medium, pictures or sounds, and that classify them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, final

from regard.log import log
from regard.media import LabelledFile, Medium, check_labels, read_and_report_labelled
from regard.tasks.decoded_files import DecodedFiles, FileSet, split_files
from regard.tasks.labelled_data import find_labels, report_conflicts, report_lost_labels, report_replaced_head
from regard.tasks.medium_task import ClassifierTask, LabelledBatches, MediumTask
from regard.tasks.numbered_batches import TimeFractions
from regard.tasks.recipe_task import AnyRecipe
from regard.train import RunContext


class FileTask(MediumTask[AnyRecipe], ABC):
    """Training a model of files of a ``medium``, with batches that are ``FileBatches``."""

    def __init__(self, recipe: AnyRecipe) -> None:
        super().__init__(recipe)
        self._measured = TimeFractions(("waiting_for_data", "augmenting"))

    @final
    def metrics(self) -> dict[str, float]:
        """The shares of the time in which training waited for decoded files, and augmented them."""
        return self._measured.shares((self.batches.waited, self.batches.augmented))


class FileClassificationTask(FileTask[AnyRecipe], ClassifierTask[AnyRecipe]):
    """Training a classifier of files of a ``medium``."""

    head: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Hyperparameters of a model that classifies."""

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

    def read(self, start: Any, context: RunContext) -> tuple[LabelledBatches, LabelledBatches]:
        """Read and decode the files, hold some out, and make or load the model: see ``ClassifierTask.read``."""
        del context
        recipe, medium = self._classifier, self.medium
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
        log.info(f"the model: {self.describe_model()}")
        check_labels(others, self.model.labels, "the training data", medium)
        training, held = split_labelled(*self.decode(files, others), medium, seed=self._seed)
        report_lost_labels(named, training.decoded.files, medium)
        augmentation, _ = self.choose_augmentation()
        return self.make_batches(training, augmentation), self.make_batches(held, type(augmentation)())

    def describe_data(self) -> Iterable[str]:
        """Describe the augmentation of the training files."""
        augmentation, advice = self.choose_augmentation()
        return (f"augmentation: {augmentation}{advice}",)


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
