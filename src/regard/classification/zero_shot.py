"""Classification of pictures by texts, without training: a CLIP compares each picture with the texts of the labels.

    c_k = normalised mean over templates of t(template with label k)         t: text embedding of length 1
    p_k = softmax over k of exp(logit_scale) v . c_k                         v: picture embedding of length 1

Radford et al. 2021, "Learning transferable visual models from natural language supervision", sections 3.1.2 and 3.1.4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.arguments import explain_arguments
from regard.classification.media_classifier import FilePredictor
from regard.errors import OptionError, check_kind, short_repr
from regard.layers.eval_mode import eval_mode
from regard.models import Clip
from regard.models.model_folder import FolderOrName
from regard.text import Embedder

PLACE = "{}"
"""Where a template has the label."""


@final
@explain_arguments
class ZeroShotClassifier(FilePredictor):
    """Classifies pictures with ``model``, a CLIP, into ``labels``, which are texts.

    Each of ``templates``, such as "a photo of {}.", makes a text of a label in place of {}; several are averaged. The
    embeddings of the labels are computed once. ``batch`` is the number of pictures at a time.

    Raises OptionError for labels or templates that are unusable, CheckpointError for a model without tokenizer or
    processor, DataError for a label that is too long for the model.
    """

    def __init__(
        self, model: Clip, labels: Sequence[str], *, templates: Sequence[str] = (PLACE,), batch: int | None = None
    ) -> None:
        check_kind("model", model, Clip, do="ZeroShotClassifier.load(folder, labels), or regard.load(folder)")
        super().__init__(model.vision, batch=batch)
        self.clip, self._labels, self.templates = model, _check_labels(labels), _check_templates(templates)
        self.label_embeddings = _embed_labels(model, self._labels, self.templates)

    @classmethod
    def load(
        cls,
        folder: FolderOrName,
        labels: Sequence[str],
        *,
        templates: Sequence[str] = (PLACE,),
        device: str | None = None,
        dtype: torch.dtype | None = None,
        weights: str | None = None,
        batch: int | None = None,
    ) -> ZeroShotClassifier:
        """Load the CLIP of a model folder; ``device``, ``dtype`` and ``weights`` are those of ``regard.load``.

        Raises CheckpointError if the folder holds another model.
        """
        return cls(
            Clip.load(folder, device=device, dtype=dtype, weights=weights), labels, templates=templates, batch=batch
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels."""
        return self._labels

    def logits_of(self, output: Any) -> Float[Tensor, "batch labels"]:
        """The logits of the labels by an output of the vision tower."""
        pictures = self.model.vectors_of(output)
        return self.clip.compute_logits(self.label_embeddings.to(pictures), pictures)


def _embed_labels(model: Clip, labels: tuple[str, ...], templates: tuple[str, ...]) -> Float[Tensor, "labels size"]:
    texts = [template.replace(PLACE, label) for label in labels for template in templates]
    with eval_mode(model.text):
        vectors = Embedder(model.text).sentences(texts)
    return functional.normalize(vectors.unflatten(0, (len(labels), len(templates))).mean(dim=1), dim=-1)


def _check_labels(labels: object) -> tuple[str, ...]:
    listed = _to_texts("labels", labels, '["a cat", "a dog"]')
    twice = [label for label, count in Counter(listed).items() if count > 1]
    if twice:
        raise OptionError(
            "labels has a label twice", expected="different texts", got=short_repr(twice[0]), do="leave one of them out"
        )
    return listed


def _check_templates(templates: object) -> tuple[str, ...]:
    listed = _to_texts("templates", templates, '["a photo of {}."]')
    wrong = [template for template in listed if template.count(PLACE) != 1]
    if wrong:
        raise OptionError(
            "a template does not say where the label is",
            expected="{} once in each template",
            got=short_repr(wrong[0]),
            do='for example templates=["a photo of {}."]',
        )
    return listed


def _to_texts(name: str, texts: object, example: str) -> tuple[str, ...]:
    listed = tuple(texts) if isinstance(texts, Sequence) and not isinstance(texts, str | bytes) else ()
    if not listed or not all(isinstance(text, str) and text.strip() for text in listed):
        raise OptionError(
            f"{name} is not a list of texts",
            expected="one or more strings that are not blank",
            got=short_repr(texts),
            do=f"for example {name}={example}",
        )
    return listed
