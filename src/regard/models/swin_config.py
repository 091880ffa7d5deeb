"""The hyperparameters of a Swin, and their names in the files of ``transformers``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from regard.arguments import explain_arguments
from regard.errors import (
    LARGEST_SIZE,
    OptionError,
    check_count,
    check_size,
    check_weights,
)
from regard.fields import check_fields
from regard.layers.patch_embedding import check_side_pair
from regard.models.config_file import MAX_LAYERS, ConfigFile
from regard.models.hyperparameters import (
    ACTIVATIONS,
    model_field,
    probability_field,
    read_published,
    size_field,
    write_published,
)
from regard.models.label_names import label_fields, labels_field

_MAX_STAGES = 16


@final
@explain_arguments
@dataclass(frozen=True)
class SwinConfig:
    """The hyperparameters of a Swin. Defaults are Swin-T for pictures of 224 x 224 pixels.

    Raises OptionError for values out of range.
    """

    picture_size: tuple[int, int] = model_field(
        (224, 224), "height and width of the pictures of the training, in pixels", "image_size", check=check_side_pair
    )
    patch_size: tuple[int, int] = model_field(
        (4, 4), "height and width of a patch, in pixels", "patch_size", check=check_side_pair
    )
    channels: int = size_field(3, "channels of a picture", "num_channels")
    width: int = size_field(96, "components of a token in the first stage; each stage doubles them", "embed_dim")
    depths: tuple[int, ...] = size_field((2, 2, 6, 2), "layers in each stage", "depths")
    heads: tuple[int, ...] = size_field((3, 6, 12, 24), "heads in each stage; they divide its width", "num_heads")
    window: int = size_field(7, "rows and columns of a window, in tokens", "window_size")
    inner_ratio: float = model_field(
        4.0, "size of the inner feed-forward layer, in widths", "mlp_ratio", above=0.0, most=LARGEST_SIZE
    )
    activation: str = model_field(
        "gelu", "activation of the feed-forward layers", "hidden_act", stored_names=ACTIVATIONS
    )
    attention_bias: bool = model_field(
        True, "whether the projections of queries, keys and values have a bias", "qkv_bias"
    )
    absolute_positions: bool = model_field(
        False,
        "whether a trained vector is added to each patch, beside the relative positions",
        "use_absolute_embeddings",
    )
    epsilon: float = model_field(
        1e-5, "epsilon of the norms of the layers; those of patches have 1e-5", "layer_norm_eps", least=0.0
    )
    dropout: float = probability_field(0.0, "dropout of the embedding and of each sublayer", "hidden_dropout_prob")
    attention_dropout: float = probability_field(0.0, "dropout of attention weights", "attention_probs_dropout_prob")
    stochastic_depth: float = probability_field(
        0.1,
        "probability of skipping a sublayer of the last layer in training; for the others it rises with the number of "
        "the layer, from 0",
        "drop_path_rate",
    )
    deviation: float = model_field(0.02, "standard deviation of initial weights", "initializer_range", least=0.0)
    labels: tuple[str, ...] = labels_field()

    model_name = "Swin"

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.depths or len(self.heads) != len(self.depths):
            raise OptionError(
                f"wrong number of sizes in {'heads' if self.depths else 'depths'}",
                expected=str(len(self.depths) or "1 or more"),
                got=str(len(self.heads) if self.depths else 0),
                do="depths and heads have a number for each stage",
            )
        check_count("number of stages", len(self.depths), most=_MAX_STAGES)
        check_count("layers", self.layers, most=MAX_LAYERS)
        check_size("inner", self.inner_of(self.width))
        check_weights(width=self.last_width, inner=self.inner_of(self.last_width))
        for number, heads in enumerate(self.heads):
            if self.width * 2**number % heads:
                raise OptionError(
                    f"the width of stage {number} is not divisible by its heads",
                    expected="a multiple of heads",
                    got=f"width={self.width * 2**number}, heads={heads}",
                    do="the heads of a Swin are of equal size; choose another number of heads",
                )

    @property
    def layers(self) -> int:
        """The number of layers, over all stages."""
        return sum(self.depths)

    @property
    def last_width(self) -> int:
        """The width of the last stage."""
        return self.width * 2 ** (len(self.depths) - 1)

    def inner_of(self, width: int) -> int:
        """The size of the inner feed-forward layer of tokens of ``width``."""
        return int(float(self.inner_ratio) * width)

    def skip_probabilities(self, stage: int) -> list[float]:
        """The probability of skipping a sublayer, for each layer of a stage: linear in the number of the layer."""
        first = sum(self.depths[:stage])
        last = max(self.layers - 1, 1)
        return [float(self.stochastic_depth) * (first + number) / last for number in range(self.depths[stage])]

    @classmethod
    def from_hugging_face(cls, config: ConfigFile) -> SwinConfig:
        """Read the config from a Hugging Face config.json. Raises CheckpointError for missing or unusable fields."""
        return read_published(cls, config)

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        name = "SwinForImageClassification" if self.labels else "SwinModel"
        return {"architectures": [name], "model_type": "swin", **write_published(self), **label_fields(self.labels)}
