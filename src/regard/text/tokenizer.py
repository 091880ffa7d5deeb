"""Tokenizer: texts to token ids, with the characters of each token, on top of the ``tokenizers`` library.

    "I ate" -> tokens  [CLS]   i       ate     [SEP]
               ids     101     1045    8823    102
               spans   (0, 0)  (0, 1)  (2, 5)  (0, 0)        characters of the original text

Word pieces: Wu et al. 2016, "Google's neural machine translation system", section 4.1. Padding and truncation
settings of ``tokenizer.json`` are ignored: padding follows the batch, and texts are only truncated on request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, final

import tokenizers
import torch
from jaxtyping import Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import CheckpointError, DataError, OptionError, check_flag, short_repr
from regard.fields import repr_of_fields
from regard.language import count_noun
from regard.masks import Mask, padding
from regard.text.byte_fallback import ByteFallback
from regard.text.tokenizer_errors import explain_tokenizer_errors, is_panic, probe_tokenizer

_ROLES = {
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "mask_token": ("[MASK]", "<mask>"),
}
"""The usual spellings of the special tokens of an encoder, by the names of their roles in ``transformers``."""
USUAL_SPECIAL_TOKENS = frozenset(("<|endoftext|>", *chain.from_iterable(_ROLES.values()))) - {*_ROLES["unk_token"]}
"""The usual spellings of special tokens, for lists without a tokenizer; an unknown token stands for text."""


@final
@explain_arguments
@dataclass(frozen=True)
class TokenizedText:
    """One text as a sequence of tokens.

    ``spans`` are (start, end) in characters (code points) of ``text``. ``special`` is True for tokens that the
    tokenizer added, such as [CLS], whose span is (0, 0). ``unknown`` is True for unknown tokens, which
    replace text outside the vocabulary. ``count`` is the number of tokens before truncation.
    """

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    special: tuple[bool, ...]
    unknown: tuple[bool, ...]
    count: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def dropped(self) -> int:
        """Number of tokens that truncation removed."""
        return self.count - len(self.ids)


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Batch of texts, padded on the right to one length.

    ids      (batch, length)   token ids; the pad id after the end of a text
    mask     hides padding from every query; None without padding
    texts    one ``TokenizedText`` per row, without padding: tokens, spans, special flags
    """

    __repr__ = repr_of_fields

    ids: Int[Tensor, "batch length"]
    mask: Mask | None
    texts: tuple[TokenizedText, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of tokens of each text, without padding."""
        return tuple(len(text) for text in self.texts)

    @property
    def tokens(self) -> tuple[tuple[str, ...], ...]:
        """Tokens of each text, without padding."""
        return tuple(text.tokens for text in self.texts)

    @property
    def spans(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Span of each token of each text: (start, end) in characters."""
        return tuple(text.spans for text in self.texts)

    @property
    def special(self) -> tuple[tuple[bool, ...], ...]:
        """Flags of the tokens of each text: True for those that the tokenizer added, such as [CLS]."""
        return tuple(text.special for text in self.texts)

    @property
    def truncated(self) -> tuple[int, ...]:
        """Indices of the texts that were truncated."""
        return tuple(index for index, text in enumerate(self.texts) if text.dropped)


@final
@explain_arguments
class Tokenizer:
    """Tokenizer of a model. ``limit`` is the maximum tokens of a text, [CLS] and [SEP] included; None is no limit.

    ``num_embeddings`` is the number of token ids that the model has a vector for; None is all of the tokenizer. A text
    with another token is refused. ``skipped_ids`` are the ids of the special tokens that ``decode`` drops.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        pad_id: int,
        limit: int | None = None,
        num_embeddings: int | None = None,
    ) -> None:
        self._backend = tokenizers.Tokenizer.from_str(backend.to_str())
        self._backend.no_padding()
        self._backend.no_truncation()
        self._num_special_tokens = self._backend.num_special_tokens_to_add(is_pair=False)
        if limit is not None and limit <= self._num_special_tokens:
            raise OptionError(
                "the limit leaves no room for text",
                expected=f"more than the {count_noun(self._num_special_tokens, 'special token')} of each text",
                got=f"a limit of {limit} tokens",
                do="use a model with more positions, or allow longer texts",
            )
        self.limit, self.num_embeddings = limit, num_embeddings
        # Padding is hidden from all tokens, so any id that the model has is as good as one that it lacks.
        self.pad_id = pad_id if self._has_embedding(pad_id) else 0
        self._unknown_id = _find_unknown_id(backend)
        added = self._backend.get_added_tokens_decoder()
        self.skipped_ids = frozenset(number for number, token in added.items() if token.special)
        with explain_tokenizer_errors("decode tokens"):
            self._byte_fallback = ByteFallback.find(self._backend, self.skipped_ids)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        pad_id: int | None = None,
        limit: int | None = None,
        num_embeddings: int | None = None,
    ) -> Tokenizer:
        """Load a tokenizer from a ``tokenizer.json``. ``pad_id`` None takes the file's id, or 0 if it has none.

        Raises CheckpointError for a file that cannot be read as one, or that makes the library fail.
        """
        name = str(path) if isinstance(path, Path) else short_repr(path)
        try:
            backend = tokenizers.Tokenizer.from_str(Path(path).read_text(encoding="utf-8"))
        # The library raises bare Exception for unreadable files, or panics.
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise CheckpointError(
                f"{name} is not a readable tokenizer",
                expected="a tokenizer.json as the library tokenizers writes it",
                got=str(error)[:300],
                do="copy or download the file again",
            ) from error
        probe_tokenizer(backend, name)
        if pad_id is None:
            pad_id = _find_pad_id(backend)
        return cls(backend, pad_id=pad_id, limit=limit, num_embeddings=num_embeddings)

    def with_limit(self, limit: int | None) -> Tokenizer:
        """The same tokenizer with another ``limit``."""
        return Tokenizer(self._backend, pad_id=self.pad_id, limit=limit, num_embeddings=self.num_embeddings)

    @property
    def unknown_id(self) -> int | None:
        """Id of the unknown token; None if unknown text becomes bytes or letters instead."""
        return self._unknown_id

    @property
    def token_roles(self) -> dict[str, str]:
        """The special tokens of an encoder by the names of ``transformers``, such as {"mask_token": "[MASK]"}."""
        found = {role: [name for name in names if self._backend.token_to_id(name) is not None]
                 for role, names in _ROLES.items()}  # fmt: skip
        return {role: names[0] for role, names in found.items() if names}

    @property
    def mask_id(self) -> int | None:
        """Id of the token that masks another one, [MASK] or <mask>; None if the tokenizer or the model has none."""
        name = self.token_roles.get("mask_token")
        found = None if name is None else self._backend.token_to_id(name)
        return found if found is not None and self._has_embedding(found) else None

    @property
    def frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids of the special tokens that ``ids`` adds before and after a text, such as [CLS] and [SEP]."""
        plain = self._backend.encode("a", add_special_tokens=False)
        count = len(plain)
        whole = self._backend.post_process(plain)
        before = whole.special_tokens_mask.index(0) if count else len(whole.ids)
        return tuple(whole.ids[:before]), tuple(whole.ids[before + count :])

    @property
    def special_ids(self) -> tuple[int, ...]:
        """Ids of all tokens that stand for no text, in ascending order: special, padding and unknown tokens."""
        added = {number for number, token in self._backend.get_added_tokens_decoder().items() if token.special}
        roles = {self._backend.token_to_id(name) for name in self.token_roles.values()}
        framing = {special for side in self.frame for special in side}
        return tuple(sorted(token for token in added | roles | framing | {self._unknown_id} if token is not None))

    @property
    def vocabulary(self) -> int:
        """Vocabulary size: the number of different tokens."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, texts: str | Iterable[str], *, truncate: bool = False) -> TokenBatch:
        """Encode texts as one padded batch; a single string is a batch of one.

        Raises DataError for a text longer than ``limit`` unless ``truncate``, and for one with lone surrogates;
        OptionError for anything but strings.
        """
        tokenized = self.tokenize(texts, truncate=truncate)
        for index, text in enumerate(tokenized):
            self.check_length(text, f"text {index}")
        return self.pad(tokenized)

    def tokenize(self, texts: str | Iterable[str], *, truncate: bool = False) -> tuple[TokenizedText, ...]:
        """Tokenize each text, without padding; a single string is one text. Only ``truncate`` enforces ``limit``.

        Raises DataError for a text with lone surrogates or with a token that the model lacks, OptionError for anything
        but strings, CheckpointError if the library fails.
        """
        check_flag("truncate", truncate)
        listed = [texts] if isinstance(texts, str) else list(iterate_texts(texts))
        for index, text in enumerate(listed):
            check_text(text, index)
        with explain_tokenizer_errors("encode a text"):
            plain = self._backend.encode_batch(listed, add_special_tokens=False)
            tokenized = tuple(
                self._to_tokenized_text(text, encoding, truncate) for text, encoding in zip(listed, plain, strict=True)
            )
        for index, text in enumerate(tokenized):
            self._check_embeddings(text.ids, index)
        return tokenized

    def ids(self, texts: Sequence[str], *, truncate: bool = False) -> list[list[int]]:
        """The token ids of each text, as ``tokenize`` gives them: in a third of its time, for training data.

        Raises what ``tokenize`` raises.
        """
        check_flag("truncate", truncate)
        check_texts("texts", texts)
        found = []
        with explain_tokenizer_errors("encode a text"):
            for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False):
                self._truncate(encoding, truncate)
                found.append(self._backend.post_process(encoding).ids)
        for number, ids in enumerate(found, start=1):
            self._check_embeddings(ids, number)
        return found

    def plain_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, without the special tokens that ``ids`` adds, for parts of a document.

        Raises what ``tokenize`` raises.
        """
        check_texts("texts", texts)
        with explain_tokenizer_errors("encode a text"):
            found = [
                encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
            ]
        for number, ids in enumerate(found, start=1):
            self._check_embeddings(ids, number)
        return found

    def plain_spans(self, text: str) -> list[tuple[int, int]]:
        """The (start, end) of each token in the characters of a text, without the special tokens that ``ids`` adds.

        Raises what ``tokenize`` raises.
        """
        check_texts("texts", [text])
        with explain_tokenizer_errors("encode a text"):
            spans: list[tuple[int, int]] = self._backend.encode(text, add_special_tokens=False).offsets
        return spans

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Decode token ids to a text. Special tokens are dropped unless ``special``; each invalid sequence of UTF-8
        becomes one U+FFFD."""
        numbers = [int(token) for token in ids]
        if self._byte_fallback is not None:
            numbers = self._byte_fallback.replace_invalid(numbers, special=special)
        with explain_tokenizer_errors("decode tokens"):
            return str(self._backend.decode(numbers, skip_special_tokens=not special))

    def token_text(self, number: int) -> str | None:
        """The token with this id as the vocabulary spells it, such as "</s>"; None for an id outside of it."""
        found = self._backend.id_to_token(number)
        return None if found is None else str(found)

    def has_tokens(self, names: Iterable[str]) -> bool:
        """Whether all of these tokens are in the vocabulary, as it spells them."""
        return all(self._backend.token_to_id(name) is not None for name in names)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The special tokens that are recognised inside a text, as the vocabulary spells them, in order."""
        added = self._backend.get_added_tokens_decoder()
        return tuple(str(added[number].content) for number in sorted(added) if added[number].special)

    def check_length(self, text: TokenizedText, name: str) -> None:
        """Raise DataError if the text, called ``name`` in the message, is longer than ``limit``."""
        if self.limit is None or len(text) <= self.limit:
            return
        raise DataError(
            f"{name} is too long for the model",
            expected=f"at most {self.limit} tokens, {self._num_special_tokens} special ones included",
            got=f"{len(text)} tokens",
            do="split the text, or truncate it: `truncate=True`",
        )

    def pad(self, texts: Sequence[TokenizedText]) -> TokenBatch:
        """Combine tokenized texts into one batch, padded on the right to the longest."""
        lengths = [len(text) for text in texts]
        longest = max(lengths, default=0)
        rows = [text.ids + (self.pad_id,) * (longest - len(text)) for text in texts]
        ids = torch.tensor(rows, dtype=torch.long).reshape(len(texts), longest)
        # By length and not by pad id: a text may itself contain the padding token.
        mask = None if min(lengths, default=0) == longest else padding(lengths)
        return TokenBatch(ids, mask, tuple(texts))

    def to_json(self) -> str:
        """Return the contents of a ``tokenizer.json``, without padding and truncation settings."""
        return self._backend.to_str(pretty=True)

    def _has_embedding(self, number: int) -> bool:
        return self.num_embeddings is None or number < self.num_embeddings

    def _check_embeddings(self, ids: Sequence[int], number: int) -> None:
        """Raise DataError if a token of text ``number`` has no vector in the model."""
        if self.num_embeddings is None or max(ids, default=0) < self.num_embeddings:
            return
        missing = next(token for token in ids if not self._has_embedding(token))
        raise DataError(
            f"text {number} has a token that the model has no vector for",
            expected=f"token ids below {self.num_embeddings}, the vocabulary of the model",
            got=f"{self.token_text(missing)!r}, with id {missing} in tokenizer.json",
            do="leave it out of the text, or use tokenizer.json and weights from the same source",
        )

    def _to_tokenized_text(self, text: str, encoding: tokenizers.Encoding, truncate: bool) -> TokenizedText:
        """Truncate the tokens if ``truncate``, then add the special tokens."""
        count = len(encoding) + self._num_special_tokens
        self._truncate(encoding, truncate)
        whole = self._backend.post_process(encoding)
        return TokenizedText(
            text=text,
            ids=tuple(whole.ids),
            tokens=tuple(whole.tokens),
            spans=tuple(whole.offsets),
            special=tuple(bool(flag) for flag in whole.special_tokens_mask),
            unknown=tuple(token == self._unknown_id for token in whole.ids),
            count=count,
        )

    def _truncate(self, encoding: tokenizers.Encoding, truncate: bool) -> None:
        """Cut the tokens of a text so that they fit ``limit`` together with the special tokens, if ``truncate``."""
        if truncate and self.limit is not None and len(encoding) + self._num_special_tokens > self.limit:
            encoding.truncate(self.limit - self._num_special_tokens)


def _find_pad_id(backend: tokenizers.Tokenizer) -> int:
    if backend.padding is not None:
        return int(backend.padding["pad_id"])
    for name in ("[PAD]", "<pad>"):
        found = backend.token_to_id(name)
        if found is not None:
            return int(found)
    return 0


def _find_unknown_id(backend: tokenizers.Tokenizer) -> int | None:
    """Id of the unknown token; None if unknown text becomes bytes or letters instead."""
    own = getattr(backend.model, "unk_token", None)  # a Unigram model does not expose it
    found = [backend.token_to_id(name) for name in ([own] if own else ["<unk>", "[UNK]"])]
    return next((int(number) for number in found if number is not None), None)


def iterate_texts(texts: Any) -> Iterator[Any]:
    """Iterate over several texts, without checking each. Raises OptionError for a single string or a non-iterable."""
    with suppress(TypeError):
        if not isinstance(texts, str | bytes | Mapping | Tensor):
            return iter(texts)
    raise OptionError(
        "these are not texts",
        expected="a list of strings, or a generator of them",
        got=short_repr(texts),
        do='for example ["I ate an apple.", "Apple released a new phone."]',
    )


def check_texts(name: str, texts: object) -> None:
    """Raise OptionError unless ``texts`` is a list of strings, and run ``check_text`` on each, numbered from 1."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise OptionError(
            f"{name} is not a list of texts", expected="a list of strings", got=short_repr(texts), do=f'{name}=["..."]'
        )
    for number, text in enumerate(texts, start=1):
        check_text(text, number)


def check_text(text: object, index: int) -> None:
    """Raise OptionError unless ``text`` is a string, DataError for lone surrogates; ``index`` names the text."""
    if not isinstance(text, str):
        raise OptionError(f"text {index} is not a string", expected="str", got=type(text).__name__, do="decode bytes")
    if not is_unicode(text):
        raise DataError(
            f"text {index} is not Unicode text",
            expected="characters that UTF-8 can encode",
            got="a lone surrogate, which is half a character",
            do="decode the source as UTF-8 (or with errors='replace')",
        )


def is_unicode(text: str) -> bool:
    """Whether the text can be encoded as UTF-8, that is, has no lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
