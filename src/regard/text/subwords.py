"""Subword tokenization for translation, both ways, on top of the ``tokenizers`` library.

    "Two lamps"  ->  ids 312 1871 281  ->  " Two" " lamp" "s"  ->  "Two lamps"
                     of words 0   1    1

    decode(encode(text)) == normalize_text(text)     for every text: unknown characters become UTF-8 bytes

Training is in ``subword_training``. No text can contain a special token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import final

import tokenizers

from regard.errors import DataError, check_kind, short_repr
from regard.text.sentence_tokenizer import Piece, SentenceTokenizer
from regard.text.subword_file import read_subwords
from regard.text.subword_training import BYTE_TOKENS, SPECIAL_TOKENS, normalize_text, normalize_texts, train_tokenizer
from regard.text.words import Splitter, group_into_words, word_spans

_JOINT_FILE, _SEPARATE_FILES = "tokenizer.json", ("source.tokenizer.json", "target.tokenizer.json")
_TOKEN_BYTES = dict.fromkeys(SPECIAL_TOKENS, b"") | {token: bytes([byte]) for byte, token in enumerate(BYTE_TOKENS)}
"""Bytes of the tokens that do not stand for their own name."""


@final
class Subwords(SentenceTokenizer):
    """Subword vocabulary of one language, or of two jointly. Create it with ``train`` or ``from_file``.

    ``pad_id``, ``unknown_id``, ``start_id`` and ``end_id`` are the ids of the special tokens: 0 to 3 after ``train``,
    the ids of the file after ``from_file``.
    """

    has_placeholders = True
    unknown_id: int

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        # Its input is normalized by Python, which takes half the time.
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
        """Train subwords. The same texts give the same subwords, to the bit.

        Args:
            texts: training texts of the language, or of both; kept in memory during training.
            size: vocabulary size, special tokens, bytes and placeholders included. The result is smaller if the texts
                do not have that many different pieces.
            algorithm: "bpe" or "unigram".
            coverage: fraction of all character occurrences that the vocabulary covers; the rarest characters are
                written as bytes. A value such as 0.9995 suits large or noisy texts.

        Raises OptionError for an unknown algorithm or a size too small for all characters, DataError for blank texts,
        MissingPackageError for "unigram" without ``sentencepiece``.
        """
        return cls(train_tokenizer(texts, size=size, algorithm=algorithm, coverage=coverage))

    @classmethod
    def from_file(cls, path: str | Path) -> Subwords:
        """Load subwords from a ``tokenizer.json`` that ``to_json`` wrote. Raises CheckpointError for any other file."""
        return cls(read_subwords(path))

    def to_json(self) -> str:
        """Return the contents of a ``tokenizer.json``."""
        return self._backend.to_str(pretty=True)

    @property
    def vocabulary(self) -> int:
        """Vocabulary size: the number of different tokens."""
        return len(self._pieces)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text as ids, without special tokens. Raises DataError for a text with lone surrogates."""
        plain = [f" {text}" if text else "" for text in normalize_texts(texts)]
        return [found.ids for found in self._encoder.encode_batch_fast(plain, add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to normalized text, one line. Special tokens are dropped; invalid UTF-8 bytes become U+FFFD.

        Raises DataError for an id outside the vocabulary.
        """
        return normalize_text(b"".join(self._ids_to_bytes(ids)).decode("utf-8", "replace"))

    def decode_batch(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """Decode each row of ids, as ``decode`` does."""
        return [self.decode(ids) for ids in batch]

    def pieces(self, text: str, split: Splitter = word_spans) -> list[Piece]:
        """Split a text into pieces with their word indices; see ``pieces_of``."""
        return self.pieces_of(self.encode([text])[0], split)

    def pieces_of(self, ids: Sequence[int], split: Splitter = word_spans) -> list[Piece]:
        """Return the pieces of these ids, with the index of the word that each belongs to.

        Words are found by ``split``, by default ``words.word_spans``; words that share a piece, as they may in Chinese,
        count as one. ``words_of`` returns their texts.
        """
        numbers, _ = group_into_words(self._ids_to_bytes(ids), split)
        return [Piece(self._pieces[token], word) for token, word in zip(ids, numbers, strict=True)]

    def words_of(self, ids: Sequence[int], split: Splitter = word_spans) -> tuple[str, ...]:
        """Return the texts of the words that ``pieces_of`` numbers."""
        return group_into_words(self._ids_to_bytes(ids), split)[1]

    def _is_id(self, number: object) -> bool:
        return isinstance(number, Integral) and 0 <= int(number) < len(self._bytes)

    def _ids_to_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """Bytes of each id. Raises DataError for an id outside the vocabulary."""
        check_kind("ids", ids, Sequence, do="tensor.tolist() gives the ids of a tensor")
        wrong = next((at for at, token in enumerate(ids) if not self._is_id(token)), None)
        if wrong is not None:
            raise DataError(
                "an id is outside this vocabulary",
                expected=f"ids from 0 to {len(self._bytes) - 1}",
                got=short_repr(ids[wrong]),
                do="decode with the subwords that the model was trained with",
            )
        return [self._bytes[token] for token in ids]


def read_subword_files(folder: Path) -> tuple[Subwords, Subwords] | None:
    """Read the subwords of source and target from a model folder; None if it has none."""
    if (folder / _JOINT_FILE).exists():
        joint = Subwords.from_file(folder / _JOINT_FILE)
        return joint, joint
    if all((folder / name).exists() for name in _SEPARATE_FILES):
        return Subwords.from_file(folder / _SEPARATE_FILES[0]), Subwords.from_file(folder / _SEPARATE_FILES[1])
    return None


def subword_texts(subwords: tuple[SentenceTokenizer, SentenceTokenizer] | None) -> dict[str, str]:
    """The files of the subwords of source and target, which may be the same, as texts by file name."""
    if subwords is None:
        return {}
    if subwords[0] is subwords[1]:
        return {_JOINT_FILE: subwords[0].to_json()}
    return {name: side.to_json() for name, side in zip(_SEPARATE_FILES, subwords, strict=True)}
