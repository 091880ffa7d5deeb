"""The vision tower of a CLIP: a ViT with a norm before its blocks, whose class token stands for the picture.

    h_0 = norm_0([class; patches(pixels)] + positions)
    h_l = block_l(h_l-1)                                          ``clip_tower``
    hidden = h_L
    pooled = norm(h_L[class]), or with a projection W norm(h_L[class])
    logits = W_h pooled + b_h                                     with a head

Radford et al. 2021, section 2.4. pixels (batch, channels, height, width) -> hidden (batch, 1 + patches, width), pooled
(batch, projection). Unlike in a ViT the patches have no bias, and only the class token is normed after the last block.
Positions are learned for pictures of one size, and interpolated for any other (``positions.LearnedGrid``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_flag
from regard.layers import PatchEmbedding
from regard.layers.patch_embedding import check_patches, check_side_pair
from regard.masks import Mask
from regard.models.clip_tower import LAYER_ROWS, ClipTowerConfig, make_layers, make_projection
from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import model_field, read_published, size_field, write_published
from regard.models.image_encoder import ImageEncoder, ImageOutput
from regard.models.label_names import label_fields, labels_field
from regard.models.media_encoder import TokenGrid
from regard.models.run_encoder import run_encoder
from regard.models.weight_names import Origin, Row, WeightNames
from regard.positions.learned_grid import interpolate_grid
from regard.validation import check_mask

VISION_ROWS = (
    Row("embeddings.class_embedding", "class_token", tensors=True),
    Row("embeddings.position_embedding.weight", "positions", tensors=True),
    Row("embeddings.patch_embedding", "patches"),
    Row("pre_layrnorm", "first_norm"),
    *LAYER_ROWS,
    Row("post_layernorm", "norm"),
)
"""Weight names in Hugging Face files, spelled as there, and in this model, but for the projection and the head."""
MODEL_TYPE, OWN_MODEL_TYPE = "clip_vision_model", "regard-clip_vision_model"
"""The ``model_type`` of a tower, and of one with a head, which ``transformers`` cannot compute."""
_PROJECTION, _HEAD = "visual_projection", "classifier"


@final
@explain_arguments
@dataclass(frozen=True)
class ClipVisionConfig(ClipTowerConfig):
    """The hyperparameters of a vision tower, beside those in ``ClipTowerConfig``.

    Defaults are CLIP base with patches of 32 x 32.
    """

    width: int = 768
    heads: int = 12
    inner: int = 3072
    picture_size: tuple[int, int] = model_field(
        (224, 224),
        "(height, width) in pixels of the pictures that positions are learned for, a square",
        "image_size",
        check=lambda name, pair: _check_square(name, pair),
    )
    patch_size: tuple[int, int] = model_field(
        (32, 32),
        "(height, width) in pixels of a patch, a square; a picture has a whole number of them",
        "patch_size",
        check=lambda name, pair: _check_square(name, pair),
    )
    channels: int = size_field(3, "number of channels of a picture", "num_channels")
    labels: tuple[str, ...] = labels_field("a tower without a head")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_patches(self.picture_size, self.patch_size)

    @property
    def grid(self) -> tuple[int, int]:
        """The rows and columns of patches that positions are learned for."""
        return self.picture_size[0] // self.patch_size[0], self.picture_size[1] // self.patch_size[1]

    @classmethod
    def from_hugging_face(cls, config: ConfigFile) -> ClipVisionConfig:
        """Read the config, without labels, from a Hugging Face config.json, or its section. Raises CheckpointError."""
        return read_published(cls, config)

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json, for ``transformers`` if there are no labels."""
        written = {name: value for name, value in write_published(self).items() if value is not None}
        if self.labels:
            return {"model_type": OWN_MODEL_TYPE, **written, **label_fields(self.labels)}
        name = "CLIPVisionModel" + ("" if self.projection is None else "WithProjection")
        return {"architectures": [name], "model_type": MODEL_TYPE, **written}


def _check_square(name: str, pair: tuple[int, int]) -> None:
    check_side_pair(name, pair)
    if pair[0] != pair[1]:
        raise OptionError(
            f"{name} of a CLIP is not a square",
            expected="equal sides; pictures of other sizes are read by interpolated positions",
            got=f"{name}={pair}",
            do=f"for example {name}=({pair[0]}, {pair[0]})",
        )


