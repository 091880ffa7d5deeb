"""The base of models that read pictures: ViT, DeiT and others.

    hidden = encoder(pixels)            (batch, tokens, width), a hidden state for each token of the picture
    pooled                              (batch, width), one vector for the picture
    logits = head(pooled)               (batch, labels), with a head

The head is a part of the file in some folders and not in others: a model has the parts whose weights its file holds,
and as many labels as the head has rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from regard.arguments import explain_arguments
from regard.copy_to_device import copy_to
from regard.errors import RefusedError
from regard.fields import repr_of_shapes
from regard.layers.window_partition import WindowPartition
from regard.masks import Mask
from regard.models.config_file import ConfigFile
from regard.models.kinds import IMAGE_ENCODER
from regard.models.label_names import read_labels
from regard.models.media_encoder import MediaEncoder, TokenGrid
from regard.models.model_folder import ModelFolder
from regard.models.weight_names import Origin
from regard.validation import check_mask
from regard.vision import ImageProcessor
from regard.vision.picture_file import Picture


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class ImageOutput:
    """The output of an image encoder.

    hidden  (batch, tokens, width)    hidden states after the last norm; tokens before the picture's come first
    pooled  (batch, width)            the vector that the head reads
    logits  (batch, labels)           None without a head
    layers  layers + 1 tensors        the embedding, then each layer's output, before the last norm; None without
                                      ``keep_layers``

    A model with a distillation head, a DeiT, has the logits of both heads as well, else they are None: ``class_logits``
    and ``distillation_logits``, (batch, labels). ``logits`` is their mean.
    """

    __repr__ = repr_of_shapes

    hidden: Float[Tensor, "batch tokens width"]
    pooled: Float[Tensor, "batch pooled"]
    logits: Float[Tensor, "batch labels"] | None = None
    layers: tuple[Float[Tensor, "batch _ _"], ...] | None = None
    class_logits: Float[Tensor, "batch labels"] | None = None
    distillation_logits: Float[Tensor, "batch labels"] | None = None


class ImageEncoder(MediaEncoder, ABC):
    """A model that reads pictures and returns hidden states; a classifier, if it has a head.

    ``processor`` makes its pixels from pictures; None if the model folder does not say how. ``notes`` lists weights
    that loading skipped.
    """

    optional_parts: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Modules that a file may lack beside the head, and the tensor of each that tells. Each is a flag of the config."""

    head_weight: ClassVar[str] = "head.weight"
    """The weight of the head, (labels, width)."""

    kind = IMAGE_ENCODER

    no_rollout_reason: ClassVar[str] = ""
    """Why attention cannot be rolled out from each token of a picture, in a sentence; "" if it can."""

    inputs = "pixels"
    processor_class = ImageProcessor

    processor: ImageProcessor | None = None
    """How the model's pixels are made from pictures; None if the model folder does not say."""

    @abstractmethod
    def forward(self, pixels: Tensor, *, mask: Mask | None = None, keep_layers: bool = False) -> ImageOutput:
        """Compute the hidden states of pictures.

        Args:
            pixels: (batch, channels, height, width), floating point, already normalised (``processor``).
            mask: which tokens may attend to which, over all tokens of a layer (``token_grids``).
            keep_layers: return the embedding and the output of each layer too, in ``.layers``.

        Raises ShapeError or DtypeError for pixels that do not fit, RefusedError for a mask that the model cannot use.
        """

    def embed(self, pixels: Tensor) -> Float[Tensor, "batch vector"]:
        """Compute one vector for each picture: see ``vectors_of``."""
        return self.vectors_of(self(pixels))

    def make_input(self, file: Picture, *, name: str | None = None) -> UInt8[np.ndarray, "channels height width"]:
        """Make the pixels of a picture. See ``MediaEncoder.make_input``."""
        pixels: np.ndarray = self.require_processor().to_pixels(file, name=name)
        return pixels

    def make_batches(self, inputs: Sequence[np.ndarray], *, batch: int) -> Iterator[Mapping[str, Tensor]]:
        """Make normalised pixels of inputs. The pictures of a batch have the same size."""
        processor, dtype = self.require_processor(), next(self.parameters()).dtype
        for _, group in groupby(inputs, key=lambda pixels: pixels.shape):
            some = list(group)
            for begin in range(0, len(some), batch):
                pixels = copy_to(torch.from_numpy(np.stack(some[begin : begin + batch])), self.device)
                yield {"pixels": processor.normalise(processor.rescale_pixels(pixels)).to(dtype)}

    @property
    def picture_size(self) -> tuple[int, int]:
        """The height and width, in pixels, of the pictures that the model was trained for.

        Positions that were learned are interpolated for others.
        """
        size: tuple[int, int] = self.config.picture_size
        return size

    @property
    def channels(self) -> int:
        """The number of channels of a picture."""
        return int(self.config.channels)

    @abstractmethod
    def token_grids(self, height: int, width: int) -> tuple[TokenGrid, ...]:
        """How tokens lie over a picture of this size, for each attention layer, in the order of their calls.

        Raises ShapeError for a size that the model does not read.
        """

    def key_grids(self, height: int, width: int) -> tuple[TokenGrid, ...]:
        """How keys and values lie over a picture of this size, for each attention layer: by default like the tokens."""
        return self.token_grids(height, width)

    def token_cells(self, height: int, width: int) -> tuple[tuple[float, float], ...]:
        """The (height, width) in pixels of the part of a picture that a token stands for, for each attention layer."""
        return tuple(grid.cell(height, width) for grid in self.token_grids(height, width))

    def windows(self, height: int, width: int) -> tuple[WindowPartition, ...]:
        """The windows of each attention layer for a picture of this size; () if tokens attend to the whole picture."""
        del height, width
        return ()

    def pooling_weights(self, output: ImageOutput) -> Float[Tensor, "batch tokens"] | None:
        """The weights with which the pooled vector is the mean of the tokens; None if it is no weighted mean."""
        del output
        return None

    @classmethod
    @final
    def complete_config(cls, folder: ModelFolder, config: Any, origins: Mapping[str, Origin]) -> Any:
        """Complete the hyperparameters by the labels and the parts whose weights the file holds."""
        return folder.config.build_again(config, **cls._stored_parts(folder.config, origins))

    @classmethod
    def _stored_parts(cls, config: ConfigFile, origins: Mapping[str, Origin]) -> dict[str, Any]:
        """The hyperparameters that the weights of a file decide: the labels, and which parts there are."""
        head = origins.get(cls.head_weight)
        shape = None if head is None else head.stored_shape()
        labels = read_labels(config, shape[0]) if shape else ()
        return {"labels": labels} | {part: tensor in origins for part, tensor in cls.optional_parts.items()}


def refuse_mask(mask: object, model: str, reason: str) -> None:
    """Raise OptionError unless ``mask`` is a mask or None, and RefusedError for a mask."""
    check_mask(mask)
    if mask is not None:
        raise RefusedError(
            f"a {model} takes no mask",
            expected=f"mask=None: {reason}",
            got=repr(mask),
            do="fill the part of the picture to be hidden with a constant, or use a ViT",
        )
