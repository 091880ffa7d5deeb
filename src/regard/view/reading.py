"""Reading: all data that the views show for one text, or for a sentence and its translation, as NumPy arrays.

A ``Reading`` is one text or one kind of attention. A ``PairReading`` is a translation: attention of the target to the
source, and of each of the two to itself.

The display of tokens that share a span of the text.

A tokenizer gives several tokens the span of the character that they were made from:

    the marker before the first word     "▁" "7"               of "7"       ␣ 7
    the bytes of a character             "æ" "¼" "¢"           of "漢"      <0xE6> <0xBC> <0xA2>
    a character that it spells out       "1" "⁄" "2"           of "½"       1 ⁄ 2

A byte-level vocabulary names each byte by a letter (Radford et al. 2019, GPT-2); others name it <0xE6>.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import final

import numpy as np
from jaxtyping import Float32

from regard.arguments import explain_arguments
from regard.chinese_words import ChineseWords
from regard.classification.classifier import THRESHOLD
from regard.errors import DataError, ShapeError
from regard.fields import repr_of_fields
from regard.language import translate
from regard.view.attention_layer import AttentionLayer

UNKNOWN_TOKENS = frozenset(("[UNK]", "<unk>"))  # names of the unknown token in vocabularies

_WHITE_SPACE = {"\n": "↵", "\r": "↵", "\t": "⇥"}

ALONE, ALIGNMENT, SOURCE, TARGET = "alone", "alignment", "source", "target"
"""Kinds of attention: within a text alone; from target to source; within the source; within the target."""


def kind_label(kind: str) -> str:
    """A kind of attention of a translation, as views name it."""
    names = {
        ALIGNMENT: translate("Cross-attention"),
        SOURCE: translate("Source self-attention"),
        TARGET: translate("Target self-attention"),
    }
    return names[kind]


@final
@explain_arguments
@dataclass(frozen=True)
class Tokens:
    """The tokens of one text, in reading order.

    ``spans`` are (start, end) in characters of ``text``; a special token such as [CLS] has an empty span. ``words`` are
    the texts of the words and the numbers of their tokens, if the tokenizer knows them; with None, words are found by
    their spans, and Chinese ones as ``chinese_words`` says: "jieba", "characters" or "spaces"; None is jieba where it
    is installed, else characters. Raises ShapeError if pieces, spans and special differ in number, or a span is outside
    of the text.
    """

    __repr__ = repr_of_fields

    text: str
    pieces: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    special: tuple[bool, ...]
    words: tuple[tuple[str, tuple[int, ...]], ...] | None = None
    chinese_words: ChineseWords | None = None

    def __post_init__(self) -> None:
        if not len(self.pieces) == len(self.spans) == len(self.special):
            raise ShapeError(
                "pieces, spans and special describe different numbers of tokens",
                expected=f"{len(self.pieces)} of each",
                got=f"{len(self.spans)} spans and {len(self.special)} special flags",
                do="give one span and one flag for every token",
            )
        numbers = {number for _, own in self.words or () for number in own}
        if not numbers <= set(range(len(self.pieces))):
            raise ShapeError(
                "a word has a token that the text does not have",
                expected=f"numbers of tokens from 0 to {len(self.pieces) - 1}",
                got=f"{min(numbers)} to {max(numbers)}",
                do="give each word the numbers of its tokens",
            )
        for piece, (start, end) in zip(self.pieces, self.spans, strict=True):
            if not 0 <= start <= end <= len(self.text):
                raise ShapeError(
                    f"the span of token {piece!r} is not a part of the text",
                    expected=f"0 <= start <= end <= {len(self.text)}",
                    got=f"({start}, {end})",
                    do="give (start, end) in characters of the text, and an empty span for a special token",
                )

    def __len__(self) -> int:
        return len(self.pieces)

    def surface(self, token: int) -> str:
        """The token's text in the original spelling; white space as symbols, its vocabulary name for an empty span.

        Tokens that share a span have names of their own (``shared_spans``).
        """
        if self.special[token]:
            return self.pieces[token]
        start, end = self.spans[token]
        if start < end:
            first, last = token, token + 1
            while first > 0 and self.spans[first - 1] == (start, end):
                first -= 1
            while last < len(self) and self.spans[last] == (start, end):
                last += 1
            name = name_in_shared_span(self.pieces[first:last], token - first, self.text[start:end])
            if name is not None:
                return name
        return self.surface_of(token, token)

    def surface_of(self, first: int, last: int) -> str:
        """The text of the tokens ``first`` to ``last``, as ``surface`` does."""
        start, end = self.spans[first][0], self.spans[last][1]
        return _show_white_space(self.text[start:end]) if start < end else self.pieces[first]

    def is_unknown(self, token: int) -> bool:
        """Whether the token is outside the vocabulary, so that the model reads it as the unknown token."""
        return self.pieces[token] in UNKNOWN_TOKENS and not self.special[token]


def _show_white_space(text: str) -> str:
    """A text of white space alone as symbols that can be seen; any other text unchanged."""
    return text if text.strip() else "".join(_WHITE_SPACE.get(character, "␣") for character in text)


@final
@explain_arguments
@dataclass(frozen=True)
class Answer:
    """The answer of a classifier to a text: the probabilities of its labels, the most probable first.

    ``several`` says whether a text may have several labels. ``pooling`` is "cls" if the answer is computed from the
    first token, and "mean" if it is computed from the mean of all tokens.
    """

    probabilities: tuple[tuple[str, float], ...]
    several: bool
    pooling: str

    @property
    def has_label(self) -> bool:
        """Whether the text has a label: if it may have several, it has all with a probability of at least 1/2."""
        return not self.several or self.probabilities[0][1] >= THRESHOLD


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class Reading:
    """One kind of attention of one model over one text.

    ``keys`` are the key tokens; None means that the text attends to itself. ``hidden`` is (layers + 1, tokens, width),
    the embedding first; None if it was not recorded. ``dropped`` counts the tokens that truncation removed. ``answer``
    is the answer of a classifier, else None. ``sink`` is the number of a token that views keep apart: many heads of a
    decoder put most of their weight on the first token when they find nothing relevant (Xiao et al. 2024, "Efficient
    streaming language models with attention sinks"). Raises ShapeError if layers and tokens differ in length, DataError
    if a hidden state is not finite.
    """

    __repr__ = repr_of_fields

    tokens: Tokens
    layers: tuple[AttentionLayer, ...]
    hidden: Float32[np.ndarray, "_layers _tokens _width"] | None = None
    keys: Tokens | None = None
    dropped: int = 0
    answer: Answer | None = None
    sink: int | None = None

    def __post_init__(self) -> None:
        expected = (len(self.tokens), len(self.key_tokens))
        for layer in self.layers:
            got = (layer.queries, layer.keys)
            if got != expected:
                raise ShapeError(
                    f"{layer.name or 'the layer'} does not match its tokens",
                    expected=f"{expected[0]} queries and {expected[1]} keys",
                    got=f"{got[0]} queries and {got[1]} keys",
                    do="cut padding from the arrays and the tokens alike",
                )
        if self.hidden is not None:
            _check_hidden(self.hidden, len(self.tokens))

    @property
    def key_tokens(self) -> Tokens:
        """The key tokens: ``keys``, or the text's own tokens."""
        return self.tokens if self.keys is None else self.keys

    @property
    def heads(self) -> int:
        """Number of heads in all layers together."""
        return sum(layer.heads for layer in self.layers)

    @property
    def title(self) -> str:
        """The text, as the title of the reading."""
        return self.tokens.text

    @property
    def is_empty(self) -> bool:
        """Whether there is no layer to show."""
        return not self.layers

    @property
    def attentions(self) -> dict[str, Reading]:
        """This reading, by its kind of attention."""
        return {ALONE if self.keys is None else ALIGNMENT: self}


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class PairReading:
    """The attention of one translator over a sentence and its translation.

    ``alignment`` is the attention of the target to the source: a row is named after the token that its step wrote.
    ``alignment_layer`` is the number of its layer whose average over heads gives the alignments. ``source`` and
    ``target`` are self-attention; None for a model without such layers. ``forced`` is True if the target was passed in,
    False if the model translated.
    """

    __repr__ = repr_of_fields

    alignment: Reading
    alignment_layer: int
    source: Reading | None
    target: Reading | None
    forced: bool

    @property
    def title(self) -> str:
        """Source and target, as the title of the reading."""
        return f"{self.alignment.key_tokens.text} → {self.alignment.tokens.text}"

    @property
    def is_empty(self) -> bool:
        """Whether there is a kind of attention without a layer to show."""
        return any(reading.is_empty for reading in self.attentions.values())

    @property
    def attentions(self) -> dict[str, Reading]:
        """The readings by their kind of attention, the alignment first."""
        readings = {ALIGNMENT: self.alignment, SOURCE: self.source, TARGET: self.target}
        return {kind: reading for kind, reading in readings.items() if reading is not None}


def _check_hidden(hidden: Float32[np.ndarray, "_layers _tokens _width"], tokens: int) -> None:
    if hidden.shape[1] != tokens:
        raise ShapeError(
            "hidden states do not match the tokens",
            expected=f"{tokens} vectors per layer",
            got=f"{hidden.shape[1]}",
            do="cut padding from the hidden states too",
        )
    if not np.isfinite(hidden).all():
        raise DataError(
            "hidden states contain numbers that are not finite",
            expected="finite hidden states",
            got="NaN or Inf",
            do="check the model's weights",
        )


_SPACE = "␣"
"""Display of a token that is a single space."""
_MARKERS = " ▁Ġ"
_BYTE = re.compile(r"(?:<0x[0-9A-F]{2}>)+")


def name_in_shared_span(pieces: Sequence[str], token: int, text: str) -> str | None:
    """The name of one of the ``pieces`` that share the span of ``text``; None if the text itself can be shown."""
    piece = pieces[token]
    if text.strip() and piece and not piece.strip(_MARKERS):
        return _SPACE
    words = [name for name in pieces if name.strip(_MARKERS)]
    if len(words) < 2:
        return None
    if _BYTE.fullmatch(piece):
        return piece
    found = [_bytes_of(name) for name in pieces]
    joined = b"".join(data or b"" for data in found).strip()
    if None not in found and not joined.isascii() and joined in text.encode():  # a part of it, if the text was cut
        return "".join(f"<0x{byte:02X}>" for byte in found[token] or b"")
    return piece.strip(_MARKERS).removeprefix("##") or piece


def _bytes_of(piece: str) -> bytes | None:
    """The bytes that a piece of a byte-level vocabulary stands for; None for another piece."""
    letters = _byte_of_letter()
    return bytes(letters[letter] for letter in piece) if all(letter in letters for letter in piece) else None


@cache
def _byte_of_letter() -> dict[str, int]:
    """The byte that each letter stands for: itself where it can be seen, else the next letter from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + number): byte for number, byte in enumerate(hidden)}
