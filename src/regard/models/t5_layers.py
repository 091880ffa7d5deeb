"""The layers of a T5: encoder and decoder blocks, biases of positions, initial weights, and the state of the decoder.

    MultiHead: softmax(q . k + bias[bucket(j - i)])                        without 1 / sqrt(head_dim)

Raffel et al. 2020, section 2.1; ``t5`` has the rest of the model, and ``t5_config`` the other sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, final

from jaxtyping import Int
from torch import Tensor, nn

from regard import masks
from regard.layers import DecoderBlock, DecoderCache, EncoderBlock, FeedForward, MultiHeadAttention, PreNorm, RMSNorm
from regard.masks import Mask
from regard.mechanisms import DotProduct
from regard.models.beam_groups import BeamGroups
from regard.models.check_token_ids import check_texts_of_ids
from regard.models.t5_config import T5Config
from regard.positions import DistanceTable, T5Buckets


def make_biases(config: T5Config, layers: int, *, bidirectional: bool) -> nn.ModuleList:
    """Build the position biases of a stack: one for all its layers, or one for each."""
    return nn.ModuleList(
        T5Buckets(config.heads, buckets=config.buckets, max_distance=config.max_distance, bidirectional=bidirectional)
        for _ in range(layers if config.layer_biases else 1)
    )


def compute_tables(biases: nn.ModuleList, lowest: int, highest: int) -> tuple[DistanceTable, ...]:
    """Compute the biases of the distances from ``lowest`` to ``highest``, once for all layers that share them."""
    return tuple(DistanceTable.of(cast("T5Buckets", bias), lowest, highest) for bias in biases)


def tables_of_layers(tables: tuple[DistanceTable, ...], layers: int) -> tuple[DistanceTable, ...]:
    """Return a table for each layer: the one that all share, or each layer's own."""
    return tables if len(tables) == layers else tables * layers


def make_encoder_layer(config: T5Config) -> EncoderBlock:
    """Build a layer of the encoder."""
    return EncoderBlock(
        attention=_make_attention(config),
        feed_forward=_make_feed_forward(config),
        attention_residual=_make_residual(config),
        feed_forward_residual=_make_residual(config),
    )


def make_decoder_layer(config: T5Config) -> DecoderBlock:
    """Build a layer of the decoder, which attends to the encoder's output too."""
    return DecoderBlock(
        attention=_make_attention(config),
        cross_attention=_make_attention(config),
        feed_forward=_make_feed_forward(config),
        attention_residual=_make_residual(config),
        cross_attention_residual=_make_residual(config),
        feed_forward_residual=_make_residual(config),
    )


def _make_attention(config: T5Config) -> MultiHeadAttention:
    """Build an attention layer; its scores are not scaled, since the initial weights of queries are smaller."""
    mechanism = DotProduct(heads=config.heads, head_dim=config.head_dim, scale=1.0, dropout=config.dropout)
    return MultiHeadAttention(config.width, config.heads, head_dim=config.head_dim, mechanism=mechanism, bias=False)


def _make_feed_forward(config: T5Config) -> FeedForward:
    return FeedForward(config.width, config.inner, activation=config.activation, dropout=config.dropout, bias=False)


def _make_residual(config: T5Config) -> PreNorm:
    return PreNorm(RMSNorm(config.width, epsilon=config.epsilon), dropout=config.dropout)


def init_weights(model: nn.Module, config: T5Config) -> None:
    """Initialise weights as published: normal, so that all projections of normalised tokens but queries have size 1.

    Queries are smaller by sqrt(head_dim), in place of the scale of scores.
    """
    factor = float(config.deviation)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=factor)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=factor * module.in_features**-0.5)
        elif isinstance(module, T5Buckets):
            nn.init.normal_(module.weight, std=factor * config.width**-0.5)
        elif isinstance(module, RMSNorm):
            nn.init.constant_(module.weight, factor)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            nn.init.normal_(module.query_projection.weight, std=factor * (config.width * config.head_dim) ** -0.5)


def check_ids(name: str, ids: Tensor, vocabulary: int) -> None:
    """Raise DtypeError, ShapeError or OptionError unless ``ids`` are (batch, length) of 1 or more, and valid."""
    do = "a source ends with the end token, and a target begins with model.start_id"
    check_texts_of_ids(name, ids, vocabulary, do=do)


@final
@dataclass(frozen=True, eq=False)
class T5State:
    """The decoder's state between two steps.

    ``caches`` hold, for each layer, the keys and values of the tokens so far, and of the memory. The memory of a source
    is stored once, however many rows attend to it; ``groups`` maps rows to sources. ``tables`` are the biases of the
    distances up to some length, one for all layers or one for each. ``lengths`` (sources,) are the sources' lengths, if
    some are padded, and ``memory_mask`` then hides the padding.
    """

    caches: tuple[DecoderCache, ...]
    groups: BeamGroups
    tables: tuple[DistanceTable, ...]
    lengths: Tensor | None
    memory_mask: Mask | None

    @property
    def length(self) -> int:
        """The number of target tokens in the state."""
        return self.caches[0].length

    def reordered(self, entries: Int[Tensor, " rows"]) -> T5State:
        """Select the rows ``entries`` of the state, in that order; a row may be selected more than once."""
        groups, left = self.groups.select(entries)
        caches = tuple(cache.select(entries, left) for cache in self.caches)
        lengths, memory_mask = self.lengths, self.memory_mask
        if left is not None and lengths is not None:
            lengths = lengths[left]
            memory_mask = masks.padding(lengths)
        return T5State(caches, groups, self.tables, lengths, memory_mask)
