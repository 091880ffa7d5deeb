"""Train the tokenizer of a text encoder: subwords, words or characters, with a start token before each text.

    bpe, unigram    subwords, as ``subword_training`` makes them; unknown characters become bytes
    words           what white space separates, such as the symbols of a formal language
    characters      single characters, white space included

    "Two lamps"  ->  <s>  " Two"  " lamp"  "s"           bpe
                     <s>  "Two"  "lamps"                 words
                     <s>  T w o _ l a m p s              characters

Words and characters are kept by frequency; those outside the vocabulary become <unk>. No text can contain a special
token: a word that is spelt like one is split after its first character.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import Regex, models, pre_tokenizers, processors

from regard.errors import DataError, OptionError, check_choice, check_count
from regard.text.subword_training import PAD_ID, SPECIAL_TOKENS, START_ID, UNKNOWN_ID, train_tokenizer
from regard.text.tokenizer import Tokenizer, check_texts

TOKENIZERS = ("bpe", "unigram", "words", "characters")
"""The kinds of tokenizers."""
_START = SPECIAL_TOKENS[START_ID]
_SPLIT_AFTER_BRACKET = r"^<(?=(?:" + "|".join(token[1:-1] for token in SPECIAL_TOKENS) + r")>$)"


def train_text_tokenizer(texts: Sequence[str], *, kind: str, size: int, limit: int | None = None) -> Tokenizer:
    """Train a tokenizer on texts; the same texts give the same tokenizer.

    Args:
        texts: the training texts.
        kind: one of ``TOKENIZERS``.
        size: the most tokens of the vocabulary, special tokens included.
        limit: the most tokens of a text, the start token included; None is no limit.

    Raises OptionError for an unknown kind or a size too small, DataError for blank texts, MissingPackageError for
    "unigram" without ``sentencepiece``.
    """
    check_choice("kind of tokenizer", kind, TOKENIZERS)
    check_texts("texts", texts)
    if limit is not None:
        check_count("limit", limit)
    if kind in ("bpe", "unigram"):
        backend = train_tokenizer(texts, size=size, algorithm=kind, coverage=1.0)
    else:
        counts = _count_words(texts) if kind == "words" else _count_characters(texts)
        backend = _build_symbols(counts, _SPLITTERS[kind](), size)
    backend.post_processor = processors.TemplateProcessing(
        single=f"{_START} $A", pair=f"{_START} $A {_START} $B", special_tokens=[(_START, START_ID)]
    )
    return Tokenizer(backend, pad_id=PAD_ID, limit=limit)


def _count_words(texts: Iterable[str]) -> Counter[str]:
    """Count the words, as ``_split_words`` finds them.

    A space ends a word in any case, so only different strings between spaces are split further: the library's splitter
    takes 20 times as long for a word as Python for counting it.
    """
    between_spaces: Counter[str] = Counter()
    for text in texts:
        between_spaces.update(text.split(" "))
    splitter, counts = _split_words(), Counter[str]()
    for part, count in between_spaces.items():
        for word, _ in splitter.pre_tokenize_str(part):
            counts[word] += count
    return counts


def _count_characters(texts: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    return counts


def _build_symbols(counts: Counter[str], splitter: pre_tokenizers.PreTokenizer, size: int) -> tokenizers.Tokenizer:
    """Build a tokenizer with the most frequent symbols as its vocabulary."""
    check_count("size", size)
    if not counts:
        raise DataError(
            "there is no text to learn a vocabulary from", expected="texts", got="blank texts", do="check the files"
        )
    if size <= len(SPECIAL_TOKENS):
        raise OptionError(
            "the vocabulary is too small",
            expected=f"more than the {len(SPECIAL_TOKENS)} special tokens",
            got=f"size={size}",
            do="pass a larger `size`",
        )
    ranked = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))[: size - len(SPECIAL_TOKENS)]
    vocabulary = {token: number for number, token in enumerate((*SPECIAL_TOKENS, *ranked))}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[UNKNOWN_ID]))
    backend.pre_tokenizer = splitter
    return backend


def _split_words() -> pre_tokenizers.PreTokenizer:
    isolated = pre_tokenizers.Split(Regex(_SPLIT_AFTER_BRACKET), "isolated")
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), isolated])


def _split_characters() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")


_SPLITTERS = {"words": _split_words, "characters": _split_characters}
