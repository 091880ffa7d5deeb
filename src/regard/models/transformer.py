"""The Transformer: an encoder, and a decoder that attends to the encoder's output.

    memory = encoder(sqrt(width) E_source[source] + positions)
    logits = decoder(sqrt(width) E_target[target] + positions, memory) E_out^T

Vaswani et al. 2017, "Attention is all you need", figure 1 and sections 3.1 to 3.5; one matrix for both embeddings and
the output: section 3.4, and Press and Wolf 2017. With ``norm="pre"`` (Xiong et al. 2020) each stack ends with a final
norm. ids (batch, length) -> logits (batch, target length, vocabulary).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard import masks
from regard.arguments import explain_arguments
from regard.errors import OptionError, short_repr
from regard.fields import repr_of_fields
from regard.layers import DecoderCache, Dropout, decoder_block, encoder_block
from regard.layers.projection import linear_activation
from regard.masks import Mask
from regard.models.add_positions import add_positions
from regard.models.base import BlockDecoder, SequenceOutput
from regard.models.beam_groups import BeamGroups
from regard.models.check_token_ids import check_step, check_token_ids
from regard.models.hyperparameters import depth_field, model_field
from regard.models.layer_mechanism import (
    HEAD_POSITIONS,
    check_decodes,
    make_absolute_position,
    mechanism_options_field,
    options_in_decoder,
    share_projections,
)
from regard.models.token_model import TokenConfig, TokenModel
from regard.models.transformer_encoder import StackConfig, make_block, make_final_norm
from regard.models.weight_names import same_names


@final
@explain_arguments
@dataclass(frozen=True)
class TransformerConfig(TokenConfig, StackConfig):
    """The hyperparameters of a Transformer. Defaults are the base model of 2017.

    Cross-attention is always scaled dot-product attention. Raises OptionError for values out of range.
    """

    vocabulary: int = 37000
    width: int = 512
    layers: int = depth_field(6, "number of encoder layers")
    decoder_layers: int | None = depth_field(None, "number of decoder layers; None is ``layers``")
    heads: int = 8
    inner: int = 2048
    norm: str = "post"
    activation: str = "relu"
    max_length: int = 1024
    decoder_mechanism: str | None = model_field(
        None, "the mechanism of the decoder's self-attention; None is ``mechanism``, if it supports causal masks"
    )
    decoder_mechanism_options: Mapping[str, Any] = mechanism_options_field("options of ``decoder_mechanism``")

    model_name = "Transformer"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decoder_mechanism is None and self.decoder_mechanism_options:
            raise OptionError(
                "decoder_mechanism_options need a decoder_mechanism",
                expected="both, or neither: then the decoder has the mechanism and options of the encoder",
                got=short_repr(self.decoder_mechanism_options),
                do=f"decoder_mechanism={self.mechanism!r}",
            )

    @property
    def encoder_self_attention(self) -> tuple[str, Mapping[str, Any]]:
        """Mechanism and options of the encoder's self-attention."""
        return self.mechanism, self.mechanism_options

    @property
    def decoder_self_attention(self) -> tuple[str, Mapping[str, Any]]:
        """Mechanism and options of the decoder's self-attention."""
        if self.decoder_mechanism is None:
            return self.encoder_self_attention
        return self.decoder_mechanism, self.decoder_mechanism_options


