"""The validation of a CLIP: how often held-out pictures find their texts, and texts their pictures.

The loss of pairs: each picture of a batch finds its text, and each text its picture; processes may share a batch.

    z = s v t^T                                     v (pairs, size), t (pairs, size) of length 1, s = exp(logit_scale)
    L = sum_i (CE(z[i, :], i) + CE(z[:, i], i)) / 2         a process sums over its own rows i

Radford et al. 2021, section 2.3 and figure 3; as there, s is at most 100. Pairs with the same picture or the same text
are not compared with each other: their logits are left out of both softmaxes, since they are no mistakes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from regard.models import Clip
from regard.tasks.clip.data import CaptionedPictureBatches
from regard.tasks.recipe_task import sample_rows
from regard.tasks.sentences import Indices
from regard.train import Validation
from regard.vision.retrieval import Retrieval, measure_retrieval

MAX_SCALE = 100.0


def pair_loss(
    pictures: Float[Tensor, "pairs size"],
    texts: Float[Tensor, "pairs size"],
    scale: Float[Tensor, ""],
    own: Int[Tensor, " rows"],
    same: Bool[Tensor, "rows pairs"],
) -> Float[Tensor, ""]:
    """The loss summed over the rows ``own``, in float32 or wider; ``same`` are the pairs that are no mistakes."""
    with torch.autocast(pictures.device.type, enabled=False):
        pictures, texts = (
            embeddings if embeddings.dtype == torch.float64 else embeddings.float() for embeddings in (pictures, texts)
        )
        scale = scale.to(pictures.dtype).clamp(max=MAX_SCALE)
        left_out = same.clone()
        left_out[torch.arange(len(own), device=own.device), own] = False
        logits = [scale * queries[own] @ other.T for queries, other in ((pictures, texts), (texts, pictures))]
        losses = [
            functional.cross_entropy(logit.masked_fill(left_out, -torch.inf), own, reduction="sum") for logit in logits
        ]
    return (losses[0] + losses[1]) / 2


_BATCH = 128
_NUM_SAMPLES = 3
_SHOWN = (1, 5)


@final
class ClipValidation:
    """Measures a CLIP on the pairs of ``batches``: the mean of recall@1 in both directions decides."""

    def __init__(self, batches: CaptionedPictureBatches) -> None:
        self.batches = batches
        _, self._pictures, self._picture_of = np.unique(
            batches.pairs.pictures.chosen, return_index=True, return_inverse=True
        )

    def measure(self, model: Clip) -> Validation:
        """Measure recall, with samples of pictures and the texts that were found for them."""
        found = self.retrieve(model)
        metrics = {"recall": found.recall}
        metrics |= {f"picture_to_text_{k}": found.picture_to_text[k] for k in _SHOWN}
        metrics |= {f"text_to_picture_{k}": found.text_to_picture[k] for k in _SHOWN}
        return Validation(found.recall, metrics, self._samples(found))

    @property
    def count(self) -> int:
        """How many pictures and texts ``retrieve`` computes."""
        return len(self._pictures) + len(self.batches.pairs)

    @property
    def chance(self) -> float | None:
        """The recall of guessing, 1 / pictures; None for a single picture, which any model finds."""
        return 1 / len(self._pictures) if len(self._pictures) > 1 else None

    @torch.no_grad()
    def retrieve(self, model: Clip, advance: Callable[[int], None] = lambda done: None) -> Retrieval:
        """Compute the vectors of all pictures and texts, and how they find each other.

        ``advance`` is told how many are done.
        """
        pairs, pictures, texts = self.batches.pairs, list[Tensor](), list[Tensor]()
        for rows in _cut(self._pictures):
            pictures.append(self._embed_pictures(model, rows))
            advance(sum(map(len, pictures)))
        for rows in _cut(np.arange(len(pairs))):
            texts.append(self._embed_texts(model, rows))
            advance(len(self._pictures) + sum(map(len, texts)))
        return measure_retrieval(torch.cat(pictures), torch.cat(texts), pairs.texts, self._picture_of)

    def _embed_pictures(self, model: Clip, pictures: Indices) -> Float[Tensor, "rows size"]:
        pooled = model.vision(self.batches.normalise(self.batches.read(pictures, model.device))).pooled
        return functional.normalize(pooled.float(), dim=-1).cpu()

    def _embed_texts(self, model: Clip, pairs: Indices) -> Float[Tensor, "rows size"]:
        ids, mask = self.batches.read_texts(pairs)
        return model.text.embed(ids.to(model.device), mask=mask).float().cpu()

    def _samples(self, found: Retrieval) -> tuple[str, ...]:
        pairs, lines = self.batches.pairs, list[str]()
        for index in sample_rows(len(self._pictures), _NUM_SAMPLES):
            first = int(np.flatnonzero(self._picture_of == index)[0])
            place = pairs.pictures.select(self._pictures[index : index + 1]).files[0].place
            lines += [f"picture: {place}", f"text:    {pairs.texts[first]}"]
            lines += [f"found:   {pairs.texts[int(found.found_texts[index])]}"]
        return tuple(lines)


def _cut(indices: Indices) -> list[Indices]:
    return [indices[begin : begin + _BATCH] for begin in range(0, len(indices), _BATCH)]
