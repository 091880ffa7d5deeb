"""The text tower of a CLIP: a causal Transformer whose output at the end token stands for the text.

    h_0 = embedding(ids) + positions
    h_l = block_l(h_l-1), token i attends to tokens 1 .. i        ``clip_tower``
    hidden = norm(h_L)
    pooled = hidden[e],   e the place of the end token
    embedding = W pooled

Radford et al. 2021, section 2.4. ids (batch, length) -> hidden (batch, length, width), embedding (batch, projection).
The end token is the first visible one with the id ``end_id``. Configs of the first published files name a wrong id, 2,
and their models take the largest id of a text instead, which the end token has in their vocabulary: ``end_id=None``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.arguments import explain_arguments
from regard.errors import OptionError, ShapeError, check_flag, check_weights
from regard.fields import repr_of_shapes
from regard.masks import Mask, causal
from regard.models.add_positions import add_positions
from regard.models.base import Encoder
from regard.models.check_token_ids import check_token_ids
from regard.models.clip_tower import LAYER_ROWS, ClipTowerConfig, make_layers, make_projection
from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import model_field, read_published, size_field, write_published
from regard.models.model_folder import ModelFolder
from regard.models.run_encoder import run_encoder
from regard.models.weight_names import Origin, Row, WeightNames
from regard.positions import Learned
from regard.tensors import has_values
from regard.text.pooling import OWN, Pooling
from regard.validation import check_mask

TEXT_ROWS = (
    Row("embeddings.token_embedding", "token_embedding"),
    Row("embeddings.position_embedding", "positions"),
    *LAYER_ROWS,
    Row("final_layer_norm", "norm"),
)
"""Weight names in Hugging Face files, and in this model, but for the projection."""
MODEL_TYPE = "clip_text_model"
_LARGEST_ID = 2
"""The ``eos_token_id`` of files whose end token is the one with the largest id."""
_PROJECTION = "text_projection"


@final
@explain_arguments
@dataclass(frozen=True)
class ClipTextConfig(ClipTowerConfig):
    """The hyperparameters of a text tower, beside those in ``ClipTowerConfig``. Defaults are CLIP base."""

    vocabulary: int = size_field(49408, "number of tokens", "vocab_size")
    max_length: int = size_field(77, "number of positions of tokens", "max_position_embeddings")
    end_id: int | None = model_field(
        49407,
        "the end token of a text; None is the one with the largest id. A model whose vocabulary lacks it computes no "
        "text",
        "eos_token_id",
        read=lambda config, name: _read_end_id(config, name),
        write=lambda end_id: _LARGEST_ID if end_id is None else end_id,
    )
    pad_id: int = model_field(
        1,
        "the padding token",
        "pad_token_id",
        below="vocabulary",
        read=lambda config, name: _read_known_id(config, name, default=1) or 0,
    )
    start_id: int | None = model_field(
        None,
        "the start token of a text, which only the tokenizer uses; None if the files do not name it",
        "bos_token_id",
        below="vocabulary",
        read=lambda config, name: _read_known_id(config, name),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weights(vocabulary=self.vocabulary, width=self.width)
        check_weights(max_length=self.max_length, width=self.width)
        if self.end_id == _LARGEST_ID:
            raise OptionError(
                "end_id=2 has another meaning in the files of CLIP",
                expected="another id, or None for the token with the largest id",
                got="2",
                do="for a model whose config.json has eos_token_id 2, end_id=None",
            )

    @classmethod
    def from_hugging_face(cls, config: ConfigFile) -> ClipTextConfig:
        """Read the config from a Hugging Face config.json, or from its section. Raises CheckpointError."""
        return read_published(cls, config)

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        written = {name: value for name, value in write_published(self).items() if value is not None}
        name = "CLIPTextModel" + ("" if self.projection is None else "WithProjection")
        return {"architectures": [name], "model_type": MODEL_TYPE, **written}


def _read_end_id(config: ConfigFile, name: str) -> int | None:
    end_id = config.optional_integer(name) if name in config.fields else 49407
    return None if end_id == _LARGEST_ID else end_id


def _read_known_id(config: ConfigFile, name: str, default: int | None = None) -> int | None:
    """Read the id of a token; None if it is null, or not in the vocabulary."""
    number = config.optional_integer(name) if name in config.fields else default
    return None if number is None or number >= config.size("vocab_size", default=49408) else number


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class ClipTextOutput:
    """The output of a text tower.

    hidden     (batch, length, width)        hidden states after the last norm
    pooled     (batch, width)                vector of the end token
    embedding  (batch, projection)           its projection, not normalised; None without a projection
    layers     layers + 1 like hidden        the embedding of tokens, then each layer's output, before the last norm;
                                             None without ``keep_layers``
    """

    __repr__ = repr_of_shapes

    hidden: Float[Tensor, "batch length width"]
    pooled: Float[Tensor, "batch width"]
    embedding: Float[Tensor, "batch projection"] | None = None
    layers: tuple[Float[Tensor, "batch length width"], ...] | None = None


@final
@explain_arguments
class ClipText(Encoder):
    """A text tower with random initial weights: ``model.text`` of a ``Clip``, or a model of its own."""

    config: ClipTextConfig
    config_class = ClipTextConfig
    model_types = (MODEL_TYPE,)
    is_causal = True
    pooling: Pooling | None = Pooling((OWN,))

    def __init__(self, config: ClipTextConfig) -> None:
        super().__init__(config)
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        self.positions = Learned(config.max_length, config.width, deviation=0.01)
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        self.layers = make_layers(config)
        self.norm = nn.LayerNorm(config.width, eps=config.epsilon)
        self.projection = make_projection(config)

    def forward(
        self, ids: Tensor, *, mask: Mask | None = None, positions: Tensor | None = None, keep_layers: bool = False
    ) -> ClipTextOutput:
        """Compute the hidden states of token ids, and the embedding of each text.

        Args:
            ids: token ids (batch, length), 0 to vocabulary - 1, with an end token in each text.
            mask: which tokens may attend to which, beside the causal mask: for padded ids ``masks.padding(lengths)``.
                A token that it hides from all tokens is no end token.
            positions: positions of the tokens in their texts, (batch, length), for texts that are padded on the left or
                packed behind one another; None counts from the first column.
            keep_layers: return the embedding and the output of each layer too, in ``.layers``.

        Raises ShapeError, DtypeError or OptionError for ids that do not fit; OptionError for a text without an end
        token, whose embedding in ``transformers`` would be the embedding of its first token.
        """
        self._check_ids(ids)
        check_flag("keep_layers", keep_layers)
        check_mask(mask)
        tokens = add_positions(self.token_embedding(ids), self.positions, positions)
        visible = causal() if mask is None else causal() & mask
        tokens, layers = run_encoder(tokens, self.layers, visible, keep=keep_layers)
        hidden = self.norm(tokens)
        pooled = hidden[torch.arange(ids.shape[0], device=ids.device), self._find_end(ids, mask)]
        embedding = None if self.projection is None else self.projection(pooled)
        return ClipTextOutput(hidden, pooled, embedding, layers)

    def embed(self, ids: Tensor, *, mask: Mask | None = None) -> Float[Tensor, "batch vector"]:
        """Compute a vector of length 1 for each text: its embedding, or without a projection the end token's vector."""
        output = self(ids, mask=mask)
        return functional.normalize(output.pooled if output.embedding is None else output.embedding, dim=-1)

    @property
    def vector_width(self) -> int:
        """The number of components of a vector of ``embed``."""
        return self.config.width if self.config.projection is None else self.config.projection

    @classmethod
    def make_weight_names(cls, config: ClipTextConfig) -> WeightNames:
        """Make the table of the names of weights in a file."""
        return WeightNames(
            (*TEXT_ROWS, Row(_PROJECTION, "projection")),
            prefix="text_model.",
            outer=() if config.projection is None else (_PROJECTION,),
            ignored_patterns=(r"embeddings\.position_ids",),
        )

    @classmethod
    def complete_config(
        cls, folder: ModelFolder, config: ClipTextConfig, origins: Mapping[str, Origin]
    ) -> ClipTextConfig:
        """Return hyperparameters without a projection if the weights have none."""
        if "projection.weight" in origins:
            return config
        return folder.config.build_again(config, projection=None)

    def _check_ids(self, ids: object) -> None:
        check_token_ids("ids", ids, self.config.vocabulary)
        assert isinstance(ids, Tensor)
        if not 1 <= ids.shape[1] <= self.config.max_length:
            raise ShapeError(
                "the model has no positions for these ids",
                expected=f"ids (batch, length) of 1 to {self.max_tokens} tokens",
                got=str(tuple(ids.shape)),
                do="model.tokenizer.encode(texts, truncate=True)",
            )

    def _find_end(self, ids: Int[Tensor, "batch length"], mask: Mask | None) -> Int[Tensor, " batch"]:
        """The place of the end token of each text: the first of the largest, among visible tokens."""
        end_id = self.config.end_id
        candidates = ids if end_id is None else (ids == end_id).long() - 1
        visible = _find_visible(mask, ids)
        if visible is not None:
            candidates = candidates.masked_fill(~visible, -1)
        # Only on a CPU: on other devices the check would synchronise.
        if ids.device.type == "cpu" and has_values(ids) and bool((candidates.amax(dim=1) < 0).any()):
            row = int((candidates.amax(dim=1) < 0).nonzero()[0])
            raise OptionError(
                "a text has no end token",
                expected="a visible token in each row" if end_id is None else f"the id {end_id} in each row, visible",
                got=f"none in row {row}",
                do="encode texts with the model's tokenizer: batch = model.tokenizer.encode(texts)",
            )
        return candidates.argmax(dim=1)


def _find_visible(mask: Mask | None, ids: Tensor) -> Bool[Tensor, "#batch length"] | None:
    """Which tokens some token may attend to; None without a mask."""
    if mask is None:
        return None
    batch, length = ids.shape
    mask.check(batch, 1 if mask.heads is None else mask.heads, length, length)
    return mask.dense(length, length, device=ids.device).any(dim=2).any(dim=1)
