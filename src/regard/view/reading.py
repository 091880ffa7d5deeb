"""A reading: everything the views show of one text, or of a sentence and its translation, as plain NumPy arrays.

A text that looks at itself is a ``Reading``. A translation is a ``PairReading``: the target looks at the source, and
each of the two at itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float32

from regard.errors import DataError, ShapeError
from regard.view.attention_layer import AttentionLayer

UNKNOWN_TOKENS = frozenset(("[UNK]", "<unk>"))  # the vocabularies' names for what they do not hold

ALONE, ALIGNMENT, SOURCE, TARGET = "alone", "alignment", "source", "target"
"""Which attention a reading is of: of a text alone; of a target to its source; within the source; within the target."""


@final
@dataclass(frozen=True)
class Tokens:
    """The tokens of one text, in reading order.

    ``spans`` are (start, end) in characters of ``text``; a special token such as [CLS] has an empty span. ``words`` are
    the texts of the words and the tokens each is made of, where the tokenizer knows them; None finds them by spans.
    Raises ShapeError where pieces, spans and special differ in number.
    """

    text: str
    pieces: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    special: tuple[bool, ...]
    words: tuple[tuple[str, tuple[int, ...]], ...] | None = None

    def __post_init__(self) -> None:
        if not len(self.pieces) == len(self.spans) == len(self.special):
            raise ShapeError(
                "pieces, spans and special describe different numbers of tokens",
                expected=f"{len(self.pieces)} of each",
                got=f"{len(self.spans)} spans and {len(self.special)} special flags",
                do="give one span and one flag for every token",
            )

    def __len__(self) -> int:
        return len(self.pieces)

    def surface(self, token: int) -> str:
        """The token as the text writes it; the vocabulary's name where the text has nothing there."""
        start, end = self.spans[token]
        return self.pieces[token] if self.special[token] or start >= end else self.text[start:end]

    def is_unknown(self, token: int) -> bool:
        """Whether the vocabulary does not hold the token, so that the model reads it like any other such."""
        return self.pieces[token] in UNKNOWN_TOKENS and not self.special[token]


@final
@dataclass(frozen=True, eq=False)
class Reading:
    """One text as one model read it, by one kind of attention.

    ``keys`` are the tokens looked at; None means the text looks at itself. ``hidden`` is (layers + 1, tokens, width),
    the embedding first; None where it was not kept. ``dropped`` counts the tokens that truncation left out.
    Raises ShapeError where layers and tokens disagree, DataError where a hidden state is not finite.
    """

    tokens: Tokens
    layers: tuple[AttentionLayer, ...]
    hidden: Float32[np.ndarray, "_layers _tokens _width"] | None = None
    keys: Tokens | None = None
    dropped: int = 0

    def __post_init__(self) -> None:
        expected = (len(self.tokens), len(self.key_tokens))
        for layer in self.layers:
            got = (layer.queries, layer.keys)
            if got != expected:
                raise ShapeError(
                    f"{layer.name} does not fit its tokens",
                    expected=f"{expected[0]} queries and {expected[1]} keys",
                    got=f"{got[0]} queries and {got[1]} keys",
                    do="cut padding from the arrays and the tokens alike",
                )
        if self.hidden is not None:
            _check_hidden(self.hidden, len(self.tokens))

    @property
    def key_tokens(self) -> Tokens:
        """The tokens that are looked at."""
        return self.tokens if self.keys is None else self.keys

    @property
    def heads(self) -> int:
        """Number of heads in all layers together."""
        return sum(layer.heads for layer in self.layers)

    @property
    def title(self) -> str:
        """The text."""
        return self.tokens.text

    @property
    def attentions(self) -> dict[str, Reading]:
        """By kind: this one."""
        return {ALONE if self.keys is None else ALIGNMENT: self}


@final
@dataclass(frozen=True, eq=False)
class PairReading:
    """A sentence and its translation as one translator saw them.

    ``alignment`` is the target's look at the source: a row is named after the token that was written in its step.
    ``alignment_layer`` is the number of its layer that alignments are read from, averaged over heads. ``source`` and
    ``target`` look at themselves; None for a model that has no such layers. ``forced`` says that the target was given,
    not found by the model.
    """

    alignment: Reading
    alignment_layer: int
    source: Reading | None
    target: Reading | None
    forced: bool

    @property
    def title(self) -> str:
        """Both texts."""
        return f"{self.alignment.key_tokens.text} → {self.alignment.tokens.text}"

    @property
    def attentions(self) -> dict[str, Reading]:
        """By kind: the alignment first."""
        found = {ALIGNMENT: self.alignment, SOURCE: self.source, TARGET: self.target}
        return {kind: reading for kind, reading in found.items() if reading is not None}


def _check_hidden(hidden: Float32[np.ndarray, "_layers _tokens _width"], tokens: int) -> None:
    if hidden.shape[1] != tokens:
        raise ShapeError(
            "hidden states do not fit the tokens",
            expected=f"{tokens} vectors a layer",
            got=f"{hidden.shape[1]}",
            do="cut padding from the hidden states too",
        )
    if not np.isfinite(hidden).all():
        raise DataError(
            "hidden states hold numbers that are not finite",
            expected="finite hidden states",
            got="NaN or Inf",
            do="check the model's weights",
        )
