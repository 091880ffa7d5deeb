"""The hyperparameters of a Swin, and their names in the files of ``transformers``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from regard.arguments import explain_arguments
from regard.errors import (
    LARGEST_SIZE,
    OptionError,
    check_choice,
    check_count,
    check_dropout,
    check_flag,
    check_kind,
    check_number,
    check_size,
    check_weights,
)
from regard.models.activation_names import ACTIVATIONS, activation_to_hugging_face
from regard.models.config_file import MAX_LAYERS, ConfigFile
from regard.models.label_names import check_labels, label_fields

_MAX_STAGES = 16


@final
@explain_arguments
@dataclass(frozen=True)
class SwinConfig:
    """The hyperparameters of a Swin. Defaults are Swin-T for pictures of 224 x 224 pixels.

    Args:
        picture_size: height and width of the pictures of the training, in pixels.
        patch_size: height and width of a patch, in pixels.
        channels: channels of a picture.
        width: components of a token in the first stage; each stage doubles them.
        depths: layers in each stage.
        heads: heads in each stage; they divide its width.
        window: rows and columns of a window, in tokens.
        inner_ratio: size of the inner feed-forward layer, in widths.
        activation: activation of the feed-forward layers.
        attention_bias: whether the projections of queries, keys and values have a bias.
        absolute_positions: whether a trained vector is added to each patch, beside the relative positions.
        epsilon: epsilon of the norms of the layers; those of patches have 1e-5.
        dropout: dropout of the embedding and of each sublayer.
        attention_dropout: dropout of attention weights.
        stochastic_depth: probability of skipping a sublayer of the last layer in training; that of the others rises
            with the number of the layer, from 0.
        deviation: standard deviation of the initial weights.
        labels: names of the labels, in the order of the logits; () is a model without a head.

    Raises OptionError for values out of range.
    """

    picture_size: tuple[int, int] = (224, 224)
    patch_size: tuple[int, int] = (4, 4)
    channels: int = 3
    width: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    heads: tuple[int, ...] = (3, 6, 12, 24)
    window: int = 7
    inner_ratio: float = 4.0
    activation: str = "gelu"
    attention_bias: bool = True
    absolute_positions: bool = False
    epsilon: float = 1e-5
    dropout: float = 0.0
    attention_dropout: float = 0.0
    stochastic_depth: float = 0.1
    deviation: float = 0.02
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("channels", "width", "window"):
            check_size(name, getattr(self, name))
        for name in ("picture_size", "patch_size"):
            _check_sizes(name, getattr(self, name), count=2)
        _check_sizes("depths", self.depths)
        _check_sizes("heads", self.heads, count=len(self.depths))
        check_count("number of stages", len(self.depths), most=_MAX_STAGES)
        check_count("layers", self.layers, most=MAX_LAYERS)
        check_number("inner_ratio", self.inner_ratio, above=0.0, most=LARGEST_SIZE)
        check_size("inner", self.inner_of(self.width))
        check_weights(width=self.last_width, inner=self.inner_of(self.last_width))
        for name in ("attention_bias", "absolute_positions"):
            check_flag(name, getattr(self, name))
        for name in ("dropout", "attention_dropout", "stochastic_depth"):
            check_dropout(getattr(self, name))
        check_number("epsilon", self.epsilon, least=0.0)
        check_number("deviation", self.deviation, least=0.0)
        check_choice("activation of a Swin", self.activation, set(ACTIVATIONS.values()))
        check_labels(self.labels)
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
        return config.build(
            cls,
            picture_size=config.size_pair("image_size", default=224),
            patch_size=config.size_pair("patch_size", default=4),
            channels=config.size("num_channels", default=3),
            width=config.size("embed_dim", default=96),
            depths=config.sizes("depths", default=(2, 2, 6, 2)),
            heads=config.sizes("num_heads", default=(3, 6, 12, 24)),
            window=config.size("window_size", default=7),
            inner_ratio=config.number("mlp_ratio", default=4.0),
            activation=ACTIVATIONS[config.choice("hidden_act", ACTIVATIONS, default="gelu")],
            attention_bias=config.flag("qkv_bias", default=True),
            absolute_positions=config.flag("use_absolute_embeddings", default=False),
            epsilon=config.number("layer_norm_eps", default=1e-5),
            dropout=config.number("hidden_dropout_prob", default=0.0, below=1.0),
            attention_dropout=config.number("attention_probs_dropout_prob", default=0.0, below=1.0),
            stochastic_depth=config.number("drop_path_rate", default=0.1, below=1.0),
            deviation=config.number("initializer_range", default=0.02),
        )

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        return {
            "architectures": ["SwinForImageClassification" if self.labels else "SwinModel"],
            "model_type": "swin",
            "image_size": _one_or_two(self.picture_size),
            "patch_size": _one_or_two(self.patch_size),
            "num_channels": self.channels,
            "embed_dim": self.width,
            "depths": list(self.depths),
            "num_heads": list(self.heads),
            "window_size": self.window,
            "mlp_ratio": self.inner_ratio,
            "hidden_act": activation_to_hugging_face(self.activation),
            "qkv_bias": self.attention_bias,
            "use_absolute_embeddings": self.absolute_positions,
            "layer_norm_eps": self.epsilon,
            "hidden_dropout_prob": self.dropout,
            "attention_probs_dropout_prob": self.attention_dropout,
            "drop_path_rate": self.stochastic_depth,
            "initializer_range": self.deviation,
            **label_fields(self.labels),
        }


def _one_or_two(sizes: tuple[int, int]) -> int | list[int]:
    """One integer for a square, which is what most readers of config.json expect."""
    return sizes[0] if sizes[0] == sizes[1] else list(sizes)


def _check_sizes(name: str, sizes: object, *, count: int | None = None) -> None:
    """Raise OptionError unless ``sizes`` is a tuple of sizes, ``count`` of them if that is given."""
    check_kind(name, sizes, tuple, do=f"for example {name}=(2, 2)")
    assert isinstance(sizes, tuple)
    for size in sizes:
        check_size(f"number in {name}", size)
    if not sizes or (count is not None and len(sizes) != count):
        raise OptionError(
            f"wrong number of sizes in {name}",
            expected="1 or more" if count is None else f"{count}",
            got=f"{len(sizes)}",
            do="pass height and width" if name.endswith("_size") else "depths and heads have a number for each stage",
        )
