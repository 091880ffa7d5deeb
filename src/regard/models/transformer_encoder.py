"""The encoder of a Transformer alone: a text encoder to train from random weights, with any mechanism and position.

    h_0 = dropout(sqrt(width) E[ids] + positions)
    h_l = block_l(h_l-1)                                self-attention and feed-forward
    hidden = h_L, or norm(h_L) with norm="pre"

Vaswani et al. 2017, "Attention is all you need", figure 1, left; norms before the sublayers: Xiong et al. 2020.
ids (batch, length) -> hidden (batch, length, width).
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, final

import torch
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import ShapeError, check_flag, check_weights
from regard.fields import SIZE, check_fields, declare
from regard.layers import Dropout, encoder_block
from regard.masks import Mask
from regard.models.add_positions import add_positions
from regard.models.base import Encoder, HiddenStates
from regard.models.check_token_ids import check_token_ids
from regard.models.hyperparameters import depth_field, model_field, probability_field, size_field
from regard.models.layer_mechanism import (
    POSITIONS,
    count_score_parts,
    make_absolute_position,
    make_head_position,
    mechanism_field,
    mechanism_options_field,
    options_at_depth,
    share_projections,
)
from regard.models.run_encoder import run_encoder
from regard.models.weight_names import WeightNames, same_names
from regard.text.subword_training import PAD_ID

Block = TypeVar("Block", bound=nn.Module)

WEIGHT_NAMES = WeightNames(same_names("token_embedding", "positions", "layers.{n}.{path}", "norm"))
"""The names of the weights, the same in a file and in the model."""


@dataclass(frozen=True)
class StackConfig(ABC):
    """The hyperparameters that stacks of Transformer blocks have, with and without a decoder."""

    vocabulary: int = field(metadata=declare("number of tokens", **SIZE))
    width: int = size_field(256, "size of hidden states")
    layers: int = depth_field(4, "number of layers")
    heads: int = size_field(4, "number of heads")
    inner: int = size_field(1024, "hidden size of the feed-forward layers")
    dropout: float = probability_field(0.1, "dropout of embeddings and of the output of sublayers")
    attention_dropout: float = probability_field(0.0, "dropout of attention weights")
    inner_dropout: float = probability_field(0.0, "dropout inside the feed-forward layers")
    norm: str = model_field("pre", "the place of the norms, as for ``encoder_block``")
    activation: str = model_field("gelu", "activation of the feed-forward layers, as for ``encoder_block``")
    position: str = model_field("sinusoidal", "the position of tokens, a name in ``POSITIONS``", choices=POSITIONS)
    max_length: int = size_field(512, "number of learned positions")
    mechanism: str = mechanism_field()
    mechanism_options: Mapping[str, Any] = mechanism_options_field()
    epsilon: float = model_field(1e-5, "epsilon of the norms", above=0.0)

    model_name: ClassVar[str]

    @property
    def max_tokens(self) -> int | None:
        """The number of learned positions, the maximum length of a sequence; None (no limit) for other positions."""
        return self.max_length if self.position == "learned" else None


@final
@explain_arguments
@dataclass(frozen=True)
class TransformerEncoderConfig(StackConfig):
    """The hyperparameters of a Transformer encoder.

    Raises OptionError for values out of range.
    """

    pad_id: int = model_field(PAD_ID, "the padding token", below="vocabulary")

    model_name = "Transformer"

    def __post_init__(self) -> None:
        check_fields(self)
        check_weights(vocabulary=self.vocabulary, width=self.width)


@final
@explain_arguments
class TransformerEncoder(Encoder):
    """A Transformer encoder with random initial weights."""

    model_type = "regard-transformer-encoder"
    model_types = (model_type,)

    config: TransformerEncoderConfig
    config_class = TransformerEncoderConfig

    def __init__(self, config: TransformerEncoderConfig) -> None:
        super().__init__(config)
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        self.positions = make_absolute_position(config.position, width=config.width, max_length=config.max_length)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(
            make_block(encoder_block, config, depth, config.mechanism, config.mechanism_options, bidirectional=True)
            for depth in range(config.layers)
        )
        share_projections(self.layers)
        self.norm = make_final_norm(config)
        # Multiplied by sqrt(width), embeddings have components of size 1, like the positions.
        nn.init.normal_(self.token_embedding.weight, std=config.width**-0.5)
        with torch.no_grad():
            self.token_embedding.weight[config.pad_id] = 0

    def forward(
        self,
        ids: Tensor,
        *,
        mask: Mask | None = None,
        positions: Tensor | None = None,
        keep_layers: bool = False,
    ) -> HiddenStates:
        """Compute the hidden states of token ids.

        Args:
            ids: token ids (batch, length), 0 to vocabulary - 1.
            mask: which tokens may attend to which, from ``regard.masks``; for padded ids ``masks.padding(lengths)``.
            positions: positions of the tokens in their texts, (batch, length), for texts that are padded on the left or
                packed behind one another; None counts from the first column. Positions in the heads depend on distances
                alone, and need none.
            keep_layers: return the embedding and the output of each layer too, in ``.layers``.

        Raises ShapeError for more tokens than learned positions, OptionError for ids outside the vocabulary.
        """
        check_flag("keep_layers", keep_layers)
        return HiddenStates(
            *run_encoder(self._embed(ids, positions), self.layers, mask, keep=keep_layers, norm=self.norm)
        )

    @property
    def max_tokens(self) -> int | None:
        """The number of learned positions, the maximum length of a sequence; None (no limit) for other positions."""
        return self.config.max_tokens

    @classmethod
    def make_weight_names(cls, config: TransformerEncoderConfig) -> WeightNames:
        """Make the table of the names of weights, the same in a file and in the model."""
        del config
        return WEIGHT_NAMES

    def _embed(self, ids: Tensor, positions: Tensor | None) -> Tensor:
        check_token_ids("ids", ids, self.config.vocabulary)
        if ids.shape[1] == 0:
            raise ShapeError(
                "ids have no tokens",
                expected="ids (batch, length) with a length of 1 or more",
                got=str(tuple(ids.shape)),
                do="every text has at least a start token after model.tokenizer.encode(texts)",
            )
        tokens = self.token_embedding(ids) * math.sqrt(self.config.width)
        tokens = add_positions(tokens, self.positions, positions)
        embedded: Tensor = self.dropout(tokens)
        return embedded


def make_final_norm(config: StackConfig) -> nn.Module:
    """Make the final norm of a stack, which it has only with norms before the sublayers."""
    return nn.LayerNorm(config.width, eps=config.epsilon) if config.norm == "pre" else nn.Identity()


def make_block(
    make: Callable[..., Block],
    config: StackConfig,
    depth: int,
    mechanism: str,
    options: Mapping[str, Any],
    *,
    bidirectional: bool,
) -> Block:
    """Make the block with ``depth`` blocks below by ``encoder_block`` or ``decoder_block``."""
    return make(
        config.width,
        config.heads,
        config.inner,
        norm=config.norm,
        activation=config.activation,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        inner_dropout=config.inner_dropout,
        epsilon=config.epsilon,
        mechanism=mechanism,
        mechanism_options=options_at_depth(mechanism, options, depth),
        position=make_head_position(
            config.position,
            width=config.width,
            heads=config.heads,
            bidirectional=bidirectional,
            parts=count_score_parts(mechanism),
        ),
    )
