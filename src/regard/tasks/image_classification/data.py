"""Batches of labelled pictures. If pictures are mixed, a process also changes the partners of its rows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.copy_to_device import copy_to
from regard.media import LabelledFile
from regard.tasks.decoded_files import FileSet
from regard.tasks.medium_task import LabelledBatches
from regard.tasks.numbered_batches import NumberedBatch
from regard.tasks.picture_batches import PictureBatches
from regard.tasks.sentences import Indices
from regard.vision.augmentation import mix_pictures

PictureSet: TypeAlias = FileSet[LabelledFile, np.ndarray]
"""Labelled pictures and their pixels."""


@final
@dataclass(frozen=True, eq=False)
class PictureBatch:
    """Pictures to learn from.

    pixels (rows, channels, height, width)      0 to 1, augmented and mixed; ``normalise`` follows
    truth (rows, labels)                        True where a picture has a label
    share, other (rows, labels)                 of mixed pictures the share of their own label, and the other label
    """

    pixels: Float[Tensor, "rows channels height width"]
    truth: Bool[Tensor, "rows labels"]
    share: float = 1.0
    other: Bool[Tensor, "rows labels"] | None = None


@final
class LabelledPictureBatches(LabelledBatches, PictureBatches[LabelledFile]):
    """Batches of labelled pictures."""

    def augment(self, batch: NumberedBatch, rows: Indices, device: torch.device) -> PictureBatch:
        """Read and augment the ``rows`` of a batch, and mix them with their partners."""
        draws = self.draw(batch)
        mix = draws.mix
        truth = copy_to(self.truth_of(batch, rows), device)
        if mix is None:
            return PictureBatch(self.change(batch, draws, rows, device), truth)
        needed = np.union1d(rows, mix.partner[rows])
        changed = self.change(batch, draws, needed, device)
        begin = time.monotonic()
        own, partners = (torch.from_numpy(np.searchsorted(needed, indices)) for indices in (rows, mix.partner[rows]))
        other = copy_to(self.truth_of(batch, mix.partner[rows]), device)
        mixed = mix_pictures(changed[own], changed[partners], mix)
        self.augmented += time.monotonic() - begin
        return PictureBatch(mixed, truth, mix.share, other)
