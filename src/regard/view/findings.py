"""Findings: the notable pairs of words, with more attention than their distance explains.

For a head, the usual weight at distance d is its mean weight from all *other* words' tokens to the token d away.
A pair of words is scored by

    surprise = mean over its two strongest heads of (weight - usual weight at that distance)

so heads that always attend to the previous token, or to [SEP], score nothing, and a single unusual head is not
enough. Words of several pieces: weights are averaged over the query's pieces and summed over the key's. Special
tokens, punctuation, words outside the vocabulary (all of them are one token to the model), repetitions of the query
word, direct neighbours, and a token that is kept apart (``Reading.sink``) are excluded. A text with mostly unknown
words has no findings. Attention shows which tokens a head uses, not why the model decides (Jain and Wallace 2019), and
the views say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float64, Int

from regard.view.reading import Reading
from regard.view.shares import share_of_sink, shares_of
from regard.view.words_from_tokens import Word, aggregate_by_word, is_mostly_unknown, words_of


@final
@dataclass(frozen=True)
class Look:
    """Attention of one head from one word to another: the weight, and the head's usual weight at that distance."""

    layer: int
    head: int
    weight: float
    usual: float


@final
@dataclass(frozen=True)
class Finding:
    """A pair of words (indices into the text's words) and the heads that show it, the strongest weight first.

    In ``first_choice`` of ``heads`` heads, this key word gets the query word's largest share among words.
    """

    query_word: int
    key_word: int
    looks: tuple[Look, ...]
    surprise: float
    first_choice: int
    heads: int


@final
@dataclass(frozen=True, eq=False)
class WordPairs:
    """Every pair of words: its two most surprising heads (numbered across layers), and how many heads prefer it."""

    query_words: tuple[Word, ...]
    key_words: tuple[Word, ...]
    weight: Float64[np.ndarray, "ranks query_words key_words"]
    usual: Float64[np.ndarray, "ranks query_words key_words"]
    head: Int[np.ndarray, "ranks query_words key_words"]
    first_choice: Int[np.ndarray, "query_words key_words"]
    layer_and_head: tuple[tuple[int, int], ...]  # (layer, head) of each head number
    same_text: bool
    sink: int | None = None  # the key token that is kept apart
    rest: float = 1.0  # the share of attention that this token does not get

    @property
    def words(self) -> tuple[Word, ...]:
        """All words: the query words, and the key words if they belong to another text."""
        return self.query_words if self.same_text else self.query_words + self.key_words

    def finding(self, query_word: int, key_word: int) -> Finding:
        """Make a finding of one pair, by the indices of its words."""
        at = (slice(None), query_word, key_word)
        looks = [
            Look(
                layer=self.layer_and_head[head][0],
                head=self.layer_and_head[head][1],
                weight=float(weight),
                usual=float(usual),
            )
            for head, weight, usual in zip(self.head[at], self.weight[at], self.usual[at], strict=True)
        ]
        return Finding(
            query_word=query_word,
            key_word=key_word,
            looks=tuple(sorted(looks, key=lambda look: -look.weight)),
            surprise=float(np.mean([look.weight - look.usual for look in looks])),
            first_choice=int(self.first_choice[query_word, key_word]),
            heads=len(self.layer_and_head),
        )

    def candidates(self, nearest: int) -> Bool[np.ndarray, "query_words key_words"]:
        """Mask of pairs of different, known words (no punctuation); within one text, at least ``nearest`` words apart.

        All False if most words are unknown.
        """
        query = np.array([word.is_word and word.is_known for word in self.query_words], dtype=bool)
        key = np.array(
            [word.is_word and word.is_known and self.sink not in word.pieces for word in self.key_words], dtype=bool
        )
        apart = np.abs(np.arange(len(query))[:, None] - np.arange(len(key))[None, :])
        far = apart >= nearest if self.same_text else np.ones_like(apart, dtype=bool)
        readable = not is_mostly_unknown(self.words)
        return np.asarray(readable & query[:, None] & key[None, :] & far & ~self._same_word_mask())

    def _same_word_mask(self) -> Bool[np.ndarray, "query_words key_words"]:
        # Attention to a repetition of the same word tells little; between two texts it would tell much.
        query = np.array([word.text.casefold() for word in self.query_words], dtype=object)
        key = np.array([word.text.casefold() for word in self.key_words], dtype=object)
        return np.asarray((query[:, None] == key[None, :]) & self.same_text, dtype=bool)