@final
@explain_arguments
class ClipVision(ImageEncoder):
    """A vision tower with random initial weights: ``model.vision`` of a ``Clip``, or a model of its own."""

    config: ClipVisionConfig
    config_class = ClipVisionConfig
    model_types = (MODEL_TYPE, OWN_MODEL_TYPE)

    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__(config)
        rows, columns = config.grid
        self.class_token = nn.Parameter(torch.empty(config.width))
        self.patches = PatchEmbedding(config.channels, config.width, config.patch_size, bias=False)
        self.positions = nn.Parameter(torch.empty(1 + rows * columns, config.width))
        for weight in (self.class_token, self.positions):
            nn.init.normal_(weight, std=config.width**-0.5)
        self.first_norm = nn.LayerNorm(config.width, eps=config.epsilon)
        self.layers = make_layers(config)
        self.norm = nn.LayerNorm(config.width, eps=config.epsilon)
        self.projection = make_projection(config)
        self.head = nn.Linear(self.vector_width, len(config.labels)) if config.labels else None

    def forward(self, pixels: Tensor, *, mask: Mask | None = None, keep_layers: bool = False) -> ImageOutput:
        """Compute the hidden states of pictures, their embeddings in ``.pooled``, and the logits if there is a head.

        Args:
            pixels: (batch, channels, height, width), normalised; height and width are multiples of a patch's sides.
            mask: which tokens may attend to which, from ``regard.masks``, over the class token and then the patches,
                row by row.
            keep_layers: return the output of the first norm and of each layer too, in ``.layers``.

        ``.pooled`` is not normalised: ``embed`` does that. Positions are interpolated for a picture of another size
        than ``picture_size``. Raises ShapeError or DtypeError for pixels that do not fit.
        """
        check_flag("keep_layers", keep_layers)
        check_mask(mask)
        tokens, layers = run_encoder(self._embed_patches(pixels), self.layers, mask, keep=keep_layers)
        pooled = self.norm(tokens[:, 0])
        if self.projection is not None:
            pooled = self.projection(pooled)
        logits = None if self.head is None else self.head(pooled)
        return ImageOutput(tokens, pooled, logits, layers)

    def vectors_of(self, output: ImageOutput) -> Float[Tensor, "batch vector"]:
        """A vector of length 1 for each picture: the direction of ``.pooled``."""
        return functional.normalize(output.pooled, dim=-1)

    @property
    def vector_width(self) -> int:
        """The number of components of a vector of ``embed``."""
        return self.config.width if self.config.projection is None else self.config.projection

    def token_grids(self, height: int, width: int) -> tuple[TokenGrid, ...]:
        """How tokens lie over a picture of this size, the same in each layer.

        Raises ShapeError for a side that is no multiple of the side of a patch.
        """
        return (TokenGrid(*self.patches.grid(height, width), ("class",)),) * self.config.layers

    def token_cells(self, height: int, width: int) -> tuple[tuple[float, float], ...]:
        """The (height, width) of a patch, for each layer."""
        del height, width
        return (self.config.patch_size,) * self.config.layers

    @classmethod
    def make_weight_names(cls, config: ClipVisionConfig) -> WeightNames:
        """Make the table of the names of weights in a file."""
        projection = () if config.projection is None else (_PROJECTION,)
        head = (_HEAD,) if config.labels else ()
        return WeightNames(
            (*VISION_ROWS, Row(_PROJECTION, "projection"), Row(_HEAD, "head")),
            prefix="vision_model.",
            outer=projection + head,
            ignored_patterns=(r"embeddings\.position_ids",),
        )

    @classmethod
    def _stored_parts(cls, config: ConfigFile, origins: Mapping[str, Origin]) -> dict[str, Any]:
        parts = super()._stored_parts(config, origins)
        return parts if "projection.weight" in origins else parts | {"projection": None}

    def _embed_patches(self, pixels: Tensor) -> Float[Tensor, "batch tokens width"]:
        patches = self.patches(pixels)
        height, width = (side // patch for side, patch in zip(pixels.shape[2:], self.config.patch_size, strict=True))
        positions = interpolate_grid(self.positions, self.config.grid, (height, width), prefix=1)
        first = self.class_token.expand(patches.shape[0], 1, -1)
        embedded: Tensor = self.first_norm(torch.cat([first, patches], dim=1) + positions)
        return embedded
