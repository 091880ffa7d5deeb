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

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard import masks
from regard.arguments import explain_arguments
from regard.layers import Dropout, RMSNorm
from regard.layers.projection import linear_activation
from regard.masks import Mask
from regard.models import checkpoint_reader
from regard.models.base import BlockDecoder, HiddenStates, SequenceOutput
from regard.models.check_token_ids import check_step
from regard.models.config_file import to_json_text
from regard.models.language_model_files import (
    GENERATION_CONFIG_FILE,
    TOKENIZER_CONFIG_FILE,
    find_ignored_fields,
    read_generation_config,
)
from regard.models.model import Model, tokenizer_text
from regard.models.model_folder import ModelFolder
from regard.models.special_ids import NO_END, find_missing_special_ids, read_end_ids, read_special_id
from regard.models.t5_config import MODEL_TYPES, T5Config
from regard.models.t5_encoder import EMBEDDING, EMBEDDING_COPIES, SIDES, T5Encoder, encoder_rows, feed_forward_rows
from regard.models.t5_layers import (
    T5State,
    check_ids,
    compute_tables,
    init_weights,
    make_biases,
    make_decoder_layer,
    tables_of_layers,
)
from regard.models.weight_names import Origin, Row, WeightNames, attention_rows
from regard.text import Tokenizer
from regard.text.pretrained_subwords import PretrainedSubwords
from regard.text.sentence_tokenizer import SentenceTokenizer
from regard.text.subword_training import FIXED_TOKENS
from regard.text.subwords import Subwords, read_subword_files
from regard.text.transformers_files import transformers_files

_FIRST_TABLE = 64
"""Tokens that the first table of a decoder's biases is long enough for; each following one is twice as long."""


