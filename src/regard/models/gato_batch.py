"""A batch of an agent's sequences, of one task or of several, padded on the right.

ids, local, target   (batch, length)               see ``control/token_sequence.py``
lengths              (batch,)                      tokens behind them are padding, without influence
pixels               (patches, channels, 16, 16)   of all patches of the batch, in the order of their ids
places               (patches, 4)                  the intervals of rows and columns that they cover
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.control.patches import scale_pixels
from regard.control.spaces import PATCH
from regard.control.step_tokens import ACTION_POSITION
from regard.control.token_sequence import TokenSequence
from regard.copy_to_device import copy_to
from regard.errors import OptionError, ShapeError, check_kind, short_repr
from regard.fields import repr_of_fields


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class GatoBatch:
    """Sequences for a ``Gato``; ``from_sequences`` makes them."""

    __repr__ = repr_of_fields

    ids: Int[Tensor, "batch length"]
    local: Int[Tensor, "batch length"]
    target: Bool[Tensor, "batch length"]
    lengths: Int[Tensor, " batch"]
    pixels: Float[Tensor, "patches channels 16 16"]
    places: Float[Tensor, "patches 4"]

    @classmethod
    def from_sequences(cls, sequences: Sequence[TokenSequence], *, channels: int = 3) -> GatoBatch:
        """Pad sequences on the right to the longest length. ``channels`` counts the channels of the model's pictures.

        Raises OptionError for an empty batch, ShapeError for pictures of other channels.
        """
        if not isinstance(sequences, Sequence) or not sequences:
            raise OptionError(
                "a batch has no sequences",
                expected="a list of 1 or more TokenSequence",
                got=short_repr(sequences),
                do="put a single sequence into a list",
            )
        for sequence in sequences:
            check_kind("sequence", sequence, TokenSequence, do="make it with a StepTokenizer")
        pictured = [sequence.patches for sequence in sequences if len(sequence.patches)]
        if any(patches.shape[1] != channels for patches in pictured):
            raise ShapeError(
                "the pictures have other channels than the model",
                expected=f"{channels} channels",
                got=", ".join(sorted({str(patches.shape[1]) for patches in pictured})),
                do="convert the pictures, or build the model with channels=",
            )
        lengths = [len(sequence) for sequence in sequences]
        ids, local = (np.zeros((len(sequences), max(lengths)), dtype=np.int64) for _ in range(2))
        target = np.zeros(ids.shape, dtype=bool)
        for row, sequence in enumerate(sequences):
            for padded, values in ((ids, sequence.ids), (local, sequence.local), (target, sequence.target)):
                padded[row, : len(sequence)] = values
        patches = np.concatenate(pictured) if pictured else np.zeros((0, channels, PATCH, PATCH), np.uint8)
        return cls(
            ids=torch.from_numpy(ids),
            local=torch.from_numpy(local),
            target=torch.from_numpy(target),
            lengths=torch.tensor(lengths),
            pixels=torch.from_numpy(scale_pixels(patches)),
            places=torch.from_numpy(np.concatenate([sequence.places for sequence in sequences])),
        )

    @classmethod
    def of_actions(cls, ids: Int[Tensor, "batch length"], *, channels: int = 3) -> GatoBatch:
        """The batch of tokens of actions, which have no pictures and share one local position."""
        return cls(
            ids=ids,
            local=torch.full_like(ids, ACTION_POSITION),
            target=torch.ones_like(ids, dtype=torch.bool),
            lengths=torch.full((len(ids),), ids.shape[1]),
            pixels=torch.zeros(0, channels, PATCH, PATCH),
            places=torch.zeros(0, 4),
        )

    @property
    def visible(self) -> Bool[Tensor, "batch length"]:
        """Which tokens are not padding."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.lengths[:, None].to(self.ids.device)

    def labels(self, ignored: int) -> Int[Tensor, "batch length"]:
        """The id that each token predicts, the id of the next token; ``ignored`` where that is no target."""
        labels = torch.full_like(self.ids, ignored)
        chosen = (self.target & self.visible)[:, 1:]
        labels[:, :-1] = self.ids[:, 1:].masked_fill(~chosen, ignored)
        return labels

    def to(self, device: torch.device | str) -> GatoBatch:
        """The same batch on another device."""
        return GatoBatch(
            **{field.name: copy_to(getattr(self, field.name), torch.device(device)) for field in fields(self)}
        )
