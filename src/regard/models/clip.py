"""CLIP: a text tower and a vision tower that embed texts and pictures in one space.

    t = normalised text embedding, v = normalised picture embedding                 ``clip_text``, ``clip_vision``
    logits_per_image[i, j] = exp(logit_scale) v_i . t_j                             logits_per_text is its transpose
    loss = (CE(logits_per_image, i) + CE(logits_per_text, i)) / 2                   picture i belongs to text i

CE(z, i) = mean over i of -log softmax(z[i])[i]. Radford et al. 2021, "Learning transferable visual models from natural
language supervision", sections 2.3 to 2.5 and figure 3. ids (texts, length), pixels (pictures, channels, height, width)
-> embeddings (texts, projection) and (pictures, projection), logits (pictures, texts).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.arguments import explain_arguments
from regard.errors import CheckpointError, OptionError, ShapeError
from regard.fields import check_fields, repr_of_shapes
from regard.masks import Mask
from regard.models.checkpoint_reader import check_depth
from regard.models.clip_text import TEXT_ROWS, ClipText, ClipTextConfig, ClipTextOutput
from regard.models.clip_vision import VISION_ROWS, ClipVision, ClipVisionConfig
from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import model_field, read_published, write_published
from regard.models.image_encoder import ImageOutput
from regard.models.kinds import CLIP
from regard.models.model import Model
from regard.models.model_folder import ModelFolder
from regard.models.weight_names import Origin, Row, WeightNames
from regard.tensors import check_tensor
from regard.text import Tokenizer
from regard.vision import ImageProcessor

MODEL_TYPE = "clip"
_INITIAL_SCALE = 2.6592
"""log(1 / 0.07), as the published configs write it."""


@final
@explain_arguments
@dataclass(frozen=True)
class ClipConfig:
    """The hyperparameters of a CLIP. Defaults are CLIP base with patches of 32 x 32.

    Raises OptionError for towers that do not fit each other.
    """

    text: ClipTextConfig = model_field(ClipTextConfig(), "those of the text tower", example="pass a ClipTextConfig()")
    vision: ClipVisionConfig = model_field(
        ClipVisionConfig(),
        "those of the vision tower, with the same ``projection``, and without labels",
        example="pass a ClipVisionConfig()",
    )
    logit_scale: float = model_field(
        _INITIAL_SCALE, "the initial logarithm of the factor of logits", "logit_scale_init_value"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.text.projection is None or self.text.projection != self.vision.projection:
            raise OptionError(
                "the towers of a CLIP project to different sizes",
                expected="the same projection in both, and not None",
                got=f"text.projection={self.text.projection}, vision.projection={self.vision.projection}",
                do="choose one projection for both",
            )
        if self.vision.labels:
            raise OptionError(
                "the vision tower of a CLIP has no head",
                expected="vision.labels=()",
                got=f"{len(self.vision.labels)} labels",
                do="give labels to a ClipVision of its own, or classify by texts: ZeroShotClassifier",
            )

    @property
    def projection(self) -> int:
        """The size of embeddings."""
        assert self.text.projection is not None, "__post_init__ checks it"
        return self.text.projection

    @classmethod
    def from_hugging_face(cls, config: ConfigFile) -> ClipConfig:
        """Read the config from a Hugging Face config.json. Raises CheckpointError for unusable fields.

        Old files describe a tower twice, and the section whose name ends in ``_dict`` is the one that counts.
        """
        text, vision = (
            config.section(f"{name}_config_dict") or config.section(f"{name}_config") or ConfigFile({}, config.path)
            for name in ("text", "vision")
        )
        size = config.size("projection_dim", default=512)
        return read_published(
            cls,
            config,
            text=config.build_again(ClipTextConfig.from_hugging_face(text), projection=size),
            vision=config.build_again(ClipVisionConfig.from_hugging_face(vision), projection=size),
        )

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        sections = {"text_config": self.text.to_hugging_face(), "vision_config": self.vision.to_hugging_face()}
        for section in sections.values():
            del section["architectures"]
        return {
            "architectures": ["CLIPModel"],
            "model_type": MODEL_TYPE,
            "projection_dim": self.projection,
            **write_published(self),
            **sections,
        }


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class ClipOutput:
    """The output of a CLIP.

    text_embeddings   (texts, projection)      of length 1
    image_embeddings  (pictures, projection)   of length 1
    logits_per_image  (pictures, texts)        their products times the scale
    logits_per_text   (texts, pictures)        the transpose
    scale             ()                       exp(logit_scale)
    text, image                                the outputs of the towers
    """

    __repr__ = repr_of_shapes

    text_embeddings: Float[Tensor, "texts projection"]
    image_embeddings: Float[Tensor, "pictures projection"]
    logits_per_image: Float[Tensor, "pictures texts"]
    logits_per_text: Float[Tensor, "texts pictures"]
    scale: Float[Tensor, ""]
    text: ClipTextOutput
    image: ImageOutput


def _tower_rows(name: str, rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """The rows of a tower in the file and the model of both."""
    return tuple(replace(row, stored=f"{name}_model.{row.stored}", names=f"{name}.{row.names}") for row in rows)


_WEIGHT_NAMES = WeightNames(
    (
        Row("logit_scale", "logit_scale", scalar=True),
        *_tower_rows("text", TEXT_ROWS),
        *_tower_rows("vision", VISION_ROWS),
        Row("text_projection", "text.projection"),
        Row("visual_projection", "vision.projection"),
    ),
    ignored_patterns=(r"(text|vision)_model\.embeddings\.position_ids",),
)


@final
@explain_arguments
class Clip(Model):
    """A CLIP with random initial weights; ``regard.load`` loads a trained one.

    Its towers ``text`` and ``vision`` are models of their own: an ``Encoder`` and an ``ImageEncoder``. ``logit_scale``
    is (1,).
    """

    config: ClipConfig
    config_class = ClipConfig
    model_types = (MODEL_TYPE,)
    kind = CLIP

    def __init__(self, config: ClipConfig) -> None:
        super().__init__(config)
        self.text = ClipText(config.text)
        self.vision = ClipVision(config.vision)
        self.logit_scale = nn.Parameter(torch.tensor([float(config.logit_scale)]))

    def forward(
        self,
        ids: Tensor,
        pixels: Tensor,
        *,
        mask: Mask | None = None,
        positions: Tensor | None = None,
        keep_layers: bool = False,
    ) -> ClipOutput:
        """Compute the embeddings of texts and pictures, and the logits of each with each.

        Args:
            ids: token ids (texts, length), with an end token in each text.
            pixels: (pictures, channels, height, width), normalised; of any size in whole patches.
            mask: which tokens of texts may attend to which, beside the causal mask: for padded ids
                ``masks.padding(lengths)``.
            positions: positions of the tokens in their texts, (texts, length); None counts from the first column.
            keep_layers: return the hidden states of all layers of both towers too.

        Raises as ``ClipText.forward`` and ``ClipVision.forward``.
        """
        text = self.text(ids, mask=mask, positions=positions, keep_layers=keep_layers)
        image = self.vision(pixels, keep_layers=keep_layers)
        texts, pictures = functional.normalize(text.embedding, dim=-1), functional.normalize(image.pooled, dim=-1)
        logits = self.compute_logits(texts, pictures)
        return ClipOutput(texts, pictures, logits, logits.T, self.logit_scale.exp()[0], text, image)

    def compute_logits(
        self, texts: Float[Tensor, "texts projection"], pictures: Float[Tensor, "pictures projection"]
    ) -> Float[Tensor, "pictures texts"]:
        """Compute the logits of each picture with each text from embeddings of length 1."""
        return self.logit_scale.exp() * (pictures @ texts.T)

    @property
    def parts(self) -> tuple[Model, ...]:
        """The towers, which are models of their own."""
        return self.text, self.vision

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the text tower; None if the model folder has none."""
        return self.text.tokenizer

    @property
    def processor(self) -> ImageProcessor | None:
        """How the pixels of the vision tower are made from pictures; None if the model folder does not say."""
        return self.vision.processor

    @classmethod
    def make_weight_names(cls, config: ClipConfig) -> WeightNames:
        """Make the table of the names of weights in a file."""
        del config
        return _WEIGHT_NAMES

    @classmethod
    def check_layers(cls, folder: ModelFolder, config: ClipConfig, origins: Mapping[str, Origin]) -> None:
        """Raise CheckpointError for a folder of one tower, and for more layers than it has tensors."""
        check_depth(config.text.layers + config.vision.layers, folder.stored)
        if "logit_scale" not in origins:
            raise CheckpointError(
                f"{folder.path} does not hold both towers of a CLIP",
                expected="the weights of a CLIPModel, with logit_scale",
                got=", ".join(sorted(folder.stored)[:3]) + " .., without logit_scale",
                do='for one tower alone its config.json has model_type "clip_text_model" or "clip_vision_model"',
            )

    def read_files(self, folder: ModelFolder) -> None:
        """Read the tokenizer and the processor of the towers."""
        self.text.read_files(folder)
        self.vision.read_files(folder)

    def folder_texts(self) -> dict[str, str]:
        """The files of the tokenizer and the processor, as texts by file name."""
        return self.vision.folder_texts() | self.text.folder_texts()


