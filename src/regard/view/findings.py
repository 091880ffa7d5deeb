"""Findings: the notable pairs of words, with more attention than their distance explains.

For a head, the usual weight at distance d is its mean weight from all *other* words' tokens to the token d away.
A pair of words is scored by

    surprise = mean over its two strongest heads of (weight - usual weight at that distance)

so heads that always attend to the previous token, or to [SEP], score nothing, and a single unusual head is not
enough. In a text of more than ``LONG_TEXT`` words some head has a large weight between some two distant words by their
positions alone, such as a head of the previous token at a distance at which its position embeddings are alike. There
the second head must agree: it is at least ``AGREEMENT`` times as surprising as the first. Words of several pieces:
weights are averaged over the query's pieces and summed over the key's. Special tokens, punctuation, words outside the
vocabulary (all of them are one token to the model), repetitions of the query word, direct neighbours, and a token that
is kept apart (``Reading.sink``) are excluded. A text with mostly unknown words has no findings. Attention shows which
tokens a head uses, not why the model decides (Jain and Wallace 2019), and the views say so.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Int

from regard.view.reading import Reading
from regard.view.shares import shares_of
from regard.view.word_pairs import Finding, WordPairs
from regard.view.words_from_tokens import Word, weight_on_word

LONG_TEXT = 64
"""The number of words from which the second head of a finding must agree with the first."""
AGREEMENT = 0.5
"""The least surprise of the second head then, as a share of the first's."""


def findings(pairs: WordPairs, limit: int = 6, minimum: float = 0.1) -> tuple[Finding, ...]:
    """Rank the most surprising pairs of words that are not neighbours: at most ``limit``, of at least ``minimum``.

    Beside a token that is kept apart, ``minimum`` is a share of the rest.
    """
    minimum *= 1 - (pairs.share_of_sink or 0.0)
    by_head, candidates = pairs.weight - pairs.usual, pairs.candidates(nearest=2)
    if len(pairs.query_words) > LONG_TEXT:
        candidates &= by_head[-1] >= AGREEMENT * by_head[0]
    surprise = np.where(candidates, by_head.mean(axis=0), -np.inf)
    ranked = _largest_places(surprise.reshape(-1), limit)
    chosen = [np.unravel_index(place, surprise.shape) for place in ranked if surprise.flat[place] >= minimum]
    return tuple(pairs.finding(int(query), int(key)) for query, key in chosen)


def strongest_finding_per_word(pairs: WordPairs) -> tuple[Finding, ...]:
    """Find for each word the one with the most surprising weight in any single head; neighbours count."""
    proper = pairs.candidates(nearest=1)
    best = []
    for query_word in np.flatnonzero(proper.any(axis=1)):
        surprise = (pairs.weight[0] - pairs.usual[0])[query_word]
        key_word = int(np.argmax(np.where(proper[query_word], surprise, -np.inf)))
        if pairs.weight[0, query_word, key_word] > 0:  # a mask may hide all other words from the first word
            best.append(pairs.finding(int(query_word), key_word))
    return tuple(best)


def weight_of_pair(reading: Reading, query_word: Word, key_word: Word, layer: int, head: int) -> float:
    """Weight of one head from one word to another: the mean over query pieces, the sum over key pieces."""
    return weight_on_word(shares_of(reading.layers[layer], head, query_word.pieces), key_word)


def strongest_pieces(reading: Reading, query_word: Word, key_word: Word, layer: int, head: int) -> tuple[int, int]:
    """Find the query token with the largest weight on the key word in one head, and the key token it prefers."""
    rows = shares_of(reading.layers[layer], head, query_word.pieces)[:, list(key_word.pieces)]
    query = int(rows.sum(axis=1).argmax())
    return query_word.pieces[query], key_word.pieces[int(rows[query].argmax())]


def _largest_places(numbers: Float32[np.ndarray, " pairs"], count: int) -> Int[np.ndarray, " places"]:
    """Find the places of the largest numbers, the largest first and equal ones in order; of a text, pairs are many."""
    if len(numbers) <= count:
        places = np.arange(len(numbers))
    else:
        places = np.flatnonzero(numbers >= np.partition(numbers, -count)[-count])
    return np.asarray(places[np.argsort(-numbers[places], kind="stable")][:count])
