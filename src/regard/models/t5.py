"""T5: an encoder-decoder that reads and writes text, for any task, with positions by buckets of distances.

    a   = h + MultiHead(norm(h)),   h' = a + FFN(norm(a))                  encoder; in the decoder, between the two,
    b   = a + MultiHead(norm(a), memory)                                   attention to the encoder's output
    MultiHead: softmax(q . k + bias[bucket(j - i)])                        without 1 / sqrt(head_dim)
    logits = norm(h_L) W^T                                                 / sqrt(width) if W is the embedding (1.0)

The bias is one of the encoder's and one of the decoder's self-attention, shared by all layers of each stack; in umT5
each layer has its own. Cross-attention has none. Norms are RMS norms, and no linear layer has a bias vector.

Raffel et al. 2020, "Exploring the limits of transfer learning with a unified text-to-text Transformer", section 2.1.
``t5_config`` has the other sources. source (batch, source length), target (batch, target length) -> hidden
(batch, target length, width), logits (batch, target length, vocabulary).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import masks
from regard.arguments import explain_arguments
from regard.errors import ShapeError, check_flag, check_kind
from regard.layers import (
    DecoderBlock,
    DecoderCache,
    Dropout,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    PreNorm,
    RMSNorm,
)
from regard.layers.projection import linear_activation
from regard.masks import Mask
from regard.mechanisms import DotProduct
from regard.models import checkpoint_reader, checkpoint_writer, sequence_files
from regard.models.base import Encoder, EncoderDecoder, SequenceOutput
from regard.models.beam_groups import BeamGroups
from regard.models.causal_language_model import NO_END
from regard.models.check_mechanisms import check_mechanisms
from regard.models.check_token_ids import check_step, check_token_ids
from regard.models.config_file import ConfigFile, read_json_object
from regard.models.t5_config import T5Config
from regard.models.weight_names import Row, WeightNames
from regard.positions import DistanceTable, T5Buckets
from regard.recording import record
from regard.tensors import check_tensor
from regard.text import Pooling, Tokenizer
from regard.text.pretrained_subwords import PretrainedSubwords
from regard.text.sentence_tokenizer import SentenceTokenizer
from regard.text.subword_training import FIXED_TOKENS
from regard.text.subwords import Subwords
from regard.text.transformers_files import transformers_files

_TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
_FIRST_TABLE = 64
"""Tokens that the first table of a decoder's biases is long enough for; each following one is twice as long."""


@final
@dataclass(frozen=True, eq=False)
class T5EncoderOutput:
    """The output of a T5 encoder.

    hidden  (batch, length, width)           hidden states after the last norm
    layers  layers + 1 of the same shape     the embedding, then each layer's output, the last one normalised and so
                                             equal to ``hidden``; None without ``keep_layers``
    """

    hidden: Float[Tensor, "batch length width"]
    layers: tuple[Float[Tensor, "batch length width"], ...] | None = None

    def __repr__(self) -> str:
        layers = "None" if self.layers is None else f"{len(self.layers)} like it"
        return f"T5EncoderOutput(hidden {tuple(self.hidden.shape)}, layers {layers})"


