"""DeiT: a ViT with a distillation token, whose head learns from another model.

    hidden = encoder(pixels)                     ``vision_transformer``: class token, distillation token, patches
    class_logits = W_c hidden[0] + b_c           learn the label
    distillation_logits = W_d hidden[1] + b_d    learn the answer of the other model (the teacher)
    logits = (class_logits + distillation_logits) / 2

Touvron et al. 2021, "Training data-efficient image transformers & distillation through attention", section 4 and table
1. Without the second head, as in some files, the logits are computed from the class token. pixels (batch, channels,
height, width) -> hidden (batch, 2 + patches, width), logits (batch, labels).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

import torch
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import OptionError
from regard.masks import Mask
from regard.models.hyperparameters import model_field
from regard.models.image_encoder import ImageOutput
from regard.models.vision_transformer import HEADS, OWN_TYPE, ROWS, VisionTransformer, VisionTransformerConfig
from regard.models.weight_names import Row, WeightNames

_TOKEN_ROW = Row("embeddings.distillation_token", "distillation_token", tensors=True)
_HEAD_ROW = Row("classifier", "head")
_HEAD_ROWS = (Row("cls_classifier", "head"), Row("distillation_classifier", "distillation_head"))
"""Weight names in Hugging Face files with one head and with two, and in this model."""


@final
@explain_arguments
@dataclass(frozen=True)
class DeitConfig(VisionTransformerConfig):
    """The hyperparameters of a DeiT: ``VisionTransformerConfig`` with ``distillation_head``.

    Raises OptionError for a distillation head without labels. Defaults are DeiT base with patches of 16 x 16.
    """

    distillation_head: bool = model_field(
        False, "whether the distillation token has a head of its own, for the same labels"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distillation_head and not self.labels:
            raise OptionError(
                "a distillation head needs labels",
                expected="labels=(..), or distillation_head=False",
                got="labels=(), and distillation_head=True",
                do='for example labels=("cat", "dog")',
            )

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json, for ``transformers`` if it can compute the model."""
        classifier = "DeiTForImageClassification" + ("WithTeacher" if self.distillation_head else "")
        return self.write_fields("deit", classifier if self.labels else "DeiTModel")


@final
@explain_arguments
class Deit(VisionTransformer):
    """A DeiT with random initial weights; ``regard.load`` loads a trained one."""

    config: DeitConfig
    config_class = DeitConfig
    model_types = ("deit", OWN_TYPE + "deit")
    prefix = ("class", "distillation")
    optional_parts = MappingProxyType(
        {**VisionTransformer.optional_parts, "distillation_head": "distillation_head.weight"}
    )

    def __init__(self, config: DeitConfig) -> None:
        super().__init__(config)
        self.distillation_token = nn.Parameter(torch.empty(1, 1, config.width))
        self.distillation_head = nn.Linear(config.width, len(config.labels)) if config.distillation_head else None
        self._init_weights()

    def forward(self, pixels: Tensor, *, mask: Mask | None = None, keep_layers: bool = False) -> ImageOutput:
        """Compute the hidden states of pictures, and the logits if there is a head.

        Args:
            pixels: (batch, channels, height, width), normalised; height and width are multiples of a patch's sides.
            mask: which tokens may attend to which, from ``regard.masks``, over the class token, the distillation token
                and then the patches, row by row.
            keep_layers: return the embedding and the output of each layer too, in ``.layers``.

        With both heads ``logits`` is their mean, and ``class_logits`` and ``distillation_logits``, which training
        needs, are in the output as well. Positions are interpolated for a picture of another size than
        ``picture_size``. Raises ShapeError or DtypeError for pixels that do not fit, RefusedError for a mask that the
        mechanism cannot use.
        """
        hidden, layers = self._encode(pixels, mask, keep_layers=keep_layers)
        pooled = self._pool(hidden)
        class_logits = None if self.head is None else self.head(pooled)
        if class_logits is None or self.distillation_head is None:
            return ImageOutput(hidden, pooled, class_logits, layers)
        distillation_logits = self.distillation_head(hidden[:, 1])
        logits = (class_logits + distillation_logits) / 2
        return ImageOutput(hidden, pooled, logits, layers, class_logits, distillation_logits)

    @classmethod
    def make_weight_names(cls, config: DeitConfig) -> WeightNames:
        """Make the table of the names of weights in a file, where the name of the head says whether there are two."""
        rows = (*_HEAD_ROWS, _HEAD_ROW) if config.distillation_head else (_HEAD_ROW, *_HEAD_ROWS)
        return WeightNames(
            (*ROWS, _TOKEN_ROW, *rows),
            prefix="deit.",
            outer=tuple(str(row.stored) for row in rows) if config.labels else (),
            heads=HEADS,
        )

    def _prefix_tokens(self) -> list[Tensor]:
        return [self.class_token, self.distillation_token]


@explain_arguments
def deit_tiny(labels: tuple[str, ...] = ()) -> Deit:
    """DeiT tiny, untrained, with two heads for ``labels``: 12 layers of width 192. Touvron et al. 2021, table 1."""
    return Deit(DeitConfig(width=192, heads=3, inner=768, labels=labels, distillation_head=bool(labels)))


@explain_arguments
def deit_small(labels: tuple[str, ...] = ()) -> Deit:
    """DeiT small, untrained, with two heads for ``labels``: 12 layers of width 384. Touvron et al. 2021, table 1."""
    return Deit(DeitConfig(width=384, heads=6, inner=1536, labels=labels, distillation_head=bool(labels)))


@explain_arguments
def deit_base(labels: tuple[str, ...] = ()) -> Deit:
    """DeiT base, untrained, with two heads for ``labels``: 12 layers of width 768. Touvron et al. 2021, table 1."""
    return Deit(DeitConfig(labels=labels, distillation_head=bool(labels)))
