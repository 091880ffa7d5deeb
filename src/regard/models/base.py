"""The interfaces of models: what reads tokens, what writes them, and what writes them from a source.

    Encoder           hidden_1 .. hidden_n = model(x_1 .. x_n)
    Decoder           logits of the token after y_1 .. y_t             a step of one token, and a state
    EncoderDecoder    logits of the token after y_1 .. y_t, given x    a Decoder whose prompt is a source

The state of a decoder is passed in and returned, and its rows can be reordered. So a search asks any of them for the
next token, and knows no model. Which tokens are special, the model says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.masks import Mask
from regard.text.pooling import Pooling
from regard.text.subword_training import END_ID, PAD_ID, START_ID, UNKNOWN_ID
from regard.text.subwords import Subwords
from regard.text.tokenizer import Tokenizer


class EncoderOutput(Protocol):
    """What an encoder returns, whatever else is in it."""

    @property
    def hidden(self) -> Float[Tensor, "batch length width"]:
        """A vector of each token, after the last layer."""
        ...


@final
@dataclass(frozen=True, eq=False)
class SequenceOutput:
    """What an encoder-decoder returns for whole targets.

    hidden  (batch, target length, width)         before the vocabulary
    logits  (batch, target length, vocabulary)    of the token that follows each
    """

    hidden: Float[Tensor, "batch length width"]
    logits: Float[Tensor, "batch length vocabulary"]

    def __repr__(self) -> str:
        return f"SequenceOutput(hidden {tuple(self.hidden.shape)}, logits {tuple(self.logits.shape)})"


class DecoderState(Protocol):
    """What a decoder remembers between two steps, one row for each sequence that is being written."""

    def reordered(self, entries: Int[Tensor, " rows"]) -> DecoderState:
        """The state of the given rows, in that order; a row may come more than once."""
        ...


class Encoder(nn.Module, ABC):
    """A model that reads token ids and returns a vector of each token."""

    config: Any
    """The numbers that it is built from."""

    tokenizer: Tokenizer | None = None
    """What turns text into ids; it comes with a loaded model."""

    pooling: Pooling | None = None
    """How the vectors of tokens become one of a text, where its folder says so."""

    notes: tuple[str, ...] = ()
    """What loading left out, in words."""

    @abstractmethod
    def forward(self, ids: Tensor, *, mask: Mask | None = None) -> EncoderOutput:
        """Read token ids (batch, length); ``mask`` says who may attend: for padded ids ``masks.padding(lengths)``.

        Raises ShapeError, DtypeError or OptionError for ids that do not fit.
        """

    @property
    @abstractmethod
    def pad_id(self) -> int:
        """The token that fills up the shorter texts of a batch."""

    @property
    @abstractmethod
    def max_tokens(self) -> int | None:
        """The longest sequence that there are positions for; None is any."""

    @abstractmethod
    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder that ``regard.load`` reads. Raises OutputExistsError where it exists, unless ``overwrite``."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device


class Decoder(nn.Module, ABC):
    """A model that writes a sequence token by token, after a prompt of each row.

    ``end_id`` ends a sequence. ``pad_id`` and ``start_id`` are tokens that stand for no text, None where there are
    none: no search writes them.
    """

    end_id: int
    pad_id: int | None
    start_id: int | None

    @property
    def unknown_id(self) -> int | None:
        """The token that stands for unknown text; None for no token."""
        return None

    @abstractmethod
    def prefill(self, prompts: Tensor, *, lengths: Tensor | None = None) -> tuple[Int[Tensor, " batch"], Any]:
        """The first tokens (batch,) to give to ``step``, and the state before them.

        ``prompts`` (batch, length) are padded on the right where ``lengths`` (batch,) are given. A prompt is what the
        model goes on from; an encoder-decoder reads it as its source.
        """

    @abstractmethod
    def step(self, tokens: Tensor, state: Any) -> tuple[Float[Tensor, "rows vocabulary"], Any]:
        """The logits of what follows ``tokens`` (rows,), and the next state, which is a ``DecoderState``."""

    @abstractmethod
    def max_new_tokens(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"] | None:
        """How many tokens there are positions for after prompts of these lengths; None is any number."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device


