"""The base of classifiers of pictures and of sounds.

file -> model input -> logits -> probabilities of the labels -> prediction
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.classification.classifier import Prediction
from regard.errors import OptionError, check_count, short_repr
from regard.media import MediaKind
from regard.models.media_encoder import MediaEncoder


class MediaClassifier(ABC):
    """Classifies files of a ``kind``, ``batch`` of them at a time."""

    kind: ClassVar[MediaKind]
    """Whether the files are pictures or sounds."""

    accepts: ClassVar[str]
    """The accepted forms of a file, in words."""

    @abstractmethod
    def __init__(self, model: nn.Module, *, batch: int) -> None:
        check_count("batch", batch)
        self.batch = batch

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """The names of the labels."""

    @abstractmethod
    def read(self, file: Any, *, name: str | None = None) -> Any:
        """Make the model input of one file; ``name`` is what messages call it.

        Raises DataError for a file that cannot be read.
        """

    @abstractmethod
    def probabilities_of(self, inputs: Sequence[Any]) -> Float[Tensor, "files labels"]:
        """The probabilities of the labels for what ``read`` returned, in float64 on the CPU; rows sum to 1."""

    def classify(self, files: Sequence[Any]) -> list[Prediction]:
        """Predict the labels of files.

        The ``text`` of a prediction is the path, or "picture 1" and so on. Raises DataError for a file that cannot be
        read, OptionError if ``files`` is not a list.
        """
        rows, one = self.probabilities(files).tolist(), self.kind.one
        names = [str(file) if isinstance(file, str | Path) else f"{one} {n}" for n, file in enumerate(files, start=1)]
        return [self.predict(name, row) for name, row in zip(names, rows, strict=True)]

    def predict(self, name: str, probabilities: Sequence[float]) -> Prediction:
        """The prediction that follows from the probabilities of the labels, in the order of ``labels``."""
        named = dict(zip(self.labels, probabilities, strict=True))
        return Prediction(name, (max(named, key=lambda label: named[label]),), named)

    def probabilities(self, files: Sequence[Any]) -> Float[Tensor, "files labels"]:
        """Compute the probabilities of the labels of each file, in float64 on the CPU; they sum to 1.

        Raises DataError for a file that cannot be read.
        """
        check_list(files, self.kind, self.accepts)
        starts = range(0, len(files), self.batch)
        found = [self.probabilities_of([self.read(one) for one in files[at : at + self.batch]]) for at in starts]
        return torch.cat(found) if found else self.probabilities_of([])


def check_list(files: object, kind: MediaKind, accepts: str) -> None:
    """Raise OptionError unless ``files`` is a list; ``accepts`` says what one of them may be."""
    if isinstance(files, str | bytes) or not isinstance(files, Sequence):
        raise OptionError(
            f"{kind.several} is not a list of {kind.several}",
            expected=f"a list of {accepts}",
            got=short_repr(files),
            do=f"put a single {kind.one} into a list",
        )


def embed_files(
    model: MediaEncoder, files: Sequence[Any], kind: MediaKind, accepts: str, *, batch: int
) -> Float[Tensor, "files width"]:
    """The pooled vectors of files, ``batch`` of which are in memory at a time, in float32 on the CPU.

    Raises DataError for a file that cannot be read, OptionError if ``files`` is not a list of what ``accepts`` says.
    """
    check_list(files, kind, accepts)
    check_count("batch", batch)
    model.require_processor()
    starts = range(0, len(files), batch)
    found = [
        model.embed_inputs([model.make_input(one) for one in files[at : at + batch]], batch=batch) for at in starts
    ]
    return torch.cat(found) if found else torch.zeros(0, model.vector_width)
