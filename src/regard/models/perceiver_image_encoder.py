"""A Perceiver that reads pictures, with the interface of image encoders: for tasks and loaders that take any of them.

    pixels -> hidden   latents (batch, latents, width)
              pooled   (batch, width), the answer to the query of the labels
              logits   (batch, labels)

The wrapper has no weights of its own, and its folder is the Perceiver's folder.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Self, final

import torch
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import OptionError, ShapeError, check_kind
from regard.masks import Mask
from regard.models.config_file import ConfigFile
from regard.models.image_encoder import ImageEncoder, ImageOutput
from regard.models.media_encoder import TokenGrid
from regard.models.model_folder import ModelFolder
from regard.models.perceiver import Perceiver
from regard.models.perceiver_config import PerceiverConfig
from regard.models.perceiver_inputs import ConvolutionInput, PixelInput, TrainedPixelInput
from regard.models.perceiver_outputs import ClassOutput
from regard.models.perceiver_weights import weight_names_inside
from regard.models.weight_names import WeightNames

_PICTURES = (PixelInput, TrainedPixelInput, ConvolutionInput)


def classifies_pictures(config: PerceiverConfig) -> bool:
    """Whether a Perceiver with these hyperparameters classifies pictures."""
    return isinstance(config.input, _PICTURES) and isinstance(config.output, ClassOutput)


@final
@explain_arguments
class PerceiverImageEncoder(ImageEncoder):
    """A classifier of pictures around ``perceiver``, which becomes a part of it.

    Raises OptionError for a Perceiver that reads something else, or returns something else than labels.
    """

    config: PerceiverConfig
    config_class = PerceiverConfig
    attends_through_latents = True
    no_rollout_reason = (
        "The later layers are between latents, which have no place in the picture: they count in the readout and "
        "in the gradient rollout."
    )

    def __init__(self, perceiver: Perceiver) -> None:
        check_kind("perceiver", perceiver, Perceiver, do="for example Perceiver.classifier(PixelInput(), labels)")
        super().__init__(perceiver.config)
        if not classifies_pictures(perceiver.config):
            raise OptionError(
                "this Perceiver is no classifier of pictures",
                expected="an input of " + ", ".join(kind.__name__ for kind in _PICTURES) + ", and a ClassOutput",
                got=f"{type(self.config.input).__name__} and {type(self.config.output).__name__}",
                do="call the Perceiver itself",
            )
        self.perceiver = perceiver
        self.processor = perceiver.processor
        self.metadata, self.notes = dict(perceiver.metadata), perceiver.notes  # a copy, which can be copied deeply

    def forward(self, pixels: Tensor, *, mask: Mask | None = None, keep_layers: bool = False) -> ImageOutput:
        """Compute latents and logits. ``mask`` hides pixels from all latents; a convolution refuses it.

        Raises as ``ImageEncoder.forward``.
        """
        output = self.perceiver(pixels, mask=mask, keep_layers=keep_layers)
        assert output.pooled is not None, "a ClassOutput has it"
        assert isinstance(output.logits, Tensor), "a ClassOutput has one tensor"
        return ImageOutput(output.hidden, output.pooled, output.logits, output.layers)

    def with_labels(self, labels: tuple[str, ...], **fields: Any) -> PerceiverImageEncoder:
        """The model with a last layer of random weights for other labels; all other weights are copied."""
        output = self.config.output
        assert isinstance(output, ClassOutput), "__init__ checks it"
        renewed = Perceiver(replace(self.config, output=replace(output, labels=labels))).to(self.device)
        last = ("output.last.weight", "output.last.bias")
        kept = {name: weight for name, weight in self.perceiver.state_dict().items() if name not in last}
        renewed.load_state_dict(renewed.state_dict() | kept)
        model = PerceiverImageEncoder(renewed)
        model.processor = self.processor
        return model

    @property
    def picture_size(self) -> tuple[int, int]:
        """The (height, width) that positions were made for; other sizes are read too."""
        return self._input.size

    @property
    def channels(self) -> int:
        """The number of channels of a picture."""
        return self._input.channels

    def token_grids(self, height: int, width: int) -> tuple[TokenGrid, ...]:
        """The grid of pixels, the keys of the first attention layer; then the latents, which lie nowhere.

        Latents are tokens of a prefix. The layers are cross-attention, self-attention and the cross-attention of the
        labels' query, whose keys are latents. Raises ShapeError for a size that a convolution does not read.
        """
        if isinstance(self._input, ConvolutionInput):
            if min(height, width) < 5:
                raise ShapeError(
                    "the picture is too small for the convolution",
                    expected="a height and width of 5 or more",
                    got=f"{height} x {width}",
                    do="enlarge the picture",
                )
            height, width = (((edge + 1) // 2 - 3) // 2 + 1 for edge in (height, width))
        latents = tuple(f"latent {number}" for number in range(self.config.latents))
        others = self.config.layers * self.config.repeats + 1
        return TokenGrid(height, width), *[TokenGrid(0, 0, latents)] * others

    @classmethod
    def read_config(cls, config: ConfigFile) -> PerceiverConfig:
        """Read the hyperparameters of the Perceiver from config.json."""
        return Perceiver.read_config(config)

    @classmethod
    def make_weight_names(cls, config: PerceiverConfig) -> WeightNames:
        """Make the table of the names of weights in a file."""
        return weight_names_inside(config)

    def config_fields(self) -> dict[str, Any]:
        """The fields of config.json."""
        return self.perceiver.config_fields()

    @classmethod
    def from_folder(cls, folder: ModelFolder, *, dtype: torch.dtype) -> Self:
        """Load the Perceiver of ``folder`` in eval mode on the CPU. Raises CheckpointError, or OptionError as above."""
        return cls(Perceiver.from_folder(folder, dtype=dtype)).eval()

    def save(self, folder: str | Path, **options: Any) -> None:
        """Write the folder of the Perceiver, with the processor and the metadata: see ``Model.save``."""
        self.perceiver.processor, self.perceiver.metadata = self.processor, self.metadata
        self.perceiver.save(folder, **options)

    @property
    def _input(self) -> PixelInput | TrainedPixelInput | ConvolutionInput:
        assert isinstance(self.config.input, _PICTURES), "__init__ checks it"
        return self.config.input
