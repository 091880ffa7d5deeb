"""The hyperparameters of a CvT, and their names in the files of ``transformers``."""

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
    short_repr,
)
from regard.fields import check_fields
from regard.layers.patch_embedding import check_side_pair
from regard.models.config_file import MAX_LAYERS, ConfigFile
from regard.models.hyperparameters import model_field, probability_field, read_published, size_field, write_published
from regard.models.label_names import label_fields, labels_field

_MAX_STAGES = 16


@final
@explain_arguments
@dataclass(frozen=True)
class CvtConfig:
    """The hyperparameters of a CvT: tuples have a member for each stage. Defaults are CvT-13.

    Raises OptionError for values out of range.
    """

    picture_size: tuple[int, int] = model_field(
        (224, 224),
        "(height, width) in pixels of the pictures of the training; other sizes are read too",
        "image_size",
        check=check_side_pair,
    )
    channels: int = size_field(3, "channels of a picture", "num_channels")
    widths: tuple[int, ...] = size_field((64, 192, 384), "components of a token", "embed_dim")
    depths: tuple[int, ...] = size_field((1, 2, 10), "number of layers", "depth")
    heads: tuple[int, ...] = size_field((1, 3, 6), "number of heads; they divide the width", "num_heads")
    embedding_kernels: tuple[int, ...] = size_field(
        (7, 3, 3), "height and width of the convolution that makes the tokens", "patch_sizes"
    )
    embedding_strides: tuple[int, ...] = size_field((4, 2, 2), "its step", "patch_stride")
    embedding_paddings: tuple[int, ...] = model_field((2, 1, 1), "the zeros on each side of its input", "patch_padding")
    projection_kernels: tuple[int, ...] = size_field(
        (3, 3, 3), "height and width of the convolutions of queries, keys and values; odd", "kernel_qkv"
    )
    key_value_strides: tuple[int, ...] = size_field(
        (2, 2, 2), "step of the convolutions of keys and values", "stride_kv"
    )
    key_value_paddings: tuple[int, ...] = model_field((1, 1, 1), "the zeros on each side of their input", "padding_kv")
    inner_ratios: tuple[float, ...] = model_field(
        (4.0, 4.0, 4.0),
        "size of the inner feed-forward layer, in widths",
        "mlp_ratio",
        above=0.0,
        most=LARGEST_SIZE,
        write=lambda ratios: list(map(float, ratios)),
    )
    projection_biases: tuple[bool, ...] = model_field(
        (True, True, True), "whether the projections of queries, keys and values have a bias", "qkv_bias"
    )
    dropouts: tuple[float, ...] = probability_field(
        (0.0, 0.0, 0.0), "dropout of the tokens of a stage and of the output of each sublayer", "drop_rate"
    )
    attention_dropouts: tuple[float, ...] = probability_field(
        (0.0, 0.0, 0.0), "dropout of attention weights", "attention_drop_rate"
    )
    stochastic_depths: tuple[float, ...] = probability_field(
        (0.0, 0.0, 0.1),
        "probability of skipping a sublayer of the last layer of a stage in training; for the others it rises with the "
        "number of the layer in the stage, from 0",
        "drop_path_rate",
    )
    class_token: bool = model_field(True, "whether the last stage has a class token")
    deviation: float = model_field(0.02, "standard deviation of initial weights", "initializer_range", least=0.0)
    labels: tuple[str, ...] = labels_field("a model without a head and the norm before it")

    def __post_init__(self) -> None:
        check_fields(self)
        for name, values in vars(self).items():
            if isinstance(values, tuple) and name not in ("picture_size", "labels"):
                self._check_length(name, values)
        check_count("number of stages", len(self.depths), most=_MAX_STAGES)
        check_count("layers", self.layers, most=MAX_LAYERS)
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

    def _check_length(self, name: str, values: tuple[Any, ...]) -> None:
        if not values or len(values) != len(self.depths):
            raise OptionError(
                f"wrong number of members in {name}",
                expected=f"{len(self.depths)}, one for each stage, as depths={self.depths} says",
                got=short_repr(values),
                do="pass as many as depths has",
            )

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
        has_class_token = config.listed("cls_token", default=(False, False, True))[-1:] == (True,)
        config.require("cls_token", [False] * (stages - 1) + [has_class_token], default=[False, False, True])
        return read_published(cls, config, class_token=has_class_token)

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``; of ``image_size`` it makes no use."""
        stages = len(self.depths)
        return {
            "architectures": ["CvtForImageClassification" if self.labels else "CvtModel"],
            "model_type": "cvt",
            **write_published(self),
            "cls_token": [False] * (stages - 1) + [self.class_token],
            "qkv_projection_method": ["dw_bn"] * stages,
            "padding_q": [kernel // 2 for kernel in self.projection_kernels],
            "stride_q": [1] * stages,
            **label_fields(self.labels),
        }
