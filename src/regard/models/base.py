"""The interfaces of models: encoders, decoders and encoder-decoders.

    Encoder           hidden_1 .. hidden_n = model(x_1 .. x_n)
    Decoder           logits of the token after y_1 .. y_t             one token per step, with a state
    EncoderDecoder    logits of the token after y_1 .. y_t, given x    a Decoder whose prompt is a source

The state of a decoder is passed in and returned, and its rows can be reordered. So a search works with any decoder.
The ids of special tokens are attributes of the model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import masks
from regard.arguments import explain_arguments
from regard.errors import OptionError
from regard.fields import repr_of_shapes
from regard.layers import DecoderBlock, DecoderCache, EncoderBlock
from regard.masks import Mask
from regard.models.beam_groups import BeamGroups
from regard.models.kinds import ENCODER, TRANSLATOR
from regard.models.model import Model, tokenizer_text
from regard.models.model_folder import FolderOrName, ModelFolder
from regard.recording import record
from regard.tensors import check_tensor
from regard.text.pooling import Pooling
from regard.text.sentence_tokenizer import SentenceTokenizer
from regard.text.subword_training import END_ID, PAD_ID, START_ID, UNKNOWN_ID
from regard.text.tokenizer import Tokenizer


class EncoderOutput(Protocol):
    """The minimum that the output of an encoder has."""

    @property
    def hidden(self) -> Float[Tensor, "batch length width"]:
        """Hidden states after the last layer, (batch, length, width)."""
        ...


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class HiddenStates:
    """The output of an encoder without a head.

    hidden  (batch, length, width)           hidden states after the last layer
    layers  layers + 1 of the same shape     the embedding, then each layer's output, the last one after the final norm
                                             and so equal to ``hidden``; None without ``keep_layers``
    """

    __repr__ = repr_of_shapes

    hidden: Float[Tensor, "batch length width"]
    layers: tuple[Float[Tensor, "batch length width"], ...] | None = None


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class SequenceOutput:
    """The output of an encoder-decoder for known targets.

    hidden  (batch, target length, width)         hidden states before the output layer
    logits  (batch, target length, vocabulary)    of the token after each position
    """

    __repr__ = repr_of_shapes

    hidden: Float[Tensor, "batch length width"]
    logits: Float[Tensor, "batch length vocabulary"]


class DecoderState(Protocol):
    """The state of a decoder between two steps, with one row for each sequence that is being written."""

    def reordered(self, entries: Int[Tensor, " rows"]) -> DecoderState:
        """Select the rows ``entries`` of the state, in that order; a row may be selected more than once."""
        ...


class Encoder(Model, ABC):
    """A model that reads token ids and returns a hidden state for each token."""

    kind = ENCODER
    layer_stack = "layers"

    is_causal: ClassVar[bool] = False
    """Whether a token attends to the tokens before it alone."""

    tokenizer: Tokenizer | None = None
    """The tokenizer from the model folder; None if there is none."""

    pooling: Pooling | None = None
    """How token vectors are pooled into a text vector; None if the model folder does not say."""

    @abstractmethod
    def forward(self, ids: Tensor, *, mask: Mask | None = None) -> EncoderOutput:
        """Compute the hidden states of token ids (batch, length).

        ``mask`` says which tokens may attend to which: for padded ids ``masks.padding(lengths)``. Raises ShapeError,
        DtypeError or OptionError for ids that do not fit.
        """

    @property
    def pad_id(self) -> int:
        """The id of the padding token."""
        return int(self.config.pad_id)

    @property
    def max_tokens(self) -> int | None:
        """The maximum length of a sequence, in tokens; None is no limit."""
        return int(self.config.max_length)

    @property
    def width(self) -> int:
        """The number of components of a hidden state."""
        return int(self.config.width)

    def read_files(self, folder: ModelFolder) -> None:
        """Read the tokenizer. Raises CheckpointError if it does not fit the vocabulary."""
        self.tokenizer = folder.read_tokenizer(
            pad_id=self.pad_id, limit=self.max_tokens, vocabulary=self.config.vocabulary
        )

    @classmethod
    def load(
        cls,
        folder_or_name: FolderOrName,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        weights: str | None = None,
        cache_format: str | None = None,
    ) -> Self:
        """Load a model as ``Model.load``; any encoder without its head, which takes time for each token.

        Of a T5 it is the encoder, of a CLIP the text tower.
        """
        model = super().load(folder_or_name, device=device, dtype=dtype, weights=weights, cache_format=cache_format)
        if cls is Encoder:
            model.remove_parts()
        return model

    def folder_texts(self) -> dict[str, str]:
        """The file of the tokenizer, as a text by file name."""
        return tokenizer_text(self.tokenizer)

    def remove_parts(self) -> None:
        """Remove the parts of a model that is used for its hidden states alone, such as a masked-language head."""


class Decoder(nn.Module, ABC):
    """A model that writes a sequence token by token, continuing a prompt in each row.

    ``end_id`` is the end token of a sequence. ``pad_id`` and ``start_id`` stand for no text, so no search writes them;
    None if the model has no such token.
    """

    end_id: int
    pad_id: int | None
    start_id: int | None

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The ids of all tokens that end a sequence; the first is ``end_id``."""
        return (self.end_id,)

    @property
    def unknown_id(self) -> int | None:
        """The id of the unknown token; None if there is none."""
        return None

    @property
    def depends_on_length(self) -> bool:
        """Whether only prompts of one length share a batch: positions are encoded otherwise in longer texts, or padding
        has an effect on a mechanism."""
        return False

    @abstractmethod
    def prefill(self, prompts: Tensor, *, lengths: Tensor | None = None) -> tuple[Int[Tensor, " batch"], Any]:
        """Read prompts, and return the first tokens (batch,) for ``step`` and the state before them.

        ``prompts`` (batch, length) are padded on the right if ``lengths`` (batch,) are given. The model continues the
        prompt; an encoder-decoder reads it as its source.
        """

    @abstractmethod
    def step(self, tokens: Tensor, state: Any) -> tuple[Float[Tensor, "rows vocabulary"], Any]:
        """Read ``tokens`` (rows,); return the logits of the next token and the next state, a ``DecoderState``."""

    @abstractmethod
    def max_new_tokens(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"] | None:
        """The number of positions left after prompts of these lengths, (batch,); None is no limit."""

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device


@final
class AttentionLayers(NamedTuple):
    """The attention layers of an encoder-decoder, each kind in order: within the source, within the target, and across.

    A layer of ``cross`` attends from the target to the source.
    """

    source: Sequence[nn.Module]
    target: Sequence[nn.Module]
    cross: Sequence[nn.Module]

    @property
    def alignment(self) -> int:
        """The number of the layer of ``cross`` that alignments are read from: the last but one.

        Its average over heads gives the best alignments of all layers: Garg et al. 2019, "Jointly learning to align and
        translate with Transformer models", table 2.
        """
        return max(0, len(self.cross) - 2)

    @property
    def alignment_layer(self) -> nn.Module:
        """The layer that alignments are read from."""
        return self.cross[self.alignment]


class EncoderDecoder(Decoder, Model, ABC):
    """A model that reads a source and writes a target.

    ``vocab_sizes`` are the vocabulary sizes of source and target; ``pad_id``, ``start_id`` and ``end_id`` are the
    padding token, the start token of a target and the end token.
    """

    kind = TRANSLATOR

    vocab_sizes: tuple[int, int]
    pad_id: int
    subwords: tuple[SentenceTokenizer, SentenceTokenizer] | None = None
    """The tokenizers of source and target; the same object twice if both share one vocabulary."""

    @property
    def unknown_id(self) -> int | None:
        """The id of the unknown token of a target, from its subwords.

        Without subwords it is the id of ``Subwords.train`` if the padding, start and end tokens are too, else None.
        """
        if self.subwords is not None:
            return self.subwords[1].unknown_id
        return UNKNOWN_ID if (self.pad_id, self.start_id, self.end_id) == (PAD_ID, START_ID, END_ID) else None

    @property
    def target_start_id(self) -> int:
        """``start_id``, by which every target begins. Raises OptionError if the model has no such token."""
        if self.start_id is None:
            raise OptionError(
                "the model has no token that begins a target, so it neither writes nor reads one",
                expected="start_id, the id of a token of the vocabulary",
                got="start_id=None",
                do="set decoder_start_token_id in config.json and generation_config.json as the model was trained",
            )
        return self.start_id

    @property
    def max_tokens(self) -> int | None:
        """The maximum length of a sequence, in tokens; None is no limit."""
        return None

    @property
    def attention_layers(self) -> AttentionLayers:
        """The attention layers by kind: by default the layers in the blocks of encoder and decoder."""
        blocks = [module for module in self.modules() if isinstance(module, EncoderBlock | DecoderBlock)]
        encoders = [block for block in blocks if isinstance(block, EncoderBlock)]
        decoders = [block for block in blocks if isinstance(block, DecoderBlock)]
        cross = [decoder.cross_attention for decoder in decoders if decoder.cross_attention is not None]
        return AttentionLayers(
            [encoder.attention for encoder in encoders], [decoder.attention for decoder in decoders], cross
        )

    @property
    def has_attention(self) -> bool:
        """Whether the model has cross-attention, and so ``cross_attention_weights``."""
        return True

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """The languages of source and target, from the metadata; None if training did not name them."""
        named = self.metadata.get("languages")
        if not isinstance(named, list) or len(named) != 2:
            return None, None
        source, target = (language if isinstance(language, str) else None for language in named)
        return source, target

    @property
    def prefix(self) -> str:
        """The text before each source, which names the task, from the metadata; "" if there is none."""
        prefix = self.metadata.get("prefix")
        return prefix if isinstance(prefix, str) else ""

    @abstractmethod
    def forward(self, source: Tensor, target: Tensor, *, mask: Mask | None = None) -> SequenceOutput:
        """Compute the logits of every position of known targets (teacher forcing).

        Args:
            source: ids (batch, source length).
            target: ids (batch, target length), the first of them ``start_id``.
            mask: which source tokens may be attended to: for padded ids ``masks.padding(lengths)``.

        Raises ShapeError, DtypeError or OptionError for ids that do not fit.
        """

    @abstractmethod
    def start(self, source: Tensor, *, lengths: Tensor | None = None) -> Any:
        """Read ``source`` (batch, source length), and return the state before the first token of the target.

        ``lengths`` (batch,) are the lengths of the sources, if some are padded on the right. The first call of ``step``
        takes ``start_id`` in each row.
        """

    @final
    def prefill(self, prompts: Tensor, *, lengths: Tensor | None = None) -> tuple[Int[Tensor, " batch"], Any]:
        """Read the sources, and return ``start_id`` for each, (batch,), and the state."""
        state = self.start(prompts, lengths=lengths)
        return torch.full((len(prompts),), self.target_start_id, device=prompts.device), state

    @final
    def max_new_tokens(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"] | None:
        """The number of positions after the start token, the same for every source; None is no limit."""
        return None if self.max_tokens is None else torch.full_like(lengths, self.max_tokens - 1)

    @abstractmethod
    def cross_attention_weights(
        self, source: Tensor, target: Tensor, *, mask: Mask | None = None
    ) -> Float[Tensor, "batch length source"]:
        """Cross-attention weights for every position of known targets: (batch, target length, source length).

        Alignments are read from these weights; several heads are averaged. Arguments as for ``forward``. Raises
        RefusedError for a model without attention.
        """

    @abstractmethod
    def step_with_weights(
        self, tokens: Tensor, state: Any
    ) -> tuple[Float[Tensor, "rows vocabulary"], Any, Float[Tensor, "rows source"]]:
        """Like ``step``, and also return the step's cross-attention weights (rows, source length). Slower."""


class BlockDecoder(EncoderDecoder, ABC):
    """An encoder-decoder whose ``decoder`` is a stack of ``DecoderBlock``, each with cross-attention."""

    decoder: nn.ModuleList

    @abstractmethod
    def encode(self, source: Tensor, *, mask: Mask | None = None) -> Float[Tensor, "batch length width"]:
        """Encode ``source`` (batch, length) into the memory that the decoder attends to, (batch, length, width)."""

    @abstractmethod
    def _decode(self, source: Tensor, target: Tensor, mask: Mask | None) -> Float[Tensor, "batch length width"]:
        """The decoder's hidden states for a known target, before the output layer."""

    def cross_attention_weights(
        self, source: Tensor, target: Tensor, *, mask: Mask | None = None
    ) -> Float[Tensor, "batch length source"]:
        """The cross-attention weights of one layer, averaged over heads: (batch, target length, source length).

        The layer is ``attention_layers.alignment_layer``.
        """
        with torch.no_grad(), record(self.attention_layers.alignment_layer) as calls:
            self._decode(source, target, mask)
            return calls[-1].weights().mean(dim=1)

    def step_with_weights(
        self, tokens: Tensor, state: Any
    ) -> tuple[Float[Tensor, "rows vocabulary"], Any, Float[Tensor, "rows source"]]:
        """Like ``step``, and also return the weights. See ``EncoderDecoder.step_with_weights``."""
        with record(self.attention_layers.alignment_layer) as calls:
            logits, following = self.step(tokens, state)
            return logits, following, state.groups.queries_to_rows(calls[-1].weights().mean(dim=1))[:, 0]

    def _read_source(
        self, source: Tensor, lengths: Tensor | None
    ) -> tuple[tuple[DecoderCache, ...], BeamGroups, Mask | None]:
        """Encode the source; return the caches of the layers, the rows of each source, and the mask of its padding."""
        if lengths is not None:
            check_tensor("lengths", lengths, "a tensor of integers (batch,)", do="torch.tensor(lengths)")
        mask = None if lengths is None else masks.padding(lengths)
        memory = self.encode(source, mask=mask)
        caches = tuple(block.empty_cache(memory) for block in self._decoder_blocks)
        return caches, BeamGroups.one_per_row(len(source), source.device), mask

    @property
    def _decoder_blocks(self) -> Sequence[DecoderBlock]:
        """The layers of the decoder, cast to their type."""
        return cast("Sequence[DecoderBlock]", self.decoder)