@final
@explain_arguments
class T5Encoder(Encoder):
    """The encoder of a T5 with random initial weights: ``model.encoder`` of a ``T5``, or a model of its own."""

    config: T5Config

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        _check_config(config)
        self.config = config
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        self.biases = _make_biases(config, config.layers, bidirectional=True)
        self.layers = nn.ModuleList(_make_encoder_layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, epsilon=config.epsilon)
        self.dropout = Dropout(config.dropout)
        _init_weights(self, config)

    def forward(self, ids: Tensor, *, mask: Mask | None = None, keep_layers: bool = False) -> T5EncoderOutput:
        """Compute the hidden states of token ids.

        Args:
            ids: token ids (batch, length), 0 to vocabulary - 1.
            mask: which tokens may attend to which, from ``regard.masks``; for padded ids ``masks.padding(lengths)``.
            keep_layers: return the embedding and the output of each layer too, in ``.layers``.

        Raises ShapeError, DtypeError or OptionError for ids that do not fit.
        """
        check_flag("keep_layers", keep_layers)
        _check_ids("ids", ids, self.config.vocabulary)
        tokens = self.dropout(self.token_embedding(ids))
        kept = [tokens]
        tables = _compute_tables(self.biases, 1 - ids.shape[1], ids.shape[1] - 1)
        for layer, bias in zip(self.layers, _for_layers(tables, len(self.layers)), strict=True):
            tokens = layer(tokens, mask=mask, bias=bias)
            if keep_layers:
                kept.append(tokens)
        kept[-1] = hidden = self.dropout(self.norm(tokens))
        return T5EncoderOutput(hidden, tuple(kept) if keep_layers else None)

    @property
    def pad_id(self) -> int:
        """The id of the padding token."""
        return self.config.pad_id

    @property
    def max_tokens(self) -> None:
        """The maximum length of a text: none, since all large distances are in one bucket."""
        return None

    @property
    def width(self) -> int:
        """The number of components of a hidden state."""
        return self.config.width

    @property
    def weight_names(self) -> WeightNames:
        """The table of the encoder's weight names in a file."""
        return WeightNames(
            (Row("shared", "token_embedding"), *_encoder_rows(self.config, "")),
            ignored_patterns=(r"encoder\.embed_tokens\.weight",),
        )

    def save(
        self,
        folder: str | Path,
        *,
        overwrite: bool = False,
        max_shard_bytes: int = checkpoint_writer.MAX_SHARD_BYTES,
    ) -> None:
        """Write a folder that ``transformers`` and ``regard.load`` read, as ``T5.save`` does."""
        fields = self.config.to_hugging_face(decoder=False)
        files = _folder_files(self, fields, self.tokenizer)
        if self.pooling is not None and not self.pooling.others:
            files |= self.pooling.files(self.config.width, None)
        checkpoint_writer.write_folder(
            checkpoint_writer.to_folder_path(folder),
            files,
            self.weight_names.to_file(self.state_dict()),
            overwrite=overwrite,
            max_shard_bytes=max_shard_bytes,
        )


