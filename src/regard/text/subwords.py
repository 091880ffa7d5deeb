"""Text to subwords and back, for translation, over the ``tokenizers`` library.

    "Two lamps"  ->  ids 312 1871 281  ->  " Two" " lamp" "s"  ->  "Two lamps"
                     of words 0   1    1

    decode(encode(text)) == normalize_text(text)     for every text: whatever is no piece becomes its UTF-8 bytes

How the pieces are learnt: ``subword_training``. Nothing in a text can become a special token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import NamedTuple, final

import tokenizers

from regard.errors import DataError, check_kind, short_repr
from regard.text.subword_file import read_subwords
from regard.text.subword_training import BYTE_TOKENS, SPECIAL_TOKENS, normalize_text, normalize_texts, train_tokenizer
from regard.text.words import Splitter, group_into_words, word_spans

_TOKEN_BYTES = dict.fromkeys(SPECIAL_TOKENS, b"") | {token: bytes([byte]) for byte, token in enumerate(BYTE_TOKENS)}
"""The bytes of tokens that do not stand for their own name."""


@final
class Piece(NamedTuple):
    """A piece of a text, its space included, and the word that it is of, counted from 0; None for special tokens."""

    text: str
    word: int | None


@final
class Subwords:
    """Subwords of one language, or of two together. Made by ``train`` or ``from_file``.

    ``pad_id``, ``unknown_id``, ``start_id`` and ``end_id`` are the ids of the special tokens: 0 to 3 for what ``train``
    made, and what a file says for others.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        # Texts come normalized, by Python, which takes half the time.
        self._encoder = tokenizers.Tokenizer(backend.model)
        self._encoder.pre_tokenizer = backend.pre_tokenizer
        ids = backend.get_vocab()
        self.pad_id, self.unknown_id, self.start_id, self.end_id = (ids[token] for token in SPECIAL_TOKENS)
        self._pieces = sorted(ids, key=ids.__getitem__)
        self._bytes = [_TOKEN_BYTES.get(piece, piece.encode()) for piece in self._pieces]

    @classmethod
    def train(
        cls, texts: Iterable[str], *, size: int = 8000, algorithm: str = "bpe", coverage: float = 1.0
    ) -> Subwords:
        """Learn subwords. The same texts give the same subwords, to the bit.

        Args:
            texts: of the language, or of both; kept in memory while it learns.
            size: of the vocabulary, special tokens, bytes and placeholders included. It is lower where the texts do not
                hold so many different pieces.
            algorithm: "bpe" or "unigram".
            coverage: the part of all characters, counted as often as they come, that are of the vocabulary; the rarest
                ones beyond are written as bytes. A value such as 0.9995 suits large or unclean texts.

        Raises OptionError for an unknown algorithm or a size that does not hold all characters, DataError for texts
        without any, MissingPackageError for "unigram" without ``sentencepiece``.
        """
        return cls(train_tokenizer(texts, size=size, algorithm=algorithm, coverage=coverage))

    @classmethod
    def from_file(cls, path: str | Path) -> Subwords:
        """Read a ``tokenizer.json`` that ``to_json`` wrote. Raises CheckpointError for any other file."""
        return cls(read_subwords(path))

    def to_json(self) -> str:
        """The contents of a ``tokenizer.json``."""
        return self._backend.to_str(pretty=True)

    @property
    def vocabulary(self) -> int:
        """Number of different tokens."""
        return len(self._pieces)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, no special ones added. Raises DataError for a text that is not Unicode text."""
        plain = [f" {text}" if text else "" for text in normalize_texts(texts)]
        return [found.ids for found in self._encoder.encode_batch_fast(plain, add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, normalized, so one line. Special tokens are dropped; bytes of no character are U+FFFD.

        Raises DataError for an id that is not of the vocabulary.
        """
        return normalize_text(b"".join(self._ids_to_bytes(ids)).decode("utf-8", "replace"))

    def decode_batch(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of ids."""
        return [self.decode(ids) for ids in batch]

    def pieces(self, text: str, split: Splitter = word_spans) -> list[Piece]:
        """The pieces of a text, and the word that each is of. See ``pieces_of``."""
        return self.pieces_of(self.encode([text])[0], split)

    def pieces_of(self, ids: Sequence[int], split: Splitter = word_spans) -> list[Piece]:
        """The pieces with these ids, and the word that each is of.

        Words are those of ``split``, by default ``words.word_spans``; where one piece covers several, as it may in
        Chinese, they are one word. ``words_of`` has their texts.
        """
        numbers, _ = group_into_words(self._ids_to_bytes(ids), split)
        return [Piece(self._pieces[one], word) for one, word in zip(ids, numbers, strict=True)]

    def words_of(self, ids: Sequence[int], split: Splitter = word_spans) -> tuple[str, ...]:
        """The words that ``pieces_of`` counts."""
        return group_into_words(self._ids_to_bytes(ids), split)[1]

    def _is_id(self, number: object) -> bool:
        return isinstance(number, Integral) and 0 <= int(number) < len(self._bytes)

    def _ids_to_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """What each id writes."""
        check_kind("ids", ids, Sequence, do="tensor.tolist() gives the ids of a tensor")
        wrong = next((at for at, one in enumerate(ids) if not self._is_id(one)), None)
        if wrong is not None:
            raise DataError(
                "an id is not of this vocabulary",
                expected=f"ids from 0 to {len(self._bytes) - 1}",
                got=short_repr(ids[wrong]),
                do="decode with the subwords that the model was trained with",
            )
        return [self._bytes[one] for one in ids]
