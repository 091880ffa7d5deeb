"""The words that the tokens of a classifier's answer attended to in the last layer.

    cls     the attention of the first token, averaged over the heads
    mean    the attention of all tokens, averaged over the tokens and the heads

A word's share is the sum over its tokens; special tokens count as words of their own.
"""

from __future__ import annotations

from regard.view.reading import Reading
from regard.view.shares import mean_shares
from regard.view.words_from_tokens import words_of

MAX_LABELS, MAX_WORDS = 6, 8
"""Labels and words of an answer that views show."""


def answer_words(reading: Reading) -> tuple[tuple[str, float], ...]:
    """The words of a text and their shares, the largest first; none if the reading has no answer or no layer."""
    if reading.answer is None or not reading.layers:
        return ()
    weights = mean_shares(reading.layers[-1])
    row = weights[0] if reading.answer.pooling == "cls" else weights.mean(axis=0)
    words = [(word.label, float(row[list(word.pieces)].sum())) for word in words_of(reading.tokens)]
    special = [token for token, is_special in enumerate(reading.tokens.special) if is_special]
    words += [(reading.tokens.surface(token), float(row[token])) for token in special]
    return tuple(sorted(words, key=lambda one: -one[1]))
