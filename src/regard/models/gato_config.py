"""The hyperparameters of a Gato, and its config.json. Reed et al. 2022, "A generalist agent", appendix C, table 5."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, final

from regard.arguments import explain_arguments
from regard.control.spaces import PATCH
from regard.control.token_ranges import TokenRanges
from regard.errors import OptionError, check_count, check_dropout, check_number, check_size, check_weights
from regard.models.config_file import MAX_LAYERS, ConfigFile

MODEL_TYPE = "regard-gato"


@final
@explain_arguments
@dataclass(frozen=True)
class GatoConfig:
    """The hyperparameters of a Gato. Defaults are the published model with 79 million weights.

    Args:
        text: number of pieces of text.
        bins: number of bins of a continuous value.
        discrete: number of discrete values.
        width: size of hidden states.
        layers: number of layers.
        heads: number of heads, a divisor of ``width``.
        inner: hidden size of the feed-forward layers.
        max_length: number of tokens that a token attends to, itself included; training sequences are as long.
        max_observation: number of local positions, the tokens of the longest observation.
        places: number of intervals of rows, and of columns, by which patches are placed.
        channels: channels of pictures.
        patch_channels: channels inside the residual block of patches.
        groups: groups of channels that are normalised together, a divisor of ``patch_channels``.
        dropout: probability of dropping a component of a sublayer's output in training.
        epsilon: that of the norms.
        deviation: standard deviation of the initial weights.

    Raises OptionError for values out of range.
    """

    text: int = 32_000
    bins: int = 1024
    discrete: int = 1024
    width: int = 768
    layers: int = 8
    heads: int = 24
    inner: int = 3072
    max_length: int = 1024
    max_observation: int = 512
    places: int = 128
    channels: int = 3
    patch_channels: int = 64
    groups: int = 32
    dropout: float = 0.1
    epsilon: float = 1e-5
    deviation: float = 0.02

    def __post_init__(self) -> None:
        ranges = self.ranges
        names = ("width", "heads", "inner", "max_length", "max_observation", "places", "channels", "patch_channels")
        for name in (*names, "groups"):
            check_size(name, getattr(self, name))
        check_count("layers", self.layers, most=MAX_LAYERS)
        check_weights(vocabulary=ranges.vocabulary, width=self.width)
        check_weights(patch=PATCH * PATCH * self.patch_channels, width=self.width)
        check_dropout(self.dropout)
        check_number("epsilon", self.epsilon, least=0.0)
        check_number("deviation", self.deviation, least=0.0)
        for name, part in {"width": "heads", "patch_channels": "groups"}.items():
            if getattr(self, name) % getattr(self, part):
                raise OptionError(
                    f"{name} is not divisible by {part}",
                    expected=f"a multiple of {part}",
                    got=f"{name}={getattr(self, name)}, {part}={getattr(self, part)}",
                    do=f"choose another number of {part}",
                )
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

    @classmethod
    def from_config_file(cls, config: ConfigFile) -> GatoConfig:
        """Read the hyperparameters from config.json. Raises CheckpointError for unusable fields."""
        return config.parse_dataclass(cls)

    def fields(self) -> dict[str, Any]:
        """The fields of config.json."""
        return {"model_type": MODEL_TYPE, **asdict(self)}
