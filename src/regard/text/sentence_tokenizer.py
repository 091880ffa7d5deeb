"""The interface of the tokenizers that encoder-decoders read and write sentences with.

    Subwords             trained here: no text can contain a special token, and placeholders are tokens of their own
    PretrainedSubwords   tokenizer.json of a model of another origin, such as a T5

A sentence becomes ids without its end token, which the model adds, and ids become a sentence; each token belongs to a
word of the sentence, so that attention between tokens can be shown between words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, final

from regard.text.words import Splitter, word_spans


@final
class Piece(NamedTuple):
    """A piece of a text, its space included, and the index of its word, from 0; None for special tokens."""

    text: str
    word: int | None


class SentenceTokenizer(ABC):
    """A tokenizer of sentences, both ways."""

    has_placeholders: bool
    """Whether the vocabulary has placeholders, which replace strings to be copied, such as %s."""

    unknown_id: int | None
    """The id of the unknown token; None if there is none."""

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """Vocabulary size: the number of different tokens."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text as ids, without the end token; a blank text has none.

        Raises DataError for a text with lone surrogates.
        """

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to a text. Special tokens are dropped."""

    @abstractmethod
    def pieces_of(self, ids: Sequence[int], split: Splitter = word_spans) -> list[Piece]:
        """Return the pieces of these ids, with the index of the word that each belongs to.

        Words are found by ``split``; words that share a piece count as one. ``words_of`` returns their texts.
        """

    @abstractmethod
    def words_of(self, ids: Sequence[int], split: Splitter = word_spans) -> tuple[str, ...]:
        """Return the texts of the words that ``pieces_of`` numbers."""

    @abstractmethod
    def to_json(self) -> str:
        """Return the contents of a ``tokenizer.json``."""
