"""Grouping of tokens into words: runs of letters, digits and marks, joined by inner hyphens and apostrophes.

Words are found in the text by Unicode category, not by the tokenizer's spelling ("##ing"), so any tokenizer
with character spans works, and an unknown token still belongs to its word. Where Chinese words begin is a choice of
``Tokens.chinese_words`` (``chinese_words.py``). Punctuation and symbols are included, but marked as no words.
Tokens that come with their words, such as the tokens of a translator, keep them.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import final

import numpy as np
from jaxtyping import Float64

from regard.chinese_words import describe_separator, is_ideograph, starts_of_words
from regard.language import translate
from regard.view.reading import Reading, Tokens

_JOINERS = frozenset("'’-\u2010\u2011\u05be\u05f3\u05f4\u00b7\u200c\u200d")


@final
@dataclass(frozen=True)
class Word:
    """A word of a text and the numbers of its tokens; ``is_word`` is False for punctuation and symbols.

    ``is_known`` is False if a token is not in the vocabulary. ``occurrence`` numbers, from 1, a word whose spelling
    occurs more than once in the text; it counts occurrences whatever their case. It is 0 for a unique spelling.
    """

    text: str
    pieces: tuple[int, ...]
    is_word: bool
    is_known: bool = True
    occurrence: int = 0

    @property
    def label(self) -> str:
        """The word, with its occurrence if there are several: "the (3)"."""
        return f"{self.text} ({self.occurrence})" if self.occurrence else self.text


def words_of(tokens: Tokens) -> tuple[Word, ...]:
    """Group tokens into words, in order, without special tokens; every other token belongs to exactly one word."""
    if tokens.words is not None:
        return _number_occurrences([Word(text, pieces, any(map(_is_letter, text))) for text, pieces in tokens.words])
    owner = _char_to_word(tokens.text, starts_of_words(tokens.text, tokens.chinese_words))
    groups: list[tuple[int | None, list[int]]] = []
    for token, (start, end) in enumerate(tokens.spans):
        if tokens.special[token]:
            continue
        run = next((owner[place] for place in range(start, end) if owner[place] is not None), None)
        if groups and run is not None and groups[-1][0] == run:
            groups[-1][1].append(token)
        else:
            groups.append((run, [token]))
    return _number_occurrences([_make_word(tokens, pieces, run is not None) for run, pieces in groups])


def aggregate_by_word(
    weights: Float64[np.ndarray, "heads queries keys"], query_words: Sequence[Word], key_words: Sequence[Word]
) -> Float64[np.ndarray, "heads query_words key_words"]:
    """Aggregate token weights to word weights: the mean over query tokens, the sum over key tokens."""
    rows, columns = _pieces(query_words), _pieces(key_words)
    total = np.add.reduceat(weights[:, :, columns], _starts(key_words), axis=2)
    mean = np.add.reduceat(total[:, rows], _starts(query_words), axis=1)
    mean /= np.array([len(word.pieces) for word in query_words])[:, None]
    return np.asarray(mean)


def weight_on_word(rows: Float64[np.ndarray, "query_tokens keys"], key_word: Word) -> float:
    """Compute the weight between two words, as ``aggregate_by_word``, from the rows of the query word's tokens."""
    return float(rows[:, list(key_word.pieces)].sum(axis=1).mean())


def _pieces(words: Sequence[Word]) -> list[int]:
    return [piece for word in words for piece in word.pieces]


def _starts(words: Sequence[Word]) -> list[int]:
    """Index of each word's first piece in the list of all words' pieces."""
    return [0, *accumulate(len(word.pieces) for word in words[:-1])]


def unknown_words_note(words: Sequence[Word]) -> str:
    """Sentence with the number of words outside the model's vocabulary; empty if there are none."""
    proper = [word for word in words if word.is_word]
    unknown = sum(not word.is_known for word in proper)
    if not unknown:
        return ""
    if unknown == 1:
        return translate("1 of {words} words is not in this model's vocabulary.", words=len(proper))
    return translate(
        "{unknown} of {words} words are not in this model's vocabulary.", unknown=unknown, words=len(proper)
    )


def words_note(reading: Reading) -> str:
    """Sentence about what Chinese words are; "" for a text without any, or whose tokens come with their words."""
    tokens = [tokens for tokens in (reading.tokens, reading.keys) if tokens is not None and tokens.words is None]
    return next(filter(None, (describe_separator(each.text, each.chinese_words) for each in tokens)), "")


def is_mostly_unknown(words: Sequence[Word]) -> bool:
    """Whether more than half of the words are outside the vocabulary: the rest then says little about the text."""
    proper = [word for word in words if word.is_word]
    return 2 * sum(not word.is_known for word in proper) > len(proper)


def _number_occurrences(words: Sequence[Word]) -> tuple[Word, ...]:
    spellings = Counter(word.text for word in words if word.is_word)
    occurrences: Counter[str] = Counter()
    numbered = []
    for word in words:
        occurrences[word.text.casefold()] += 1
        again = word.is_word and spellings[word.text] > 1
        numbered.append(replace(word, occurrence=occurrences[word.text.casefold()]) if again else word)
    return tuple(numbered)


def _make_word(tokens: Tokens, pieces: list[int], is_word: bool) -> Word:
    text = tokens.surface_of(pieces[0], pieces[-1])
    return Word(text, tuple(pieces), is_word, is_known=not any(map(tokens.is_unknown, pieces)))


def _char_to_word(text: str, chinese_starts: frozenset[int]) -> list[int | None]:
    """For each character, the number of the word it belongs to, or None outside words."""
    owner: list[int | None] = []
    current, inside, is_chinese = -1, False, False
    for place, character in enumerate(text):
        was_chinese, is_chinese = is_chinese, is_ideograph(character)
        if is_chinese:
            current += not was_chinese or place in chinese_starts
            inside = False
            owner.append(current)
        elif _is_letter(character):
            current = current if inside else current + 1
            inside = True
            owner.append(current)
        elif inside and character in _JOINERS and _is_letter_at(text, place + 1):
            owner.append(current)
        else:
            inside = False
            owner.append(None)
    return owner


def _is_letter(character: str) -> bool:
    # L, N, M: letters, digits, and the combining marks of Arabic, Hebrew and Indic scripts.
    return unicodedata.category(character)[0] in "LNM" or character == "_"


def _is_letter_at(text: str, place: int) -> bool:
    return place < len(text) and _is_letter(text[place]) and not is_ideograph(text[place])
