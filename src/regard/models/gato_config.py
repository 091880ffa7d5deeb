"""The hyperparameters of a Gato, and its config.json. Reed et al. 2022, "A generalist agent", appendix C, table 5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from regard.arguments import explain_arguments
from regard.control.spaces import PATCH
from regard.control.token_ranges import TokenRanges
from regard.errors import OptionError, check_weights
from regard.fields import check_fields
from regard.models.hyperparameters import depth_field, model_field, probability_field, size_field

MODEL_TYPE = "regard-gato"


@final
@explain_arguments
@dataclass(frozen=True)
class GatoConfig:
    """The hyperparameters of a Gato. Defaults are the published model with 79 million weights.

    Raises OptionError for values out of range.
    """

    text: int = size_field(32_000, "number of pieces of text", minimum=0)
    bins: int = size_field(1024, "number of bins of a continuous value")
    discrete: int = size_field(1024, "number of discrete values")
    width: int = size_field(768, "size of hidden states")
    layers: int = depth_field(8, "number of layers")
    heads: int = size_field(24, "number of heads, a divisor of ``width``", divides="width")
    inner: int = size_field(3072, "hidden size of the feed-forward layers")
    max_length: int = size_field(
        1024, "number of tokens that a token attends to, itself included; training sequences are as long"
    )
    max_observation: int = size_field(512, "number of local positions, the tokens of the longest observation")
    places: int = size_field(128, "number of intervals of rows, and of columns, by which patches are placed")
    channels: int = size_field(3, "channels of pictures")
    patch_channels: int = size_field(64, "channels inside the residual block of patches")
    groups: int = size_field(
        32,
        "groups of channels that are normalised together, a divisor of ``patch_channels``",
        divides="patch_channels",
    )
    dropout: float = probability_field(0.1, "probability of dropping a component of a sublayer's output in training")
    epsilon: float = model_field(1e-5, "epsilon of the norms", minimum=0.0)
    deviation: float = model_field(0.02, "standard deviation of initial weights", minimum=0.0)

    def __post_init__(self) -> None:
        check_fields(self)
        check_weights(vocabulary=self.ranges.vocabulary, width=self.width)
        check_weights(patch=PATCH * PATCH * self.patch_channels, width=self.width)
        if (self.width // self.heads) % 2:
            raise OptionError(
                "rotary positions rotate pairs of dimensions",
                expected="an even width / heads",
                got=f"{self.width} / {self.heads} = {self.width // self.heads}",
                do="choose another width or another number of heads",
            )

    @property
    def ranges(self) -> TokenRanges:
        """The ranges of ids, for a ``StepTokenizer``."""
        return TokenRanges(text=self.text, bins=self.bins, discrete=self.discrete)

    @property
    def vocabulary(self) -> int:
        """The number of ids."""
        return self.ranges.vocabulary
