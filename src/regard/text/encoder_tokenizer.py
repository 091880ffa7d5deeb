"""Train the tokenizer of a masked language model.

    wordpiece     pieces of words, those inside of a word with ##      "unseen words"  ->  "un" "##seen" "words"
    bpe           subwords of bytes, merged by frequency; white space is part of them
    bytes         the 256 bytes of UTF-8
    characters    the characters of the training texts

    a text   ->   [CLS]  its tokens  [SEP]             a pair of texts   ->   [CLS] .. [SEP] .. [SEP]

Word pieces: Devlin et al. 2019, "BERT", section 3; white space is lost, and a Chinese character is a word of its own. A
word with a character outside the alphabet becomes [UNK]. They are learned by the merges of BPE, as the library does.

The five special tokens are the first of the vocabulary. Only [MASK] is recognised in a text, so that one can ask for
what it hides; a text that spells another one consists of other tokens.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from regard.errors import DataError, check_choice, check_count, check_flag
from regard.text.language_tokenizer import (
    MAX_VOCAB_SIZE,
    MIN_PAIR_COUNT,
    check_vocab_size,
    make_byte_tokenizer,
    split_text,
    train_byte_level_bpe,
    train_characters,
)
from regard.text.tokenizer import Tokenizer, check_texts

ENCODER_TOKENIZERS = ("wordpiece", "bpe", "bytes", "characters")
"""The kinds of tokenizers."""
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The special tokens, by their ids."""
PAD_ID = 0
_UNKNOWN, _START, _END, _MASK = SPECIAL_TOKENS[1:]
_INSIDE = "##"
_MAX_WORD = 100
"""Characters of a word beyond which it becomes [UNK], as in the published code of BERT."""


def train_encoder_tokenizer(texts: Sequence[str], *, kind: str, size: int, lowercase: bool = False) -> Tokenizer:
    """Train a tokenizer on texts; the same texts give the same tokenizer.

    ``kind`` is one of ``ENCODER_TOKENIZERS``, ``size`` the most tokens of the vocabulary, which "bytes" ignores.
    ``lowercase`` makes no difference between upper and lower case. Raises OptionError for an unknown kind or a size too
    small, DataError for blank texts.
    """
    check_choice("kind of tokenizer", kind, ENCODER_TOKENIZERS)
    check_texts("texts", texts)
    check_count("size", size, maximum=MAX_VOCAB_SIZE)
    check_flag("lowercase", lowercase)
    if not any(text.strip() for text in texts):
        raise DataError(
            "there is no text to learn a vocabulary from", expected="texts", got="blank texts", do="check the files"
        )
    backend = _TRAINERS[kind](texts, size, normalizer=_make_normalizer(kind, lowercase=lowercase))
    ids = [(token, SPECIAL_TOKENS.index(token)) for token in (_START, _END)]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{_START} $A {_END}", pair=f"{_START} $A {_END} $B:1 {_END}:1", special_tokens=ids
    )
    backend.add_special_tokens([AddedToken(_MASK, special=True, normalized=False)])
    return Tokenizer(backend, pad_id=PAD_ID)


def _make_normalizer(kind: str, *, lowercase: bool) -> normalizers.Normalizer | None:
    if kind == "wordpiece":
        return normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=lowercase
        )
    return normalizers.Lowercase() if lowercase else None


def _train_word_pieces(
    texts: Iterable[str], size: int, *, normalizer: normalizers.Normalizer | None
) -> tokenizers.Tokenizer:
    """Learn word pieces. Characters are numbered first, in a fixed order: the library breaks ties by these numbers."""
    assert normalizer is not None
    check_vocab_size(size, len(SPECIAL_TOKENS) + 2, "the special tokens and a character")
    splitter = pre_tokenizers.BertPreTokenizer()
    words: Counter[str] = Counter()
    for text in texts:
        for part in split_text(text):
            words.update(word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(part)))
    alphabet = _choose_alphabet(words, (size - len(SPECIAL_TOKENS)) // 2)
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token=_UNKNOWN, continuing_subword_prefix=_INSIDE))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    known = set("".join(character.removeprefix(_INSIDE) for character in alphabet))
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=MIN_PAIR_COUNT,
        special_tokens=[*SPECIAL_TOKENS, *alphabet],
        initial_alphabet=sorted(known),
        limit_alphabet=len(known),
        continuing_subword_prefix=_INSIDE,
        show_progress=False,
    )
    usable = sorted(word for word in words if known.issuperset(word))
    backend.train_from_iterator((word for word in usable for _ in range(words[word])), trainer)
    found: dict[str, int] = json.loads(backend.to_str())["model"]["vocab"]
    pieces = sorted(found, key=found.__getitem__)[:size]
    model = models.WordPiece(
        {piece: number for number, piece in enumerate(pieces)},
        unk_token=_UNKNOWN,
        continuing_subword_prefix=_INSIDE,
        max_input_chars_per_word=_MAX_WORD,
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.WordPiece(prefix=_INSIDE, cleanup=False)
    return tokenizer


def _choose_alphabet(words: Mapping[str, int], limit: int) -> list[str]:
    """The most frequent characters, at the start and inside of words, at most ``limit`` pieces, in a fixed order."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for place, character in enumerate(word):
            counts[character if place == 0 else _INSIDE + character] += count
    return sorted(sorted(counts, key=lambda piece: (-counts[piece], piece))[:limit])


_TRAINERS: Mapping[str, Callable[..., tokenizers.Tokenizer]] = {
    "wordpiece": _train_word_pieces,
    "bpe": partial(train_byte_level_bpe, special=SPECIAL_TOKENS),
    "bytes": lambda texts, size, *, normalizer: make_byte_tokenizer(special=SPECIAL_TOKENS, normalizer=normalizer),
    "characters": partial(train_characters, special=SPECIAL_TOKENS, unknown=_UNKNOWN),
}
