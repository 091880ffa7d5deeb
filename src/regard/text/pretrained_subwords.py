"""Subwords of a pretrained encoder-decoder, such as a T5: the ``tokenizer.json`` of its folder, used for sentences.

    "Two lamps"  ->  ids 2759 10561 7  (and </s>, which the model adds)  ->  "Two" " lamp" "s"  ->  "Two lamps"

The text of a token is what it adds to the decoded text of the tokens before it, whatever the decoder of the file:

    text_i = decode(c t_i) without decode(c)            c: the tokens before t_i, of which the last are enough

A token that ends inside a character adds nothing, and the token that completes the character adds all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from regard.errors import check_kind
from regard.text.sentence_tokenizer import Piece, SentenceTokenizer
from regard.text.tokenizer import Tokenizer
from regard.text.words import Splitter, group_into_words, word_spans

_INCOMPLETE = "\ufffd"
_MAX_PENDING = 16
"""Tokens after which a replacement character is taken for invalid bytes, and not for an incomplete character."""


@final
class PretrainedSubwords(SentenceTokenizer):
    """Subwords of ``tokenizer``, for a model whose texts end with ``end_id``.

    Texts are encoded as ``tokenizer`` does: the name of a special token in a text, such as "</s>", is that token, and
    strings such as %s are text like other.
    """

    has_placeholders = False

    def __init__(self, tokenizer: Tokenizer, *, end_id: int) -> None:
        check_kind("tokenizer", tokenizer, Tokenizer, do="Tokenizer.from_file(path)")
        self.tokenizer, self.end_id, self.unknown_id = tokenizer, end_id, tokenizer.unknown_id
        self._special_tokens = frozenset(tokenizer.special_tokens)

    @property
    def vocabulary(self) -> int:
        """Vocabulary size: the number of different tokens."""
        return self.tokenizer.vocabulary

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text with the special tokens of the file, but without the end token; see the base class."""
        return [
            [] if not text.strip() else ids[:-1] if ids[-1:] == [self.end_id] else ids
            for text, ids in zip(texts, self.tokenizer.ids(texts), strict=True)
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to a text. Special tokens are dropped; invalid UTF-8 bytes become U+FFFD."""
        return self.tokenizer.decode(ids)

    def pieces_of(self, ids: Sequence[int], split: Splitter = word_spans) -> list[Piece]:
        """Return the pieces of these ids, with their words; an unknown token is the word of its name."""
        texts = self._token_texts(ids)
        numbers, _ = group_into_words([text.encode() for text in texts], split)
        return [
            Piece(text or self._special_name(token), number)
            for token, text, number in zip(ids, texts, numbers, strict=True)
        ]

    def words_of(self, ids: Sequence[int], split: Splitter = word_spans) -> tuple[str, ...]:
        """Return the texts of the words that ``pieces_of`` numbers."""
        return group_into_words([text.encode() for text in self._token_texts(ids)], split)[1]

    def to_json(self) -> str:
        """Return the contents of a ``tokenizer.json``."""
        return self.tokenizer.to_json()

    def _token_texts(self, ids: Sequence[int]) -> list[str]:
        """The characters that each token adds to the text; "" for special tokens, and for those inside a character."""
        texts = [""] * len(ids)
        context: list[int] = []
        pending: list[int] = []
        is_first = True
        for place, token in enumerate(ids):
            if token == self.unknown_id:
                # A decoder drops it: without a text of its own, the words after it would be numbered wrongly.
                texts[place], pending, is_first = self.tokenizer.token_text(token) or "", [], False
                continue
            if self._special_name(token):
                continue
            pending.append(token)
            # Any token before will do, so that a decoder does not take the space of this one for the start of a text.
            before = context if context or is_first else pending
            added = self.tokenizer.decode(before + pending)[len(self.tokenizer.decode(before)) :]
            if added.endswith(_INCOMPLETE) and len(pending) < _MAX_PENDING and place + 1 < len(ids):
                continue
            texts[place], context, pending, is_first = added, pending, [], False
        return texts

    def _special_name(self, number: int) -> str:
        """The name of a special token; "" for other tokens."""
        name = self.tokenizer.token_text(number) or ""
        return name if name in self._special_tokens else ""
