"""Split a sentence into the words that alignments number.

    "Ich mag 猫和狗."  ->  Ich | mag | 猫 | 和 | 狗 | .

Words are separated by white space, and include adjacent punctuation. In scripts written without white space (Han,
Hiragana, Katakana, Thai, Lao, Khmer, Burmese) each character is a word, with its combining marks. Alignment formats
number tokens separated by white space, so use ``token_spans`` for text that is already tokenized.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias
from unicodedata import category

from regard.errors import OptionError, short_repr

Spans: TypeAlias = tuple[tuple[int, int], ...]
"""(start, end) of each word, in characters, from left to right."""
Splitter: TypeAlias = Callable[[str], Spans]
"""Function that splits a text into words: ``word_spans`` or ``token_spans``."""

_CHUNK = re.compile(r"\S+")
_SINGLE_CHARACTER_WORD = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u19e0-\u19ff\ua9e0-\ua9ff\uaa60-\uaa7f"  # Thai, Lao, Burmese, Khmer
    "\u3005-\u3007\u3041-\u309f\u30a0-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001aff0-\U0001b16f"  # kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"  # Han
)


def words(text: str) -> tuple[str, ...]:
    """Split a text into words, with adjacent punctuation."""
    return tuple(text[start:end] for start, end in word_spans(text))


def word_spans(text: str) -> Spans:
    """Find the spans of the words of a text, (start, end) in characters."""
    return tuple(span for chunk in _CHUNK.finditer(text) for span in _split_chunk(text, *chunk.span()))


def token_spans(text: str) -> Spans:
    """Find the spans of the tokens of a tokenized text, separated by white space as in ``text.split()``."""
    return tuple(chunk.span() for chunk in _CHUNK.finditer(text))


def group_into_words(parts: Sequence[bytes], split: Splitter = word_spans) -> tuple[list[int | None], tuple[str, ...]]:
    """Assign each part of a text to a word; return the word index of each part, and the words.

    ``parts`` are UTF-8 bytes that may end inside a character, or be invalid. Words are found by ``split``; words that
    share a part are merged into one. White space belongs to the word after it, at the end of the text to the last word.
    The index is None for an empty part, and for all parts of a text without words.
    """
    if not callable(split):
        raise OptionError(
            "wrong `split`", expected="a function of a text", got=short_repr(split), do="word_spans, or token_spans"
        )
    # Invalid bytes become one character each, so that positions are kept.
    text = b"".join(parts).decode("utf-8", "surrogateescape")
    spans = split(text)
    begins, ends = _byte_bounds(text, spans)
    starts: list[int] = []
    numbers: list[int | None] = []
    last = -1
    for begin, stop in pairwise(accumulate(map(len, parts), initial=0)):
        if begin == stop or not ends:
            numbers.append(None)
            continue
        first = min(bisect_right(ends, begin), len(ends) - 1)
        if first > last:
            starts.append(first)
        last = max(last, first, bisect_left(begins, stop) - 1)
        numbers.append(len(starts) - 1)
    bounds = pairwise([*starts, len(spans)])
    return numbers, tuple(
        _replace_invalid_bytes(text[spans[start][0] : spans[behind - 1][1]]) for start, behind in bounds
    )


def _byte_bounds(text: str, spans: Spans) -> tuple[list[int], list[int]]:
    """Starts and ends of words, in bytes."""
    bounds = [0, *(bound for span in spans for bound in span)]
    places = list(accumulate(len(_to_bytes(text[first:other])) for first, other in pairwise(bounds)))
    return places[::2], places[1::2]


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _replace_invalid_bytes(text: str) -> str:
    return _to_bytes(text).decode("utf-8", "replace")


def _split_chunk(text: str, start: int, end: int) -> Spans:
    """Split a chunk without white space around each character that is a word of its own."""
    if not _SINGLE_CHARACTER_WORD.search(text, start, end):
        return ((start, end),)
    bounds, after_alone = [start], False
    for index in range(start, end):
        if category(text[index]).startswith("M"):  # stays with its character, and is no word, also without one
            continue
        alone = bool(_SINGLE_CHARACTER_WORD.match(text[index]))
        if index > start and (alone or after_alone):
            bounds.append(index)
        after_alone = alone
    return tuple(zip(bounds, [*bounds[1:], end], strict=True))
