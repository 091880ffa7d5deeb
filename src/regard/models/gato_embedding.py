"""The embeddings of a Gato: a table for tokens, a residual block for patches, and two kinds of positions.

    e_t = table[id_t] + local[l_t]                                 text, values, separator
    e_t = patch(x_t) + row[r_t] + column[c_t] + local[l_t]         patches

    patch(x) = W vec(u + f(u)) + b,    u = conv_3x3(x),    f(u) = conv_3x3(gelu(norm(conv_3x3(gelu(norm(u))))))

norm is a group norm, and the block follows He et al. 2016, "Identity mappings in deep residual networks" (v2). A
patch covers the rows [a, b) of its picture, as a part of 1. In training its row r is drawn from the indices floor(a K)
to ceil(b K) - 1 of K places, in evaluation it is floor((floor(a K) + floor(b K)) / 2), K at most K - 1; columns alike.
l_t is the position within the observation; the separator and all tokens of actions share one.
ids (batch, length), pixels (patches, channels, 16, 16), places (patches, 4) -> (batch, length, width).
Reed et al. 2022, "A generalist agent", section 2.2 and appendix C.2 and C.3. It leaves open the channels of the block,
and how its output becomes a token: here by a linear layer.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.control.spaces import PATCH
from regard.copy_to_device import copy_to
from regard.devices import to_float64
from regard.errors import ShapeError
from regard.kernels.operators.activation_op import activate
from regard.layers.projection import linear_activation
from regard.layers.to_channels_last import to_channels_last
from regard.models.gato_batch import GatoBatch
from regard.models.gato_config import GatoConfig


@final
class PatchBlock(nn.Module):
    """The residual block that makes a token of a patch; patches do not mix."""

    def __init__(self, config: GatoConfig) -> None:
        super().__init__()
        hidden = config.patch_channels
        self.first = nn.Conv2d(config.channels, hidden, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(config.groups, hidden, eps=config.epsilon) for _ in range(2))
        self.convolutions = nn.ModuleList(nn.Conv2d(hidden, hidden, 3, padding=1) for _ in range(2))
        self.projection = nn.Linear(hidden * PATCH * PATCH, config.width)

    def forward(self, pixels: Float[Tensor, "patches channels 16 16"]) -> Float[Tensor, "patches width"]:
        """Embed patches of scaled pixels."""
        shortcut = inner = self.first(to_channels_last(pixels))
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            inner = convolution(activate(norm(inner), "gelu"))
        return linear_activation((shortcut + inner).flatten(1), self.projection)


@final
class PatchPlaces(nn.Module):
    """The vectors of the rows, or of the columns, that a patch covers."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(places, width)

    def forward(self, intervals: Float[Tensor, "patches 2"]) -> Float[Tensor, "patches width"]:
        """Embed intervals [a, b) of [0, 1]: at a random place of each in training, at the middle in evaluation."""
        return self.embedding(self.choose_places(intervals))

    def choose_places(self, intervals: Float[Tensor, "patches 2"]) -> Int[Tensor, " patches"]:
        """Choose the index of a place for each interval."""
        count = self.embedding.num_embeddings
        scaled = to_float64(intervals) * count
        first, end = scaled.floor().long().clamp(0, count - 1).unbind(1)
        if not self.training:
            beyond = scaled[:, 1].floor().long()
            return ((first + beyond) // 2).clamp(max=count - 1).to(intervals.device)
        end = torch.maximum(scaled[:, 1].ceil().long().clamp(max=count), first + 1)
        first, end = first.to(intervals.device), end.to(intervals.device)
        return first + (torch.rand(len(first), device=first.device) * (end - first)).long().clamp(max=count - 1)


@final
class GatoEmbedding(nn.Module):
    """Embeds a batch of sequences. ``table`` is shared with the output layer."""

    def __init__(self, config: GatoConfig) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Embedding(config.vocabulary, config.width)
        self.local = nn.Embedding(config.max_observation + 1, config.width)
        self.patches = PatchBlock(config)
        self.rows = PatchPlaces(config.places, config.width)
        self.columns = PatchPlaces(config.places, config.width)

    def forward(self, batch: GatoBatch) -> Float[Tensor, "batch length width"]:
        """Embed a checked batch, on the device of the weights. Padding is embedded as token 0 of an observation."""
        device, visible = self.table.weight.device, batch.visible
        is_patch = (batch.ids == self.config.ranges.patch_id) & visible
        tokens = self.table(copy_to(batch.ids.masked_fill(~visible | is_patch, 0), device))
        if torch.is_grad_enabled() or is_patch.any():  # without patches they get gradients of 0, which DDP waits for
            pixels, places = (copy_to(part, device) for part in self._visible_patches(batch, is_patch))
            vectors = self.patches(pixels) + self.rows(places[:, :2]) + self.columns(places[:, 2:])
            where = tuple(copy_to(index, device) for index in is_patch.nonzero(as_tuple=True))
            tokens = tokens.index_put(where, vectors.to(tokens.dtype))
        local = batch.local.masked_fill(~visible, 0)
        observation = self.config.max_observation
        return tokens + self.local(copy_to(torch.where(local < 0, observation, local), device))

    def _visible_patches(self, batch: GatoBatch, is_patch: Tensor) -> tuple[Tensor, Tensor]:
        """The pixels and places of patches that are not padding: NaN in others must not reach a gradient."""
        every = batch.ids == self.config.ranges.patch_id
        if len(batch.pixels) == int(is_patch.sum()):  # padding has no pixels
            return batch.pixels, batch.places
        if len(batch.pixels) != int(every.sum()):
            raise ShapeError(
                "ids and pixels do not fit together",
                expected=f"pixels and places of {int(is_patch.sum())} patches, one for each id of a patch",
                got=f"{len(batch.pixels)}",
                do="make the batch with GatoBatch.from_sequences",
            )
        is_patch_of_row = is_patch[every]
        return batch.pixels[is_patch_of_row], batch.places[is_patch_of_row]
