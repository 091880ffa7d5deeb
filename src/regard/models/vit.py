"""ViT: a Transformer on the patches of a picture, with a classification head or a pooler if there is one.

    hidden = encoder(pixels)                     ``vision_transformer``; the first token is the class token
    pooled = hidden[first], or tanh(W_p hidden[first] + b_p) with a pooler
    logits = W pooled + b

Dosovitskiy et al. 2021, "An image is worth 16x16 words: transformers for image recognition at scale", section 3.1 and
table 1; tiny and small: Touvron et al. 2021, table 1. pixels (batch, channels, height, width) -> hidden (batch, 1 +
patches, width), logits (batch, labels).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from regard.arguments import explain_arguments
from regard.masks import Mask
from regard.models.image_encoder import ImageOutput
from regard.models.vision_transformer import HEADS, OWN_TYPE, ROWS, VisionTransformer, VisionTransformerConfig
from regard.models.weight_names import Row, WeightNames


@final
@explain_arguments
@dataclass(frozen=True)
class VitConfig(VisionTransformerConfig):
    """The hyperparameters of a ViT: see ``VisionTransformerConfig``. Defaults are ViT base with patches of 16 x 16."""

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json, for ``transformers`` if it can compute the model."""
        return self.write_fields("vit", "ViTForImageClassification" if self.labels else "ViTModel")


@final
@explain_arguments
class Vit(VisionTransformer):
    """A ViT with random initial weights; ``regard.load`` loads a trained one."""

    config: VitConfig
    config_class = VitConfig
    model_types = ("vit", OWN_TYPE + "vit")
    prefix = ("class",)

    def __init__(self, config: VitConfig) -> None:
        super().__init__(config)
        self._init_weights()

    def forward(self, pixels: Tensor, *, mask: Mask | None = None, keep_layers: bool = False) -> ImageOutput:
        """Compute the hidden states of pictures, and the logits if there is a head.

        Args:
            pixels: (batch, channels, height, width), normalised; height and width are multiples of a patch's sides.
            mask: which tokens may attend to which, from ``regard.masks``, over the class token and then the patches,
                row by row.
            keep_layers: return the embedding and the output of each layer too, in ``.layers``.

        Positions are interpolated for a picture of another size than ``picture_size``. Raises ShapeError or DtypeError
        for pixels that do not fit, RefusedError for a mask that the mechanism cannot use.
        """
        hidden, layers = self._encode(pixels, mask, keep_layers=keep_layers)
        pooled = self._pool(hidden)
        return ImageOutput(hidden, pooled, None if self.head is None else self.head(pooled), layers)

    @classmethod
    def make_weight_names(cls, config: VitConfig) -> WeightNames:
        """Make the table of the names of weights in a file."""
        return WeightNames(
            (*ROWS, Row("classifier", "head")),
            prefix="vit.",
            outer=("classifier",) if config.labels else (),
            heads=HEADS,
        )

    def _prefix_tokens(self) -> list[Tensor]:
        return [self.class_token]


@explain_arguments
def vit_tiny(labels: tuple[str, ...] = ()) -> Vit:
    """ViT tiny, untrained: 12 layers of width 192, patches of 16 x 16. Touvron et al. 2021, table 1."""
    return Vit(VitConfig(width=192, heads=3, inner=768, labels=labels))


@explain_arguments
def vit_small(labels: tuple[str, ...] = ()) -> Vit:
    """ViT small, untrained: 12 layers of width 384, patches of 16 x 16. Touvron et al. 2021, table 1."""
    return Vit(VitConfig(width=384, heads=6, inner=1536, labels=labels))


@explain_arguments
def vit_base(labels: tuple[str, ...] = ()) -> Vit:
    """ViT base, untrained: 12 layers of width 768, patches of 16 x 16. Dosovitskiy et al. 2021, table 1."""
    return Vit(VitConfig(labels=labels))


@explain_arguments
def vit_large(labels: tuple[str, ...] = ()) -> Vit:
    """ViT large, untrained: 24 layers of width 1,024, patches of 16 x 16. Dosovitskiy et al. 2021, table 1."""
    return Vit(VitConfig(width=1024, layers=24, heads=16, inner=4096, labels=labels))