@final
@dataclass(frozen=True, eq=False)
class T5State:
    """The decoder's state between two steps.

    ``caches`` hold, for each layer, the keys and values of the tokens so far, and of the memory. The memory of a source
    is stored once, however many rows attend to it; ``groups`` maps rows to sources. ``tables`` are the biases of the
    distances up to some length, one for all layers or one for each. ``lengths`` (sources,) are those of the sources, if
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


@final
@explain_arguments
class T5(EncoderDecoder):
    """A T5 with random initial weights; ``regard.load`` loads a trained one.

    ``tokenizer`` is that of a loaded model, else None; ``subwords`` are the same, as a search and a ``Translator`` use
    them. ``notes`` lists weights that loading skipped.
    """

    config: T5Config

    tokenizer: Tokenizer | None = None
    """The tokenizer from the model folder, of source and target; None if there is none."""

    tokenizer_config: Mapping[str, Any] | None = None
    """The fields of tokenizer_config.json, by which ``transformers`` loads the tokenizer; None if there is none."""

    notes: tuple[str, ...] = ()
    """Messages about weights that loading skipped."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        _check_config(config)
        self.config = config
        self.vocab_sizes = config.vocabulary, config.vocabulary
        self.pad_id, self.start_id = config.pad_id, config.start_id
        self.end_id = config.end_ids[0] if config.end_ids else NO_END
        self.encoder = T5Encoder(config)
        self.decoder_biases = _make_biases(config, config.decoder_depth, bidirectional=False)
        self.decoder = nn.ModuleList(_make_decoder_layer(config) for _ in range(config.decoder_depth))
        self.decoder_norm = RMSNorm(config.width, epsilon=config.epsilon)
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(config.width, config.vocabulary, bias=False)
        _init_weights(self, config)
        nn.init.normal_(self.output.weight, std=float(config.deviation))
        self.tie()

    @property
    def unknown_id(self) -> int | None:
        """The id of the unknown token, from the tokenizer; None if there is none."""
        if self.subwords is not None:
            return self.subwords[1].unknown_id
        return None if self.tokenizer is None else self.tokenizer.unknown_id

    @property
    def model_type(self) -> str:
        """The field "model_type" in config.json."""
        return self.config.model_type

    def forward(self, source: Tensor, target: Tensor, *, mask: Mask | None = None) -> SequenceOutput:
        """Compute the logits of every position of known targets. See ``EncoderDecoder.forward``."""
        hidden = self._decode(source, target, mask)
        return SequenceOutput(hidden, self._compute_logits(hidden))

    def encode(self, source: Tensor, *, mask: Mask | None = None) -> Float[Tensor, "batch length width"]:
        """Encode ``source`` (batch, length) into the memory that the decoder attends to, (batch, length, width)."""
        output: T5EncoderOutput = self.encoder(source, mask=mask)
        return output.hidden

    def start(self, source: Tensor, *, lengths: Tensor | None = None) -> T5State:
        """Encode ``source``, and return the decoder's initial state. See ``EncoderDecoder.start``."""
        if lengths is not None:
            check_tensor("lengths", lengths, "a tensor of integers (batch,)", do="torch.tensor(lengths)")
        mask = None if lengths is None else masks.padding(lengths)
        memory = self.encode(source, mask=mask)
        caches = tuple(block.empty_cache(memory) for block in self._decoder_blocks)
        tables = _compute_tables(self.decoder_biases, 1 - _FIRST_TABLE, 0)
        return T5State(caches, BeamGroups.one_per_row(len(source), source.device), tables, lengths, mask)

    def step(self, tokens: Tensor, state: T5State) -> tuple[Float[Tensor, "rows vocabulary"], T5State]:
        """Read ``tokens`` (rows,), and return the logits of the next token and the next state."""
        check_step(tokens, state, T5State, self.config.vocabulary)
        tables, farthest = state.tables, -state.length
        if farthest < tables[0].lowest:
            tables = _compute_tables(self.decoder_biases, 2 * tables[0].lowest - 1, 0)
        biases = _for_layers(tuple(table.narrowed(farthest, 0) for table in tables), len(self.decoder))
        hidden = self._embed(tokens[:, None])
        caches = []
        for block, bias, known in zip(self._decoder_blocks, biases, state.caches, strict=True):
            hidden, cache = block(
                hidden,
                mask=masks.causal(),
                bias=bias,
                memory_mask=state.memory_mask,
                cache=known,
                memory_shared=state.groups,
            )
            caches.append(cache)
        logits = self._compute_logits(self.dropout(self.decoder_norm(hidden))[:, 0])
        return logits, replace(state, caches=tuple(caches), tables=tables)

    def cross_attention_weights(
        self, source: Tensor, target: Tensor, *, mask: Mask | None = None
    ) -> Float[Tensor, "batch length source"]:
        """The cross-attention weights of one layer, averaged over heads: (batch, target length, source length).

        The layer is the last but one, as in ``Transformer``: Garg et al. 2019, table 2.
        """
        with torch.no_grad(), record(self._alignment_layer) as seen:
            self._decode(source, target, mask)
            return seen[-1].weights().mean(dim=1)

    def step_with_weights(
        self, tokens: Tensor, state: T5State
    ) -> tuple[Float[Tensor, "rows vocabulary"], T5State, Float[Tensor, "rows source"]]:
        """Like ``step``, and also return the weights. See ``EncoderDecoder.step_with_weights``."""
        with record(self._alignment_layer) as seen:
            logits, following = self.step(tokens, state)
            return logits, following, state.groups.queries_to_rows(seen[-1].weights().mean(dim=1))[:, 0]

    def tie(self) -> None:
        """Let the output layer share the matrix of the embedding, if the config says so."""
        if self.config.tied:
            self.output.weight = self.encoder.token_embedding.weight

    @property
    def tied_weights(self) -> dict[str, str]:
        """Maps the name of a tied weight to the name under which it is saved."""
        return {"output.weight": "encoder.token_embedding.weight"} if self.config.tied else {}

    @property
    def weight_names(self) -> WeightNames:
        """The table of the model's weight names in a file; old files also name the embedding of each stack."""
        return WeightNames(
            (
                Row("shared", "encoder.token_embedding"),
                *_encoder_rows(self.config, "encoder."),
                *_decoder_rows(self.config),
                Row("lm_head", "output"),
            ),
            ignored_patterns=(
                r"(encoder|decoder)\.embed_tokens\.weight",
                r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
            ),
            tied_weights=self.tied_weights,
        )

    def save(
        self,
        folder: str | Path,
        *,
        overwrite: bool = False,
        keep_others: bool = False,
        max_shard_bytes: int = checkpoint_writer.MAX_SHARD_BYTES,
    ) -> None:
        """Write a folder that ``transformers`` and ``regard.load`` read; it appears complete or not at all.

        Weights of more than ``max_shard_bytes`` are written in several files with an index. Raises OutputExistsError as
        ``EncoderDecoder.save`` does, and RefusedError for a model whose mechanism was replaced.
        """
        files = _folder_files(self, self.config.to_hugging_face(), self.tokenizer)
        checkpoint_writer.write_folder(
            checkpoint_writer.to_folder_path(folder),
            files | self._tokenizer_files() | sequence_files.metadata_files(self.metadata),
            self.weight_names.to_file(self.state_dict()),
            overwrite=overwrite,
            keep_others=keep_others,
            max_shard_bytes=max_shard_bytes,
        )

    def _tokenizer_files(self) -> dict[str, str]:
        """The tokenizer files, as texts by file name; those of new subwords so that ``transformers`` ends each text."""
        if self.subwords is not None and isinstance(self.subwords[0], Subwords):
            return transformers_files(
                self.subwords[0],
                pad_id=self.pad_id,
                start_id=self.start_id,
                end_id=self.end_id,
                max_tokens=self.max_tokens,
            )
        if self.tokenizer_config is None:
            return {}
        return {_TOKENIZER_CONFIG_FILE: json.dumps(dict(self.tokenizer_config), indent=2, ensure_ascii=False) + "\n"}

    def _decode(self, source: Tensor, target: Tensor, mask: Mask | None) -> Float[Tensor, "batch length width"]:
        """The decoder's hidden states for a known target, after the last norm."""
        _check_ids("target ids", target, self.config.vocabulary)
        memory = self.encode(source, mask=mask)
        tokens = self._embed(target)
        tables = _compute_tables(self.decoder_biases, 1 - target.shape[1], target.shape[1] - 1)
        for block, bias in zip(self._decoder_blocks, _for_layers(tables, len(self.decoder)), strict=True):
            tokens = block(tokens, memory, mask=masks.causal(), bias=bias, memory_mask=mask)
        hidden: Tensor = self.dropout(self.decoder_norm(tokens))
        return hidden

    def _embed(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(self.encoder.token_embedding(ids))
        return embedded

    def _compute_logits(self, hidden: Tensor) -> Tensor:
        """Compute the logits of the token after each position from hidden states after the last norm."""
        return linear_activation(hidden * self.config.width**-0.5 if self.config.scale_output else hidden, self.output)

    @property
    def _decoder_blocks(self) -> Sequence[DecoderBlock]:
        """The layers of the decoder, cast to their type."""
        return cast("Sequence[DecoderBlock]", self.decoder)

    @property
    def _alignment_layer(self) -> nn.Module:
        """The cross-attention layer that alignments are read from."""
        return self.get_submodule(f"decoder.{max(len(self.decoder) - 2, 0)}.cross_attention")


def load_t5(folder: Path, config: ConfigFile, *, dtype: torch.dtype) -> T5 | T5Encoder:
    """Load the model of ``folder``, whose config.json is ``config``, in eval mode on the CPU.

    Returns a ``T5Encoder`` if the folder has no decoder. Raises CheckpointError for files that do not belong together.
    """
    stored = checkpoint_reader.stored_tensors(folder)
    has_decoder = any(name.startswith("decoder.") for name in stored)
    hyperparameters = T5Config.from_hugging_face(config, tied="lm_head.weight" not in stored)
    with checkpoint_reader.init_on_meta():
        model = T5(hyperparameters) if has_decoder else T5Encoder(hyperparameters)
    origins, skipped = model.weight_names.origins(stored)
    encoder_prefix = "encoder." if has_decoder else ""
    checkpoint_reader.check_layers(
        hyperparameters.layers, (name.removeprefix(encoder_prefix) for name in origins), "layers"
    )
    if has_decoder:
        checkpoint_reader.check_layers(hyperparameters.decoder_depth, origins, "decoder")
    checkpoint_reader.load_weights(model, origins, dtype)
    model.tokenizer = checkpoint_reader.read_tokenizer(
        folder, pad_id=hyperparameters.pad_id, limit=None, vocabulary=hyperparameters.vocabulary
    )
    if isinstance(model, T5):
        _tie_equal_weights(model)
        model.subwords = _read_subwords(folder, model.tokenizer, model.end_id)
        path = folder / _TOKENIZER_CONFIG_FILE
        model.tokenizer_config = read_json_object(path) if path.exists() else None
        model.metadata = sequence_files.read_metadata(folder)
    encoder = model.encoder if isinstance(model, T5) else model
    encoder.tokenizer, encoder.pooling = model.tokenizer, Pooling.read(folder)
    model.notes = checkpoint_reader.loading_notes(folder, skipped)
    return model.eval()


def _read_subwords(
    folder: Path, tokenizer: Tokenizer | None, end_id: int
) -> tuple[SentenceTokenizer, SentenceTokenizer] | None:
    """The tokenizer of a folder as subwords of sentences: those that regard trained, or of a pretrained model."""
    if tokenizer is None:
        return None
    if tokenizer.has_tokens(FIXED_TOKENS):
        return sequence_files.read_subwords(folder)
    own = PretrainedSubwords(tokenizer, end_id=end_id)
    return own, own


def _tie_equal_weights(model: T5) -> None:
    """Tie the output layer if it has the numbers of the embedding: some files hold a shared matrix twice."""
    if model.config.scale_output and torch.equal(model.output.weight, model.encoder.token_embedding.weight):
        model.config = replace(model.config, tied=True)
    model.tie()


def _folder_files(model: T5 | T5Encoder, fields: dict[str, Any], tokenizer: Tokenizer | None) -> dict[str, str]:
    """The texts of a model folder by file name. Raises RefusedError for a model whose mechanism was replaced."""
    check_mechanisms(model, model.config)
    files = {"config.json": checkpoint_writer.config_text(fields, next(model.parameters()).dtype)}
    return files if tokenizer is None else files | {"tokenizer.json": tokenizer.to_json()}


def _encoder_rows(config: T5Config, prefix: str) -> tuple[Row, ...]:
    """Rows of the weight names of the encoder, whose names in the model begin with ``prefix``."""
    file, model = "encoder.block.{n}.layer.", prefix + "layers.{n}."
    return (
        Row(file + "0.SelfAttention.relative_attention_bias", prefix + "biases.{n}"),
        *_attention_rows(file + "0.SelfAttention.", model + "attention."),
        Row(file + "0.layer_norm", model + "attention_residual.norm"),
        *_feed_forward_rows(config, file + "1.DenseReluDense.", model + "feed_forward."),
        Row(file + "1.layer_norm", model + "feed_forward_residual.norm"),
        Row("encoder.final_layer_norm", prefix + "norm"),
    )


def _decoder_rows(config: T5Config) -> tuple[Row, ...]:
    """Rows of the weight names of the decoder."""
    file, model = "decoder.block.{n}.layer.", "decoder.{n}."
    return (
        Row(file + "0.SelfAttention.relative_attention_bias", "decoder_biases.{n}"),
        *_attention_rows(file + "0.SelfAttention.", model + "attention."),
        Row(file + "0.layer_norm", model + "attention_residual.norm"),
        *_attention_rows(file + "1.EncDecAttention.", model + "cross_attention."),
        Row(file + "1.layer_norm", model + "cross_attention_residual.norm"),
        *_feed_forward_rows(config, file + "2.DenseReluDense.", model + "feed_forward."),
        Row(file + "2.layer_norm", model + "feed_forward_residual.norm"),
        Row("decoder.final_layer_norm", "decoder_norm"),
    )


def _attention_rows(file: str, model: str) -> tuple[Row, ...]:
    sides = {"q": "query", "k": "key", "v": "value", "o": "output"}
    return tuple(Row(file + short, f"{model}{side}_projection") for short, side in sides.items())


def _feed_forward_rows(config: T5Config, file: str, model: str) -> tuple[Row, ...]:
    first = {"wi_0": "gate", "wi_1": "up"} if config.is_gated else {"wi": "up"}
    return tuple(Row(file + stored, model + name) for stored, name in (first | {"wo": "down"}).items())


def _make_biases(config: T5Config, layers: int, *, bidirectional: bool) -> nn.ModuleList:
    """Build the position biases of a stack: one for all its layers, or one for each."""
    return nn.ModuleList(
        T5Buckets(config.heads, buckets=config.buckets, max_distance=config.max_distance, bidirectional=bidirectional)
        for _ in range(layers if config.layer_biases else 1)
    )


def _compute_tables(biases: nn.ModuleList, lowest: int, highest: int) -> tuple[DistanceTable, ...]:
    """Compute the biases of the distances from ``lowest`` to ``highest``, once for all layers that share them."""
    return tuple(DistanceTable.of(cast("T5Buckets", bias), lowest, highest) for bias in biases)


def _for_layers(tables: tuple[DistanceTable, ...], layers: int) -> tuple[DistanceTable, ...]:
    """Return a table for each layer: the one that all share, or each layer's own."""
    return tables if len(tables) == layers else tables * layers


def _make_encoder_layer(config: T5Config) -> EncoderBlock:
    return EncoderBlock(
        attention=_make_attention(config),
        feed_forward=_make_feed_forward(config),
        attention_residual=_make_residual(config),
        feed_forward_residual=_make_residual(config),
    )


def _make_decoder_layer(config: T5Config) -> DecoderBlock:
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


def _init_weights(model: nn.Module, config: T5Config) -> None:
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


def _check_config(config: object) -> None:
    check_kind("config", config, T5Config, do="for example T5Config(width=128, layers=2, heads=2, inner=512)")


def _check_ids(name: str, ids: Tensor, vocabulary: int) -> None:
    """Raise DtypeError, ShapeError or OptionError unless ``ids`` are (batch, length) of 1 or more, and valid."""
    check_token_ids(name, ids, vocabulary)
    if ids.shape[1] == 0:
        raise ShapeError(
            f"{name} have no tokens",
            expected=f"{name} (batch, length) with a length of 1 or more",
            got=str(tuple(ids.shape)),
            do="a source ends with the end token, and a target begins with model.start_id",
        )


def t5_small() -> T5:
    """T5 small, untrained: 6 layers of width 512. Raffel et al. 2020, section 3.7."""
    return T5(T5Config())


def t5_base() -> T5:
    """T5 base, untrained: 12 layers of width 768. Raffel et al. 2020, section 3.1.1."""
    return T5(T5Config(width=768, layers=12, heads=12, inner=3072))


def t5_large() -> T5:
    """T5 large, untrained: 24 layers of width 1,024. Raffel et al. 2020, section 3.7."""
    return T5(T5Config(width=1024, layers=24, heads=16, inner=4096))


def t5_1_1_small() -> T5:
    """T5 1.1 small, untrained, and so Flan-T5 small: 8 layers of width 512, gated GELU. Chung et al. 2022."""
    return T5(_gated_config(512, 8, 6, 1024))


def t5_1_1_base() -> T5:
    """T5 1.1 base, untrained, and so Flan-T5 base: 12 layers of width 768, gated GELU. Chung et al. 2022."""
    return T5(_gated_config(768, 12, 12, 2048))


def t5_1_1_large() -> T5:
    """T5 1.1 large, untrained, and so Flan-T5 large: 24 layers of width 1,024, gated GELU. Chung et al. 2022."""
    return T5(_gated_config(1024, 24, 16, 2816))


def mt5_small() -> T5:
    """mT5 small, untrained: T5 1.1 small with 250,112 tokens. Xue et al. 2021, section 3.2."""
    return T5(replace(_gated_config(512, 8, 6, 1024), vocabulary=250112, model_type="mt5"))


def mt5_base() -> T5:
    """mT5 base, untrained: T5 1.1 base with 250,112 tokens. Xue et al. 2021, section 3.2."""
    return T5(replace(_gated_config(768, 12, 12, 2048), vocabulary=250112, model_type="mt5"))


def _gated_config(width: int, layers: int, heads: int, inner: int) -> T5Config:
    return T5Config(
        width=width,
        layers=layers,
        heads=heads,
        inner=inner,
        activation="geglu_tanh",
        tied=False,
        scale_output=False,
    )