@explain_arguments
def contrastive_loss(logits_per_image: Tensor) -> Float[Tensor, ""]:
    """Compute the loss of pictures and texts of which picture i belongs to text i, from logits (pictures, texts).

    It is the mean of the cross-entropy of each picture over all texts and of each text over all pictures (Radford et
    al. 2021, figure 3). Raises ShapeError unless there are as many pictures as texts, and at least one.
    """
    check_tensor(
        "logits_per_image", logits_per_image, "logits (pictures, texts)", do="model(ids, pixels).logits_per_image"
    )
    if (
        logits_per_image.dim() != 2
        or logits_per_image.shape[0] != logits_per_image.shape[1]
        or not len(logits_per_image)
    ):
        raise ShapeError(
            "pictures and texts are no pairs",
            expected="logits (pairs, pairs) of one or more pictures and their texts",
            got=str(tuple(logits_per_image.shape)),
            do="give each picture its own text, in the same order",
        )
    pairs = torch.arange(len(logits_per_image), device=logits_per_image.device)
    losses = [functional.cross_entropy(logits, pairs) for logits in (logits_per_image, logits_per_image.T)]
    return (losses[0] + losses[1]) / 2


@explain_arguments
def clip_vit_base_32() -> Clip:
    """CLIP ViT-B/32, untrained: pictures of 224 x 224 in patches of 32 x 32. Radford et al. 2021, table 20."""
    return Clip(ClipConfig())


@explain_arguments
def clip_vit_base_16() -> Clip:
    """CLIP ViT-B/16, untrained: pictures of 224 x 224 in patches of 16 x 16. Radford et al. 2021, table 20."""
    return Clip(ClipConfig(vision=ClipVisionConfig(patch_size=(16, 16))))


@explain_arguments
def clip_vit_large_14() -> Clip:
    """CLIP ViT-L/14, untrained: pictures of 224 x 224 in patches of 14 x 14. Radford et al. 2021, table 20."""
    return Clip(
        ClipConfig(
            ClipTextConfig(width=768, heads=12, inner=3072, projection=768),
            ClipVisionConfig(width=1024, layers=24, heads=16, inner=4096, patch_size=(14, 14), projection=768),
        )
    )