class EncoderDecoder(Decoder, ABC):
    """A model that writes a target while it looks at a source.

    ``vocab_sizes`` count the tokens of source and target; ``pad_id`` fills up the shorter sequences of a batch,
    ``start_id`` begins a target, ``end_id`` ends it.
    """

    config: Any
    """The numbers that it is built from."""

    vocab_sizes: tuple[int, int]
    pad_id: int
    start_id: int
    subwords: tuple[Subwords, Subwords] | None = None
    """What turns source and target into ids; the same object twice where both share one vocabulary."""

    metadata: Mapping[str, Any] = MappingProxyType({})
    """How the model came about: languages, data, scores."""

    @property
    def unknown_id(self) -> int | None:
        """The token of a target that stands for unknown text, as its subwords say.

        Without subwords it is that of ``Subwords.train`` where padding, start and end are; else None, for no token.
        """
        if self.subwords is not None:
            return self.subwords[1].unknown_id
        return UNKNOWN_ID if (self.pad_id, self.start_id, self.end_id) == (PAD_ID, START_ID, END_ID) else None

    @property
    def max_tokens(self) -> int | None:
        """The longest sequence that there are positions for; None is any."""
        return None

    @property
    def has_attention(self) -> bool:
        """Whether the target looks at the source by attention, so that there are ``cross_attention_weights``."""
        return True

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Of source and target, as far as they were named when it was trained."""
        named = self.metadata.get("languages")
        if not isinstance(named, list) or len(named) != 2:
            return None, None
        source, target = (one if isinstance(one, str) else None for one in named)
        return source, target

    @abstractmethod
    def forward(self, source: Tensor, target: Tensor, *, mask: Mask | None = None) -> SequenceOutput:
        """Logits for every place of a target that is known.

        Args:
            source: ids (batch, source length).
            target: ids (batch, target length), the first of them ``start_id``.
            mask: who may attend in the source: for padded ids ``masks.padding(lengths)``.

        Raises ShapeError, DtypeError or OptionError for ids that do not fit.
        """

    @abstractmethod
    def start(self, source: Tensor, *, lengths: Tensor | None = None) -> Any:
        """The state after reading ``source`` (batch, source length), before the first token is written.

        ``lengths`` (batch,) are those of the sources, where some are padded on the right. The first tokens of ``step``
        are then ``start_id``.
        """

    @final
    def prefill(self, prompts: Tensor, *, lengths: Tensor | None = None) -> tuple[Int[Tensor, " batch"], Any]:
        """``start_id`` for each source, and the state after reading the sources."""
        state = self.start(prompts, lengths=lengths)
        return torch.full((len(prompts),), self.start_id, device=prompts.device), state

    @final
    def max_new_tokens(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"] | None:
        """As many as there are positions for behind the start, whatever the source."""
        return None if self.max_tokens is None else torch.full_like(lengths, self.max_tokens - 1)

    @abstractmethod
    def cross_attention_weights(
        self, source: Tensor, target: Tensor, *, mask: Mask | None = None
    ) -> Float[Tensor, "batch length source"]:
        """How the source was weighed when the token after each place of a known target was written.

        The weights that an alignment is read from: where there are several heads, their average. Arguments as for
        ``forward``. Raises RefusedError for a model without attention.
        """

    @abstractmethod
    def step_with_weights(
        self, tokens: Tensor, state: Any
    ) -> tuple[Float[Tensor, "rows vocabulary"], Any, Float[Tensor, "rows source"]]:
        """``step``, and the ``cross_attention_weights`` in it. Slower than ``step``."""

    @abstractmethod
    def save(self, folder: str | Path, *, overwrite: bool = False, keep_others: bool = False) -> None:
        """Write a folder that ``regard.load`` reads; it appears complete or not at all.

        Raises OutputExistsError where it exists, unless ``overwrite``; and where it then holds what is not of a model,
        unless ``keep_others``, which leaves that in the folder.
        """
