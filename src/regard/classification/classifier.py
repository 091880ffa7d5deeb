"""Classification of texts with a trained model.

    text -> tokens -> logits -> probabilities of the labels

Texts are batched by length to reduce padding; predictions come in the order of the texts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.arguments import explain_arguments
from regard.copy_to_device import copy_to
from regard.devices import launch_ahead
from regard.errors import CheckpointError, check_count, check_flag, check_kind, check_number
from regard.layers.eval_mode import eval_mode
from regard.models import TextClassifier
from regard.models.model_folder import FolderOrName
from regard.text.embedding import batches_by_length
from regard.text.tokenizer import TokenizedText, check_text, check_texts

BATCH_TOKENS = 8192
"""Default tokens of a batch, padding included."""
_BATCH_TEXTS = 64
THRESHOLD = 0.5
"""The least probability of a label that is predicted, if a text may have several."""


@final
@explain_arguments
@dataclass(frozen=True)
class Prediction:
    """The prediction for a text or a file: ``labels``, the most probable first, and ``probabilities`` of all labels.

    There is one label, or with several labels per text those whose probability reaches the threshold, perhaps none.
    An empty text has no labels and no probabilities. Of a file ``text`` is the path.
    """

    text: str
    labels: tuple[str, ...]
    probabilities: Mapping[str, float]

    @property
    def label(self) -> str | None:
        """The most probable of ``labels``; None if there is none."""
        return self.labels[0] if self.labels else None


class Predictor(ABC):
    """The base of classifiers, whatever they read: input -> what a model reads -> probabilities -> prediction."""

    several: bool = False
    """Whether an input may have several labels, or none; else it has the most probable one."""
    threshold: float = THRESHOLD
    """The least probability of a label that is predicted, if an input may have several."""

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """The names of the labels."""

    @abstractmethod
    def probabilities_of(self, inputs: Sequence[Any]) -> Float[Tensor, "inputs labels"]:
        """The probabilities of the labels for inputs that were read, in float64 on the CPU."""

    def predict(self, text: str, probabilities: Sequence[float]) -> Prediction:
        """The prediction that follows from the probabilities of the labels, in the order of ``labels``."""
        ranked = sorted(zip(probabilities, self.labels, strict=True), key=lambda pair: -pair[0])
        chosen = [pair for pair in ranked if pair[0] >= self.threshold] if self.several else ranked[:1]
        named = dict(zip(self.labels, probabilities, strict=True))
        return Prediction(text, tuple(label for _, label in chosen), named)


@final
@explain_arguments
class Classifier(Predictor):
    """Classifies texts with ``model``, a ``TextClassifier`` from ``regard.load`` or from a training run.

    ``tokens`` is the maximum of tokens in a batch, padding included. ``threshold`` is the least probability of a label
    that is predicted, if a text may have several. Raises CheckpointError for a model without tokenizer.
    """

    def __init__(self, model: TextClassifier, *, tokens: int = BATCH_TOKENS, threshold: float = THRESHOLD) -> None:
        check_kind("model", model, TextClassifier, do="Classifier.load(folder), or regard.load(folder)")
        check_count("tokens", tokens)
        check_number("threshold", threshold, minimum=0.0, maximum=1.0)
        if model.tokenizer is None:
            raise CheckpointError(
                "the model has no tokenizer, so it cannot read text",
                expected="tokenizer.json in its folder",
                got="none",
                do="use the whole folder that `regard train classify` wrote",
            )
        self.model, self.tokenizer = model, model.tokenizer
        self.tokens, self.threshold, self.several = tokens, float(threshold), model.config.several

    @classmethod
    def load(
        cls,
        folder: FolderOrName,
        *,
        device: str | None = None,
        dtype: torch.dtype | None = None,
        weights: str | None = None,
        tokens: int = BATCH_TOKENS,
        threshold: float = THRESHOLD,
    ) -> Classifier:
        """Load a classifier from a model folder; ``device``, ``dtype`` and ``weights`` are those of ``regard.load``.

        Raises CheckpointError if the folder holds no classifier.
        """
        return cls(
            TextClassifier.load(folder, device=device, dtype=dtype, weights=weights), tokens=tokens, threshold=threshold
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels."""
        return self.model.labels

    def classify(self, texts: Sequence[str], *, truncate: bool = False) -> list[Prediction]:
        """Predict the labels of texts, in their order. An empty text has no label.

        Raises DataError for a text that is too long for the model, unless ``truncate``; OptionError if ``texts`` is not
        a list of strings.
        """
        check_texts("texts", texts)
        check_flag("truncate", truncate)
        for number, text in enumerate(texts, start=1):
            self.check(text, f"text {number}", truncate=truncate)
        full = [index for index, text in enumerate(texts) if text.strip()]
        rows = self.probabilities([texts[index] for index in full], truncate=truncate).tolist()
        predictions = [Prediction(text, (), {}) for text in texts]
        for index, row in zip(full, rows, strict=True):
            predictions[index] = self.predict(texts[index], row)
        return predictions

    def check(self, text: str, name: str, *, truncate: bool = False) -> None:
        """Raise DataError if the text, called ``name`` in the message, cannot be classified."""
        check_text(text, 1)
        if not truncate and self.is_too_long(text):
            (tokenized,) = self.tokenizer.tokenize([text])
            self.tokenizer.check_length(tokenized, name)

    def is_too_long(self, text: str) -> bool:
        """Whether the text has more tokens than the model reads."""
        limit = self.tokenizer.limit
        # Short texts need not be tokenized twice: a character is at most three when normalized, of four bytes each.
        if limit is None or 12 * len(text) + 8 <= limit:
            return False
        (tokenized,) = self.tokenizer.tokenize([text])
        return len(tokenized) > limit

    def probabilities_of(self, inputs: Sequence[str]) -> Float[Tensor, "texts labels"]:
        """The probabilities of the labels for texts that ``check`` let pass."""
        return self.probabilities(inputs, truncate=True)

    @torch.no_grad()
    def probabilities(self, texts: Sequence[str], *, truncate: bool = False) -> Float[Tensor, "texts labels"]:
        """Compute the probabilities of the labels of each text, (texts, labels) in float64 on the CPU.

        Raises DataError for a text that is too long, unless ``truncate``; OptionError if ``texts`` is not a list of
        strings.
        """
        check_texts("texts", texts)
        tokenized = self.tokenizer.tokenize(texts, truncate=truncate)
        for number, text in enumerate(tokenized, start=1):
            self.tokenizer.check_length(text, f"text {number}")
        found = torch.zeros(len(tokenized), len(self.labels), dtype=torch.float64)
        with eval_mode(self.model):
            for rows, probabilities in launch_ahead(self._compute(tokenized), self.model.device):
                found[rows] = probabilities.cpu()
        return found

    def _compute(self, texts: Sequence[TokenizedText]) -> Iterator[tuple[list[int], Tensor]]:
        """The numbers and the probabilities of the texts of each batch, on the model's device."""
        for rows, some in self._batches(texts):
            batch = self.tokenizer.pad(some)
            logits = self.model(copy_to(batch.ids, self.model.device), mask=batch.mask).logits
            yield rows, self.model.probabilities(logits)

    def _batches(self, texts: Sequence[TokenizedText]) -> Iterator[tuple[list[int], list[TokenizedText]]]:
        for rows in batches_by_length([len(text) for text in texts], _BATCH_TEXTS, most_tokens=self.tokens):
            yield rows, [texts[row] for row in rows]
