"""The hyperparameters of a CvT, and their names in the files of ``transformers``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from regard.arguments import explain_arguments
from regard.errors import (
    LARGEST_SIZE,
    CheckpointError,
    OptionError,
    check_count,
    check_dropout,
    check_flag,
    check_kind,
    check_number,
    check_size,
    check_weights,
    short_repr,
)
from regard.layers.patch_embedding import check_side_pair
from regard.models.config_file import MAX_LAYERS, ConfigFile
from regard.models.label_names import check_labels, label_fields

_MAX_STAGES = 16
_SIZES = {
    "widths": ("embed_dim", (64, 192, 384)),
    "depths": ("depth", (1, 2, 10)),
    "heads": ("num_heads", (1, 3, 6)),
    "embedding_kernels": ("patch_sizes", (7, 3, 3)),
    "embedding_strides": ("patch_stride", (4, 2, 2)),
    "projection_kernels": ("kernel_qkv", (3, 3, 3)),
    "key_value_strides": ("stride_kv", (2, 2, 2)),
}
"""Fields with sizes of 1 or more for each stage: their names in config.json, and what they are without the field."""
_PADDINGS = {"embedding_paddings": ("patch_padding", (2, 1, 1)), "key_value_paddings": ("padding_kv", (1, 1, 1))}
"""The same for sizes of 0 or more."""
_PROBABILITIES = {
    "dropouts": ("drop_rate", (0.0, 0.0, 0.0)),
    "attention_dropouts": ("attention_drop_rate", (0.0, 0.0, 0.0)),
    "stochastic_depths": ("drop_path_rate", (0.0, 0.0, 0.1)),
}


@final
@explain_arguments
@dataclass(frozen=True)
class CvtConfig:
    """The hyperparameters of a CvT: tuples have a member for each stage. Defaults are CvT-13.

    Args:
        picture_size: (height, width) in pixels of the pictures of the training; other sizes are read too.
        channels: channels of a picture.
        widths: components of a token.
        depths: number of layers.
        heads: number of heads; they divide the width.
        embedding_kernels: height and width of the convolution that makes the tokens.
        embedding_strides: its step.
        embedding_paddings: the zeros on each side of its input.
        projection_kernels: height and width of the convolutions of queries, keys and values; odd.
        key_value_strides: step of the convolutions of keys and values.
        key_value_paddings: the zeros on each side of their input.
        inner_ratios: size of the inner feed-forward layer, in widths.
        projection_biases: whether the projections of queries, keys and values have a bias.
        dropouts: dropout of the tokens of a stage and of the output of each sublayer.
        attention_dropouts: dropout of attention weights.
        stochastic_depths: probability of skipping a sublayer of the last layer of a stage in training; that of the
            others rises with the number of the layer in the stage, from 0.
        class_token: whether the last stage has a class token.
        deviation: standard deviation of the initial weights.
        labels: names of the labels, in the order of the logits; () is a model without a head and the norm before it.

    Raises OptionError for values out of range.
    """

    picture_size: tuple[int, int] = (224, 224)
    channels: int = 3
    widths: tuple[int, ...] = (64, 192, 384)
    depths: tuple[int, ...] = (1, 2, 10)
    heads: tuple[int, ...] = (1, 3, 6)
    embedding_kernels: tuple[int, ...] = (7, 3, 3)
    embedding_strides: tuple[int, ...] = (4, 2, 2)
    embedding_paddings: tuple[int, ...] = (2, 1, 1)
    projection_kernels: tuple[int, ...] = (3, 3, 3)
    key_value_strides: tuple[int, ...] = (2, 2, 2)
    key_value_paddings: tuple[int, ...] = (1, 1, 1)
    inner_ratios: tuple[float, ...] = (4.0, 4.0, 4.0)
    projection_biases: tuple[bool, ...] = (True, True, True)
    dropouts: tuple[float, ...] = (0.0, 0.0, 0.0)
    attention_dropouts: tuple[float, ...] = (0.0, 0.0, 0.0)
    stochastic_depths: tuple[float, ...] = (0.0, 0.0, 0.1)
    class_token: bool = True
    deviation: float = 0.02
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_side_pair("picture_size", self.picture_size)
        check_size("channels", self.channels)
        self._check_tuples()
        check_count("number of stages", len(self.depths), most=_MAX_STAGES)
        check_count("layers", self.layers, most=MAX_LAYERS)
        check_flag("class_token", self.class_token)
        check_number("deviation", self.deviation, least=0.0)
        check_labels(self.labels)
        for stage in range(len(self.depths)):
            self._check_stage(stage)

    @property
    def layers(self) -> int:
        """The number of layers, over all stages."""
        return sum(self.depths)

    def inner_of(self, stage: int) -> int:
        """The size of the inner feed-forward layer of a stage."""
        return int(self.widths[stage] * float(self.inner_ratios[stage]))

    def skip_probabilities(self, stage: int) -> list[float]:
        """The probability of skipping a sublayer, for each layer of a stage: linear in its number in the stage."""
        depth, most = self.depths[stage], float(self.stochastic_depths[stage])
        return [most * number / max(depth - 1, 1) for number in range(depth)]

    def _check_tuples(self) -> None:
        check_kind("depths", self.depths, tuple, do="pass a tuple with a member for each stage as depths")
        for name in (*_SIZES, *_PADDINGS, *_PROBABILITIES, "inner_ratios", "projection_biases"):
            values = getattr(self, name)
            check_kind(name, values, tuple, do=f"pass a tuple with a member for each stage as {name}")
            if not values or len(values) != len(self.depths):
                raise OptionError(
                    f"wrong number of members in {name}",
                    expected=f"{len(self.depths)}, one for each stage, as depths={self.depths} says",
                    got=short_repr(values),
                    do="pass as many as depths has",
                )
            for value in values:
                if name in _SIZES:
                    check_size(f"number in {name}", value)
                elif name in _PADDINGS:
                    check_count(f"number in {name}", value, least=0)
                elif name in _PROBABILITIES:
                    check_dropout(value)
                elif name == "inner_ratios":
                    check_number(f"number in {name}", value, above=0.0, most=LARGEST_SIZE)
                else:
                    check_flag(f"member of {name}", value)

    def _check_stage(self, stage: int) -> None:
        width, heads, kernel = self.widths[stage], self.heads[stage], self.projection_kernels[stage]
        check_size("inner", self.inner_of(stage))
        check_weights(width=width, inner=self.inner_of(stage))
        before = self.channels if stage == 0 else self.widths[stage - 1]
        side = self.embedding_kernels[stage]
        check_weights(width=width, before=before, height=side, columns=side)
        if width % heads:
            raise OptionError(
                f"the width of stage {stage} is not divisible by its heads",
                expected="a multiple of heads",
                got=f"width={width}, heads={heads}",
                do="choose another number of heads",
            )
        if kernel % 2 == 0:
            raise OptionError(
                f"the convolution of queries in stage {stage} would change the size of the map",
                expected="odd projection_kernels, which have a token in their middle",
                got=f"projection_kernels={self.projection_kernels}",
                do="use 1, 3, 5 ..",
            )
        for name, kernels in {"embedding": self.embedding_kernels, "key_value": self.projection_kernels}.items():
            padding = getattr(self, f"{name}_paddings")[stage]
            if padding > kernels[stage] // 2:
                raise OptionError(
                    f"the padding of a convolution in stage {stage} is more than half of its kernel",
                    expected=f"at most {kernels[stage] // 2} in {name}_paddings",
                    got=str(padding),
                    do="use half of the kernel, without the remainder",
                )

    @classmethod
    def from_hugging_face(cls, config: ConfigFile) -> CvtConfig:
        """Read the config from a Hugging Face config.json. Raises CheckpointError for missing or unusable fields."""
        kernels = config.sizes("kernel_qkv", default=(3, 3, 3))
        stages = len(kernels)
        config.require("qkv_projection_method", ["dw_bn"] * stages, default=["dw_bn"] * stages)
        config.require("stride_q", [1] * stages, default=[1] * stages)
        config.require("padding_q", [kernel // 2 for kernel in kernels], default=[1] * stages)
        has_class_token = _read_list(config, "cls_token", (False, False, True))[-1:] == (True,)
        config.require("cls_token", [False] * (stages - 1) + [has_class_token], default=[False, False, True])
        return config.build(
            cls,
            picture_size=config.size_pair("image_size", default=224),
            channels=config.size("num_channels", default=3),
            **{name: config.sizes(field, default=default) for name, (field, default) in _SIZES.items()},
            **{name: _read_list(config, field, default) for name, (field, default) in _PADDINGS.items()},
            **{name: _read_list(config, field, default) for name, (field, default) in _PROBABILITIES.items()},
            inner_ratios=_read_list(config, "mlp_ratio", (4.0, 4.0, 4.0)),
            projection_biases=_read_list(config, "qkv_bias", (True, True, True)),
            class_token=has_class_token,
            deviation=config.number("initializer_range", default=0.02),
        )

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``; of ``image_size`` it makes no use."""
        stages = len(self.depths)
        tables = _SIZES | _PADDINGS | _PROBABILITIES
        height, width = self.picture_size
        return {
            "architectures": ["CvtForImageClassification" if self.labels else "CvtModel"],
            "model_type": "cvt",
            "image_size": height if height == width else [height, width],
            "num_channels": self.channels,
            **{field: list(getattr(self, name)) for name, (field, _) in tables.items()},
            "mlp_ratio": [float(ratio) for ratio in self.inner_ratios],
            "qkv_bias": list(self.projection_biases),
            "cls_token": [False] * (stages - 1) + [self.class_token],
            "qkv_projection_method": ["dw_bn"] * stages,
            "padding_q": [kernel // 2 for kernel in self.projection_kernels],
            "stride_q": [1] * stages,
            "initializer_range": self.deviation,
            **label_fields(self.labels),
        }


def _read_list(config: ConfigFile, field: str, default: tuple[Any, ...]) -> tuple[Any, ...]:
    """Read a list whose members the config checks. Raises CheckpointError for anything else."""
    listed = config.fields.get(field, list(default))
    if not isinstance(listed, list):
        raise CheckpointError(
            f"{config.path} has an unusable {field!r}",
            expected="a list with a member for each stage",
            got=short_repr(listed),
            do="check that the file belongs to this model",
        )
    return tuple(listed)