@final
@explain_arguments
class T5(BlockDecoder):
    """A T5 with random initial weights; ``regard.load`` loads a trained one.

    ``tokenizer`` comes with a loaded model, else None; ``subwords`` are the same, as a search and a ``Translator`` use
    them. ``notes`` lists weights that loading skipped.
    """

    config: T5Config
    config_class = T5Config
    model_types = tuple(MODEL_TYPES)

    tokenizer: Tokenizer | None = None
    """The tokenizer from the model folder, of source and target; None if there is none."""

    tokenizer_config: Mapping[str, Any] | None = None
    """The fields of tokenizer_config.json, by which ``transformers`` loads the tokenizer; None if there is none."""

    generation_config: Mapping[str, Any] | None = None
    """The fields of generation_config.json, by which ``transformers`` generates; None if there is none."""

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        self.vocab_sizes = config.vocabulary, config.vocabulary
        self.pad_id, self.start_id = config.pad_id, config.start_id
        self.end_id = config.end_ids[0] if config.end_ids else NO_END
        self.encoder = T5Encoder(config)
        self.decoder_biases = make_biases(config, config.decoder_depth, bidirectional=False)
        self.decoder = nn.ModuleList(make_decoder_layer(config) for _ in range(config.decoder_depth))
        self.decoder_norm = RMSNorm(config.width, epsilon=config.epsilon)
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(config.width, config.vocabulary, bias=False)
        init_weights(self, config)
        nn.init.normal_(self.output.weight, std=float(config.deviation))
        self.tie()

    @property
    def parts(self) -> tuple[Model, ...]:
        """The encoder, which is a model of its own."""
        return (self.encoder,)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The ids of all tokens that end a target; the first, ``end_id``, also ends a source."""
        return self.config.end_ids

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
        output: HiddenStates = self.encoder(source, mask=mask)
        return output.hidden

    def start(self, source: Tensor, *, lengths: Tensor | None = None) -> T5State:
        """Encode ``source``, and return the decoder's initial state. See ``EncoderDecoder.start``."""
        caches, groups, mask = self._read_source(source, lengths)
        tables = compute_tables(self.decoder_biases, 1 - _FIRST_TABLE, 0)
        return T5State(caches, groups, tables, lengths, mask)

    def step(self, tokens: Tensor, state: T5State) -> tuple[Float[Tensor, "rows vocabulary"], T5State]:
        """Read ``tokens`` (rows,), and return the logits of the next token and the next state."""
        check_step(tokens, state, T5State, self.config.vocabulary)
        tables, farthest = state.tables, -state.length
        if farthest < tables[0].lowest:
            tables = compute_tables(self.decoder_biases, 2 * tables[0].lowest - 1, 0)
        biases = tables_of_layers(tuple(table.narrowed(farthest, 0) for table in tables), len(self.decoder))
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

    def tie(self) -> None:
        """Let the output layer share the matrix of the embedding, if the config says so."""
        if self.config.tied:
            self.output.weight = self.encoder.token_embedding.weight

    @classmethod
    def make_weight_names(cls, config: T5Config) -> WeightNames:
        """Make the table of the names of weights in a file; old files also name the embedding of each stack."""
        return WeightNames(
            (
                Row("shared", "encoder.token_embedding"),
                *encoder_rows(config, "encoder."),
                *_decoder_rows(config),
                Row("lm_head", "output"),
            ),
            ignored_patterns=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
            copies=dict.fromkeys(EMBEDDING_COPIES, EMBEDDING),
            tied_weights={"output.weight": "encoder.token_embedding.weight"} if config.tied else {},
        )

    @classmethod
    def class_of(cls, folder: ModelFolder) -> type[Model]:
        """The class of the model of a folder: ``T5Encoder`` if it has no decoder."""
        return cls if any(name.startswith("decoder.") for name in folder.stored) else T5Encoder

    @classmethod
    def read_stored_config(cls, folder: ModelFolder) -> T5Config:
        """Read the hyperparameters; a target begins and ends with the tokens of generation_config.json, if it has some.

        A target ends with the tokens of config.json as well.
        """
        config = T5Encoder.read_stored_config(folder)
        generation = read_generation_config(folder, config.vocabulary)
        if generation is None:
            return config
        folder.note(find_missing_special_ids(generation), find_ignored_fields(generation))
        # Sources end with the first end token, the one in config.json; a target ends with any of them.
        ends = dict.fromkeys([*config.end_ids, *read_end_ids(generation)])
        return replace(
            config,
            end_ids=tuple(ends),
            start_id=read_special_id(generation, "decoder_start_token_id", default=config.start_id),
        )

    @classmethod
    def check_layers(cls, folder: ModelFolder, config: T5Config, origins: Mapping[str, Origin]) -> None:
        """Raise CheckpointError unless the weights have the layers of both stacks."""
        del folder
        checkpoint_reader.check_layers(config.layers, origins, "encoder.layers")
        checkpoint_reader.check_layers(config.decoder_depth, origins, "decoder")

    def read_files(self, folder: ModelFolder) -> None:
        """Read the tokenizer, as subwords too, and what the folder says of generation.

        The output layer is tied if it has the numbers of the embedding: some files hold a shared matrix twice.
        """
        if self.config.scale_output and torch.equal(self.output.weight, self.encoder.token_embedding.weight):
            self.config = replace(self.config, tied=True)
            self.tie()
        self.encoder.read_files(folder)
        self.tokenizer = self.encoder.tokenizer
        self.subwords = _read_subwords(folder, self.tokenizer, self.end_id)
        self.tokenizer_config = folder.read_json(TOKENIZER_CONFIG_FILE)
        self.generation_config = folder.read_json(GENERATION_CONFIG_FILE)

    def folder_texts(self) -> dict[str, str]:
        """The files of the tokenizer and of generation, as texts by file name."""
        files = tokenizer_text(self.tokenizer)
        if self.generation_config is not None:
            files[GENERATION_CONFIG_FILE] = to_json_text(self.generation_config)
        return files | self._tokenizer_files()

    def _tokenizer_files(self) -> dict[str, str]:
        """The tokenizer files, as texts by file name; for new subwords such that ``transformers`` ends each text."""
        if self.subwords is not None and isinstance(self.subwords[0], Subwords):
            return transformers_files(
                self.subwords[0],
                pad_id=self.pad_id,
                start_id=self.target_start_id,
                end_id=self.end_id,
                max_tokens=self.max_tokens,
            )
        if self.tokenizer_config is None:
            return {}
        return {TOKENIZER_CONFIG_FILE: to_json_text(self.tokenizer_config)}

    def _decode(self, source: Tensor, target: Tensor, mask: Mask | None) -> Float[Tensor, "batch length width"]:
        """The decoder's hidden states for a known target, after the last norm."""
        check_ids("target ids", target, self.config.vocabulary)
        memory = self.encode(source, mask=mask)
        tokens = self._embed(target)
        tables = compute_tables(self.decoder_biases, 1 - target.shape[1], target.shape[1] - 1)
        for block, bias in zip(self._decoder_blocks, tables_of_layers(tables, len(self.decoder)), strict=True):
            tokens = block(tokens, memory, mask=masks.causal(), bias=bias, memory_mask=mask)
        hidden: Tensor = self.dropout(self.decoder_norm(tokens))
        return hidden

    def _embed(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(self.encoder.token_embedding(ids))
        return embedded

    def _compute_logits(self, hidden: Tensor) -> Tensor:
        """Compute the logits of the token after each position from hidden states after the last norm."""
        return linear_activation(hidden * self.config.width**-0.5 if self.config.scale_output else hidden, self.output)


def _decoder_rows(config: T5Config) -> tuple[Row, ...]:
    """Rows of the weight names of the decoder."""
    file, model = "decoder.block.{n}.layer.", "decoder.{n}."
    return (
        Row(file + "0.SelfAttention.relative_attention_bias", "decoder_biases.{n}"),
        *attention_rows(file + "0.SelfAttention.{side}", model + "attention", SIDES),
        Row(file + "0.layer_norm", model + "attention_residual.norm"),
        *attention_rows(file + "1.EncDecAttention.{side}", model + "cross_attention", SIDES),
        Row(file + "1.layer_norm", model + "cross_attention_residual.norm"),
        *feed_forward_rows(config, file + "2.DenseReluDense.", model + "feed_forward."),
        Row(file + "2.layer_norm", model + "feed_forward_residual.norm"),
        Row("decoder.final_layer_norm", "decoder_norm"),
    )


def _read_subwords(
    folder: ModelFolder, tokenizer: Tokenizer | None, end_id: int
) -> tuple[SentenceTokenizer, SentenceTokenizer] | None:
    """The tokenizer of a folder as subwords of sentences: those that regard trained, or of a pretrained model."""
    if tokenizer is None:
        return None
    if tokenizer.has_tokens(FIXED_TOKENS):
        return read_subword_files(folder.path)
    own = PretrainedSubwords(tokenizer, end_id=end_id)
    return own, own


@explain_arguments
def t5_small() -> T5:
    """T5 small, untrained: 6 layers of width 512. Raffel et al. 2020, section 3.7."""
    return T5(T5Config())


@explain_arguments
def t5_base() -> T5:
    """T5 base, untrained: 12 layers of width 768. Raffel et al. 2020, section 3.1.1."""
    return T5(T5Config(width=768, layers=12, heads=12, inner=3072))


@explain_arguments
def t5_large() -> T5:
    """T5 large, untrained: 24 layers of width 1,024. Raffel et al. 2020, section 3.7."""
    return T5(T5Config(width=1024, layers=24, heads=16, inner=4096))


@explain_arguments
def t5_1_1_small() -> T5:
    """T5 1.1 small, untrained, and so Flan-T5 small: 8 layers of width 512, gated GELU. Chung et al. 2022."""
    return T5(_gated_config(512, 8, 6, 1024))


@explain_arguments
def t5_1_1_base() -> T5:
    """T5 1.1 base, untrained, and so Flan-T5 base: 12 layers of width 768, gated GELU. Chung et al. 2022."""
    return T5(_gated_config(768, 12, 12, 2048))


@explain_arguments
def t5_1_1_large() -> T5:
    """T5 1.1 large, untrained, and so Flan-T5 large: 24 layers of width 1,024, gated GELU. Chung et al. 2022."""
    return T5(_gated_config(1024, 24, 16, 2816))


@explain_arguments
def mt5_small() -> T5:
    """mT5 small, untrained: T5 1.1 small with 250,112 tokens. Xue et al. 2021, section 3.2."""
    return T5(replace(_gated_config(512, 8, 6, 1024), vocabulary=250112, model_type="mt5"))


@explain_arguments
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
