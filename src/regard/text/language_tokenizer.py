"""Train the tokenizer of a language model, which loses nothing of a text: white space and line breaks are tokens too.

    bpe           subwords of bytes, merged by frequency      "To be\\nor"  ->  "To" " be" "\\n" "or"
    bytes         the 256 bytes of UTF-8
    characters    the characters of the training texts; any other becomes <unk>

Byte-level BPE: Radford et al. 2019, "Language models are unsupervised multitask learners", section 2.2. ``Subwords``,
for translation, writes any white space as one space, so a model that continues a text could not end a line.

The token <|endoftext|>, with id 0, begins and ends a document. No text contains it: one that is spelt like it consists
of other tokens.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from regard.errors import DataError, OptionError, check_choice, check_count
from regard.text.tokenizer import Tokenizer, check_texts

LANGUAGE_TOKENIZERS = ("bpe", "bytes", "characters")
"""The kinds of tokenizers."""
DOCUMENT_TOKEN = "<|endoftext|>"
DOCUMENT_ID = 0
_UNKNOWN_TOKEN = "<unk>"
MIN_PAIR_COUNT = 2
"""Minimum frequency of a pair for BPE to merge it."""
MAX_VOCAB_SIZE = 2**20
_PART_CHARACTERS = 2**16


def train_language_tokenizer(texts: Sequence[str], *, kind: str, size: int) -> Tokenizer:
    """Train a tokenizer on texts; the same texts give the same tokenizer.

    ``kind`` is one of ``LANGUAGE_TOKENIZERS``, ``size`` the most tokens of the vocabulary, which "bytes" ignores.
    Raises OptionError for an unknown kind or a size too small, DataError for empty texts.
    """
    check_choice("kind of tokenizer", kind, LANGUAGE_TOKENIZERS)
    check_texts("texts", texts)
    check_count("size", size, maximum=MAX_VOCAB_SIZE)
    if not any(texts):
        raise DataError(
            "there is no text to learn a vocabulary from", expected="texts", got="empty texts", do="check the files"
        )
    backend = _TRAINERS[kind](texts, size)
    start = (DOCUMENT_TOKEN, DOCUMENT_ID)
    backend.post_processor = processors.TemplateProcessing(single=f"{DOCUMENT_TOKEN} $A", special_tokens=[start])
    return Tokenizer(backend, pad_id=DOCUMENT_ID)


def split_text(text: str, limit: int = _PART_CHARACTERS) -> Iterator[str]:
    """Split a text into parts of at most ``limit`` characters, after a line break or a space where there is one.

    The library needs a hundred times the memory of a text to tokenize it.
    """
    begin = 0
    while len(text) - begin > limit:
        cut = max(text.rfind("\n", begin, begin + limit), -1) + 1
        cut = cut or text.rfind(" ", begin + 1, begin + limit)
        cut = cut if cut > begin else begin + limit
        yield text[begin:cut]
        begin = cut
    yield text[begin:]


def train_byte_level_bpe(
    texts: Iterable[str], size: int, *, special: Sequence[str], normalizer: normalizers.Normalizer | None = None
) -> tokenizers.Tokenizer:
    """Train subwords of bytes, behind the ``special`` tokens. Raises OptionError for a size too small.

    The ``normalizer`` changes the texts before they are split; it becomes a part of the tokenizer.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    check_vocab_size(size, len(special) + len(alphabet), "the 256 bytes and the special tokens")
    learner = tokenizers.Tokenizer(models.BPE())
    if normalizer is not None:
        learner.normalizer = normalizer
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(special), min_frequency=MIN_PAIR_COUNT, initial_alphabet=alphabet, show_progress=False
    )
    learner.train_from_iterator((part for text in texts for part in split_text(text)), trainer)
    model = json.loads(learner.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    return _byte_level_tokenizer(special, pieces, model["merges"], normalizer)


def make_byte_tokenizer(
    *, special: Sequence[str], normalizer: normalizers.Normalizer | None = None
) -> tokenizers.Tokenizer:
    """Make a tokenizer of the 256 bytes of UTF-8, behind the ``special`` tokens."""
    return _byte_level_tokenizer(special, sorted(pre_tokenizers.ByteLevel.alphabet()), [], normalizer)


def _byte_level_tokenizer(
    special: Sequence[str],
    pieces: Sequence[str],
    merges: Sequence[Any],
    normalizer: normalizers.Normalizer | None,
) -> tokenizers.Tokenizer:
    vocabulary = {piece: number for number, piece in enumerate((*special, *pieces))}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [(merge[0], merge[1]) for merge in merges]))
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def train_characters(
    texts: Iterable[str],
    size: int,
    *,
    special: Sequence[str],
    unknown: str,
    normalizer: normalizers.Normalizer | None = None,
) -> tokenizers.Tokenizer:
    """Make a tokenizer of the most frequent characters, behind the ``special`` tokens; any other is ``unknown``.

    Raises OptionError for a size too small.
    """
    check_vocab_size(size, len(special) + 1, "the special tokens and a character")
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text if normalizer is None else normalizer.normalize_str(text))
    frequent = sorted(counts, key=lambda character: (-counts[character], character))[: size - len(special)]
    vocabulary = {token: number for number, token in enumerate((*special, *sorted(frequent)))}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return backend


def check_vocab_size(size: int, minimum: int, needed: str) -> None:
    """Raise OptionError for a vocabulary of fewer tokens than ``minimum``, which are ``needed``."""
    if size < minimum:
        raise OptionError(
            "the vocabulary is too small",
            expected=f"at least {minimum}: {needed}",
            got=f"size={size}",
            do=f"pass `size={minimum}` or more",
        )


_TRAINERS: Mapping[str, Callable[[Iterable[str], int], tokenizers.Tokenizer]] = {
    "bpe": partial(train_byte_level_bpe, special=(DOCUMENT_TOKEN,)),
    "bytes": lambda texts, size: make_byte_tokenizer(special=(DOCUMENT_TOKEN,)),
    "characters": partial(train_characters, special=(DOCUMENT_TOKEN, _UNKNOWN_TOKEN), unknown=_UNKNOWN_TOKEN),
}