def word_pairs(reading: Reading) -> WordPairs:
    """Collect every pair of words over all heads, one layer at a time (memory: heads x tokens^2 of one layer)."""
    query_words = words_of(reading.tokens)
    key_words = words_of(reading.key_tokens)
    shape = (len(query_words), len(key_words))
    ranks = min(2, reading.heads)
    pairs = WordPairs(
        query_words=query_words,
        key_words=key_words,
        weight=np.zeros((ranks, *shape)),
        usual=np.zeros((ranks, *shape)),
        head=np.zeros((ranks, *shape), dtype=np.int64),
        first_choice=np.zeros(shape, dtype=np.int64),
        layer_and_head=tuple((at, head) for at, layer in enumerate(reading.layers) for head in range(layer.heads)),
        same_text=reading.keys is None,
        sink=reading.sink,
        rest=1.0 if reading.sink is None else 1.0 - share_of_sink(reading),
    )
    if 0 in shape:
        return pairs
    surprise = np.full((ranks, *shape), -np.inf)
    proper = pairs.candidates(nearest=1)
    number = 0
    for layer in reading.layers:
        token_weights = shares_of(layer)
        weights = aggregate_by_word(token_weights, query_words, key_words)
        usual = aggregate_by_word(
            _usual_weights(token_weights, query_words, key_words, reading.sink), query_words, key_words
        )
        for weight, expected in zip(weights, usual, strict=True):
            _keep_best_two(pairs, surprise, weight, expected, number)
            _count_first_choice(pairs.first_choice, np.where(proper, weight, -1.0))
            number += 1
    return pairs


def findings(pairs: WordPairs, limit: int = 6, least: float = 0.1) -> tuple[Finding, ...]:
    """Rank the most surprising pairs of words that are not neighbours: at most ``limit``, of at least ``least``.

    Beside a token that is kept apart, ``least`` is a share of the rest.
    """
    surprise = np.where(pairs.candidates(nearest=2), (pairs.weight - pairs.usual).mean(axis=0), -np.inf)
    ranked = np.argsort(-surprise, axis=None, kind="stable")[:limit]
    chosen = [np.unravel_index(place, surprise.shape) for place in ranked if surprise.flat[place] >= least * pairs.rest]
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
    rows = shares_of(reading.layers[layer])[head][list(query_word.pieces)]
    return float(rows[:, list(key_word.pieces)].sum(axis=1).mean())


def strongest_pieces(reading: Reading, query_word: Word, key_word: Word, layer: int, head: int) -> tuple[int, int]:
    """Find the query token with the largest weight on the key word in one head, and the key token it prefers."""
    rows = shares_of(reading.layers[layer])[head][list(query_word.pieces)][:, list(key_word.pieces)]
    query = int(rows.sum(axis=1).argmax())
    return query_word.pieces[query], key_word.pieces[int(rows[query].argmax())]


def _usual_weights(
    weights: Float64[np.ndarray, "heads queries keys"],
    query_words: tuple[Word, ...],
    key_words: tuple[Word, ...],
    sink: int | None,
) -> Float64[np.ndarray, "heads queries keys"]:
    """Mean weight at the same distance from other words' tokens; the uniform share 1/keys if there is none.

    What the key ``sink`` gets is not counted.
    """
    heads, queries, keys = weights.shape
    owner = np.full(queries, -1)
    for number, word in enumerate(query_words):
        owner[list(word.pieces)] = number
    looked_at = np.zeros(keys, dtype=bool)
    for word in key_words:
        looked_at[list(word.pieces)] = True
    if sink is not None:
        looked_at[sink] = False
    distance = np.arange(keys)[None, :] - np.arange(queries)[:, None] + queries - 1
    distances = queries + keys - 1
    counted = (owner >= 0)[:, None] & looked_at[None, :]
    # One bin for each word and distance; the sum over words less the own bin is "all other words".
    place = owner[:, None] * distances + distance
    size = len(query_words) * distances

    def of_others(amounts: Float64[np.ndarray, "queries keys"]) -> Float64[np.ndarray, "queries keys"]:
        own = np.bincount(place[counted], weights=amounts[counted], minlength=size).reshape(-1, distances)
        others = own.sum(axis=0)[None, :] - own
        return np.asarray(others[np.maximum(owner, 0)[:, None], distance])

    count = of_others(np.ones((queries, keys)))
    usual = np.full((heads, queries, keys), 1 / keys)
    for head in range(heads):
        np.divide(of_others(weights[head]), count, out=usual[head], where=count > 0.5)
    return np.maximum(usual, 0.0)


def _keep_best_two(
    pairs: WordPairs,
    surprise: Float64[np.ndarray, "ranks query_words key_words"],
    weight: Float64[np.ndarray, "query_words key_words"],
    usual: Float64[np.ndarray, "query_words key_words"],
    number: int,
) -> None:
    new = weight - usual
    first = new > surprise[0]
    for ranked in (surprise, pairs.weight, pairs.usual, pairs.head):
        ranked[1:, first] = ranked[:-1, first]
    for rank, better in enumerate([first, ~first & (new > surprise[-1])][: len(surprise)]):
        surprise[rank][better] = new[better]
        pairs.weight[rank][better] = weight[better]
        pairs.usual[rank][better] = usual[better]
        pairs.head[rank][better] = number


def _count_first_choice(
    counts: Int[np.ndarray, "query_words key_words"], weight: Float64[np.ndarray, "query_words key_words"]
) -> None:
    chosen = weight.argmax(axis=1)
    rows = np.flatnonzero(weight.max(axis=1) > 0)
    counts[rows, chosen[rows]] += 1