@final
@dataclass(frozen=True, eq=False)
class TransformerState:
    """The decoder's state between two steps.

    ``caches`` hold, for each layer, the keys and values of the ``length`` tokens so far and of the memory. The memory
    of a source is stored once, however many rows attend to it; ``groups`` maps rows to sources. The tokens of all rows
    of a source share one cache entry, and ``visible_keys`` (rows, keys) says which of them belong to a row, so that
    nothing is copied when rows are reordered. With positions in the heads, which depend on the index of a key, and with
    a mechanism other than "dot_product", ``visible_keys`` is None, and each row has its own cache entry. ``lengths``
    (sources,) are the lengths of the sources, if some are padded, and ``memory_mask`` then hides the padding.
    """

    __repr__ = repr_of_fields

    caches: tuple[DecoderCache, ...]
    length: int
    groups: BeamGroups
    visible_keys: Bool[Tensor, "rows keys"] | None
    lengths: Tensor | None
    memory_mask: Mask | None

    def reordered(self, entries: Int[Tensor, " rows"]) -> TransformerState:
        """Select the rows ``entries`` of the state, in that order."""
        groups, left = self.groups.select(entries)
        visible, kept = (None, entries) if self.visible_keys is None else (self.visible_keys[entries], left)
        caches = tuple(cache.select(kept, left) for cache in self.caches)
        lengths, memory_mask = self.lengths, self.memory_mask
        if left is not None and lengths is not None:
            lengths = lengths[left]
            memory_mask = masks.padding(lengths)
        return TransformerState(caches, self.length, groups, visible, lengths, memory_mask)

    def next_step_mask(self) -> tuple[Mask, Bool[Tensor, "rows longer"] | None]:
        """The self-attention mask of the next step, and ``visible_keys`` after it."""
        if self.visible_keys is None:
            return masks.causal(), None
        visible = torch.cat([self.visible_keys, self.groups.query_one_hot], dim=1)
        return masks.keep(self.groups.rows_to_queries(visible[:, None])[:, None]), visible


