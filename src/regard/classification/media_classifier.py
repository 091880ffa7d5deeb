"""Classification and embedding of files, pictures or sounds, with a model that reads them.

file -> model input -> logits -> probabilities of the labels -> prediction
                    -> pooled vector
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.arguments import explain_arguments
from regard.classification.classifier import Prediction, Predictor
from regard.devices import to_float64
from regard.errors import CheckpointError, DataError, OptionError, check_count, check_kind, short_repr
from regard.media import Medium, read_file_of_line
from regard.models.media_encoder import MediaEncoder
from regard.models.model_folder import FolderOrName
from regard.text.embedding_job import EmbeddingOptions, LineEmbedder, fingerprint
from regard.text.line import Line
from regard.text.tokenizer import TokenizedText
from regard.text.vector_files import Vectors


class FilePredictor(Predictor):
    """The base of classifiers of files: their probabilities by the logits that follow from the outputs of ``model``.

    ``batch`` is the number of files at a time; None takes the medium's ``batch``. Raises CheckpointError for a model
    without a processor.
    """

    @abstractmethod
    def __init__(self, model: MediaEncoder, *, batch: int | None) -> None:
        if batch is not None:
            check_count("batch", batch)
        self.model, self.processor = model, model.require_processor()
        self.batch = batch or model.medium.batch

    @abstractmethod
    def logits_of(self, output: Any) -> Float[Tensor, "batch labels"]:
        """The logits of the labels by an output of the model."""

    def read(self, file: Any, name: str | None = None) -> Any:
        """Make the model input of a file."""
        return self.model.make_input(file, name=name)

    @torch.no_grad()
    def probabilities_of(self, inputs: Sequence[Any]) -> Float[Tensor, "files labels"]:
        """The probabilities of the labels for what ``read`` returned, in float64 on the CPU; rows sum to 1."""
        outputs = self.model.run_inputs(inputs, batch=self.batch)
        found = [to_float64(self.logits_of(output)).softmax(1).cpu() for output in outputs]
        return torch.cat(found) if found else torch.zeros(0, len(self.labels), dtype=torch.float64)

    def classify(self, files: Sequence[Any]) -> list[Prediction]:
        """Predict the labels of files.

        The ``text`` of a prediction is the path, or "picture 1" and so on. Raises DataError for a file that cannot be
        read, OptionError if ``files`` is not a list.
        """
        rows, singular = self.probabilities(files).tolist(), self.model.medium.singular
        names = [
            str(file) if isinstance(file, str | Path) else f"{singular} {n}" for n, file in enumerate(files, start=1)
        ]
        return [self.predict(name, row) for name, row in zip(names, rows, strict=True)]

    def probabilities(self, files: Sequence[Any]) -> Float[Tensor, "files labels"]:
        """Compute the probabilities of the labels of each file, in float64 on the CPU; they sum to 1.

        Raises DataError for a file that cannot be read.
        """
        check_list(files, self.model.medium)
        starts = range(0, len(files), self.batch)
        found = [self.probabilities_of([self.read(file) for file in files[at : at + self.batch]]) for at in starts]
        return torch.cat(found) if found else self.probabilities_of([])


@final
@explain_arguments
class MediaClassifier(FilePredictor):
    """Classifies files with ``model``, an image or audio encoder with a head; ``batch`` is the number at a time.

    Raises CheckpointError for a model without labels, without a processor, or with a ctc head.
    """

    def __init__(self, model: MediaEncoder, *, batch: int | None = None) -> None:
        check_kind("model", model, MediaEncoder, do="MediaClassifier.load(folder), or regard.load(folder)")
        if not model.labels or not model.classifies:
            raise CheckpointError(
                f"the model has no {'classification ' * bool(model.labels)}head, so it cannot classify",
                expected="a model with labels",
                got="a ctc head, which writes texts" if model.labels else "a model without labels",
                do="write texts with it: regard transcribe"
                if model.labels
                else f"train a head on it: regard train classify --from FOLDER --data {model.medium.plural}/",
            )
        super().__init__(model, batch=batch)

    @classmethod
    def load(
        cls,
        folder: FolderOrName,
        *,
        device: str | None = None,
        dtype: torch.dtype | None = None,
        weights: str | None = None,
        batch: int | None = None,
    ) -> MediaClassifier:
        """Load a classifier from a model folder; ``device``, ``dtype`` and ``weights`` are those of ``regard.load``.

        Raises CheckpointError if the folder holds no classifier of files.
        """
        return cls(MediaEncoder.load(folder, device=device, dtype=dtype, weights=weights), batch=batch)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels."""
        return self.model.labels

    def logits_of(self, output: Any) -> Float[Tensor, "batch labels"]:
        """The logits of the labels by an output of the model."""
        logits: Tensor = output.logits
        return logits


def check_list(files: object, medium: Medium) -> None:
    """Raise OptionError unless ``files`` is a list."""
    if isinstance(files, str | bytes) or not isinstance(files, Sequence):
        raise OptionError(
            f"{medium.plural} is not a list of {medium.plural}",
            expected=f"a list of {medium.accepts}",
            got=short_repr(files),
            do=f"put a single {medium.singular} into a list",
        )


@explain_arguments
def embed_files(model: MediaEncoder, files: Sequence[Any], *, batch: int | None = None) -> Float[Tensor, "files width"]:
    """The pooled vectors of pictures or sounds, in float32 on the CPU.

    ``batch`` is the number of files in memory at a time; None takes the medium's ``batch``. Raises DataError for a file
    that cannot be read, OptionError if ``files`` is not a list.
    """
    check_kind("model", model, MediaEncoder, do="regard.load(folder)")
    check_list(files, model.medium)
    if batch is not None:
        check_count("batch", batch)
    size = batch or model.medium.batch
    model.require_processor()
    starts = range(0, len(files), size)
    found = [
        model.embed_inputs([model.make_input(file) for file in files[at : at + size]], batch=size) for at in starts
    ]
    return torch.cat(found) if found else torch.zeros(0, model.vector_width)


@final
class FileLines(LineEmbedder):
    """Makes the pooled vectors of files, whose paths are the lines of an input.

    Raises CheckpointError for a model without a processor.
    """

    def __init__(self, model: MediaEncoder, options: EmbeddingOptions) -> None:
        medium = model.medium
        super().__init__(options, width=model.vector_width, how="pooled", nouns=(medium.singular, medium.plural))
        self.model, self.processor, self.chunk = model, model.require_processor(), medium.chunk

    def read(self, lines: Sequence[Line]) -> Sequence[tuple[TokenizedText, Any] | DataError]:
        """Make the model input of each file, in threads; its row has the path as the text."""

        def read(line: Line) -> tuple[TokenizedText, Any] | DataError:
            make_input = self.model.make_input
            path, content = read_file_of_line(line, lambda file, name: make_input(file, name=name), self.model.medium)
            return content if isinstance(content, DataError) else (TokenizedText(path, (), (), (), (), (), 0), content)

        with ThreadPoolExecutor(thread_name_prefix="decode") as pool:
            return list(pool.map(read, lines))

    def compute(self, inputs: Sequence[Any]) -> Vectors:
        """Embed model inputs."""
        return list(self.model.embed_inputs(inputs, batch=self.options.batch).numpy())

    def fingerprint(self) -> str:
        """SHA-256 of configs, weights and the processor."""
        return fingerprint(self.model, self.how, json.dumps(self.processor.fields()))