@final
@explain_arguments
class Transformer(TokenModel, BlockDecoder):
    """An encoder-decoder Transformer with random initial weights."""

    model_type = "regard-transformer"
    model_types = (model_type,)
    config_class = TransformerConfig
    rows = same_names(
        "source_words",
        "target_words",
        "positions",
        "encoder.{n}.{path}",
        "encoder_norm",
        "decoder.{n}.{path}",
        "decoder_norm",
        "output",
    )

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.output = nn.Linear(config.width, self.vocab_sizes[1], bias=False)
        self.tie()
        self.positions = make_absolute_position(config.position, width=config.width, max_length=config.max_length)
        self.dropout = Dropout(config.dropout)
        mechanism, options = config.encoder_self_attention
        self.encoder = nn.ModuleList(
            make_block(encoder_block, config, depth, mechanism, options, bidirectional=True)
            for depth in range(config.layers)
        )
        mechanism, options = config.decoder_self_attention
        options = options_in_decoder(mechanism, options)
        self.decoder = nn.ModuleList(
            make_block(decoder_block, config, depth, mechanism, options, bidirectional=False)
            for depth in range(config.decoder_layers or config.layers)
        )
        share_projections(self.encoder)
        check_decodes(
            self._decoder_blocks[0].attention.mechanism,
            config.decoder_self_attention[0],
            masks.causal(),
            what="the decoder's self-attention",
            expected="a decoder_mechanism that supports causal masks and steps",
            do='`hyperparameters={"decoder_mechanism": "dot_product"}`; `attention=...` is then that of the encoder '
            "alone",
        )
        self.encoder_norm, self.decoder_norm = make_final_norm(config), make_final_norm(config)
        self._init_embeddings()

    @property
    def max_tokens(self) -> int | None:
        """The number of learned positions, the maximum length of a sequence; None (no limit) for other positions."""
        return self.config.max_tokens

    def forward(
        self, source: Tensor, target: Tensor, *, mask: Mask | None = None, source_positions: Tensor | None = None
    ) -> SequenceOutput:
        """Compute the logits of every position of known targets. See ``EncoderDecoder.forward``.

        ``source_positions`` (batch, source length) count the tokens in their sources, where these are padded on the
        left; None counts from the first column. Positions in the heads depend on distances alone, and need none.
        """
        hidden = self._decode(source, target, mask, source_positions)
        return SequenceOutput(hidden, linear_activation(hidden, self.output))

    def encode(
        self, source: Tensor, *, mask: Mask | None = None, source_positions: Tensor | None = None
    ) -> Float[Tensor, "batch length width"]:
        """Encode ``source`` (batch, length) into the memory that the decoder attends to, (batch, length, width).

        Arguments as for ``forward``.
        """
        check_token_ids("source ids", source, self.vocab_sizes[0])
        tokens = self._embed(source, self.source_words, positions=source_positions)
        for layer in self.encoder:
            tokens = layer(tokens, mask=mask)
        memory: Tensor = self.encoder_norm(tokens)
        return memory

    def start(self, source: Tensor, *, lengths: Tensor | None = None) -> TransformerState:
        """Encode ``source``, and return the decoder's initial state. See ``EncoderDecoder.start``."""
        caches, groups, mask = self._read_source(source, lengths)
        return TransformerState(caches, 0, groups, self._init_visible_keys(source), lengths, mask)

    def step(
        self, tokens: Tensor, state: TransformerState
    ) -> tuple[Float[Tensor, "rows vocabulary"], TransformerState]:
        """Read ``tokens`` (rows,), and return the logits of the next token and the next state."""
        check_step(tokens, state, TransformerState, self.vocab_sizes[1])
        hidden = self._embed(tokens[:, None], self.target_words, offset=state.length)
        mask, visible = state.next_step_mask()
        caches = []
        for block, known in zip(self._decoder_blocks, state.caches, strict=True):
            hidden, cache = block(
                hidden,
                mask=mask,
                memory_mask=state.memory_mask,
                cache=known,
                own_shared=None if visible is None else state.groups,
                memory_shared=state.groups,
            )
            caches.append(cache)
        logits = linear_activation(self.decoder_norm(hidden)[:, 0], self.output)
        return logits, replace(state, caches=tuple(caches), length=state.length + 1, visible_keys=visible)

    def _decode(
        self, source: Tensor, target: Tensor, mask: Mask | None, source_positions: Tensor | None = None
    ) -> Float[Tensor, "batch length width"]:
        """The decoder's hidden states for a known target, before the output layer."""
        check_token_ids("target ids", target, self.vocab_sizes[1])
        memory = self.encode(source, mask=mask, source_positions=source_positions)
        tokens = self._embed(target, self.target_words)
        for block in self._decoder_blocks:
            tokens = block(tokens, memory, mask=masks.causal(), memory_mask=mask)
        hidden: Tensor = self.decoder_norm(tokens)
        return hidden

    def _init_visible_keys(self, source: Tensor) -> Bool[Tensor, "rows 0"] | None:
        """``visible_keys`` before the first step; None if each row needs its own cache entry."""
        apart = self.config.position in HEAD_POSITIONS or self.config.decoder_self_attention[0] != "dot_product"
        return None if apart else torch.ones(len(source), 0, dtype=torch.bool, device=source.device)

    def _embed(self, ids: Tensor, words: nn.Embedding, *, positions: Tensor | None = None, offset: int = 0) -> Tensor:
        tokens = words(ids) * math.sqrt(self.config.width)
        tokens = add_positions(tokens, self.positions, positions, offset=offset)
        dropped: Tensor = self.dropout(tokens)
        return dropped


@explain_arguments
def transformer_tiny(vocabulary: int) -> Transformer:
    """Transformer tiny: 4 layers of width 128, for tens of thousands of pairs.

    Wu et al. 2021, "Good for misconceived reasons", table 2.
    """
    return Transformer(TransformerConfig(vocabulary=vocabulary, width=128, layers=4, heads=4, inner=256, dropout=0.3))


@explain_arguments
def transformer_base(vocabulary: int = 37000) -> Transformer:
    """Transformer base: 6 layers of width 512. Vaswani et al. 2017, table 3."""
    return Transformer(TransformerConfig(vocabulary=vocabulary))


@explain_arguments
def transformer_big(vocabulary: int = 37000) -> Transformer:
    """Transformer big: 6 layers of width 1,024. Vaswani et al. 2017, table 3."""
    return Transformer(TransformerConfig(vocabulary=vocabulary, width=1024, heads=16, inner=4096, dropout=0.3))
