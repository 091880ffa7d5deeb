"""Pairs of words: for each pair the two heads in which it is most surprising, and how many heads prefer it.

    surprise = weight - usual weight at that distance                     see ``usual_weights``

Words of several pieces: weights are averaged over the query's pieces and summed over the key's. The weights of
a few heads are in memory at a time (``AttentionLayer.by_head``), and a few numbers for each pair of words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Bool, Float32, Int

from regard.fields import repr_of_fields
from regard.view.reading import Reading
from regard.view.shares import shares_by_head
from regard.view.usual_weights import UsualWeights
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

    __repr__ = repr_of_fields

    query_words: tuple[Word, ...]
    key_words: tuple[Word, ...]
    weight: Float32[np.ndarray, "ranks query_words key_words"]
    usual: Float32[np.ndarray, "ranks query_words key_words"]
    head: Int[np.ndarray, "ranks query_words key_words"]
    first_choice: Int[np.ndarray, "query_words key_words"]
    layer_and_head: tuple[tuple[int, int], ...]  # (layer, head) of each head number
    same_text: bool
    sink: int | None = None  # the key token that is kept apart
    share_of_sink: float | None = None  # its share of the attention of all later tokens, over all heads

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
        if is_mostly_unknown(self.words):
            return np.zeros((len(query), len(key)), dtype=bool)
        pairs = query[:, None] & key[None, :]
        if self.same_text:
            place = np.arange(len(query), dtype=np.int32)
            pairs &= np.abs(place[:, None] - place[None, :]) >= nearest
            # Attention to a repetition of the same word tells little; between two texts it would tell much.
            spelling = self._spellings()
            pairs &= spelling[:, None] != spelling[None, :]
        return pairs

    def _spellings(self) -> Int[np.ndarray, " query_words"]:
        """The number of each word's spelling, whatever its case."""
        numbers: dict[str, int] = {}
        spellings = [numbers.setdefault(word.text.casefold(), len(numbers)) for word in self.query_words]
        return np.array(spellings, dtype=np.int32)


_known_pairs: WeakKeyDictionary[Reading, WordPairs] = WeakKeyDictionary()
"""Pairs of readings that still exist: the page and the terminal show the same ones."""


def word_pairs(reading: Reading) -> WordPairs:
    """Collect every pair of words over all heads; once for each reading, as long as that exists."""
    if reading not in _known_pairs:
        _known_pairs[reading] = _collect_pairs(reading)
    return _known_pairs[reading]


def _collect_pairs(reading: Reading) -> WordPairs:
    query_words = words_of(reading.tokens)
    key_words = words_of(reading.key_tokens)
    shape = (len(query_words), len(key_words))
    ranks = min(2, reading.heads)
    pairs = WordPairs(
        query_words=query_words,
        key_words=key_words,
        weight=np.zeros((ranks, *shape), dtype=np.float32),
        usual=np.zeros((ranks, *shape), dtype=np.float32),
        head=np.zeros((ranks, *shape), dtype=np.int32),
        first_choice=np.zeros(shape, dtype=np.int32),
        layer_and_head=tuple((at, head) for at, layer in enumerate(reading.layers) for head in range(layer.heads)),
        same_text=reading.keys is None,
        sink=reading.sink,
    )
    if 0 in shape:
        return pairs
    shares_of_sink = []
    surprise = np.full((ranks, *shape), -np.inf, dtype=np.float32)
    proper = pairs.candidates(nearest=1)
    usual_weights = UsualWeights(len(reading.tokens), len(reading.key_tokens), query_words, key_words, reading.sink)
    every_head = (shares for layer in reading.layers for shares in shares_by_head(layer))
    for number, shares in enumerate(every_head):
        weight, usual = (
            aggregate_by_word(each[None], query_words, key_words)[0].astype(np.float32)
            for each in (shares, usual_weights.of(shares))
        )
        _keep_best_two(pairs, surprise, weight, usual, number)
        _count_first_choice(pairs.first_choice, np.where(proper, weight, np.float32(-1.0)))
        if reading.sink is not None and reading.sink + 1 < len(shares):
            shares_of_sink.append(float(shares[reading.sink + 1 :, reading.sink].mean()))
    return replace(pairs, share_of_sink=float(np.mean(shares_of_sink)) if shares_of_sink else None)


def _keep_best_two(
    pairs: WordPairs,
    surprise: Float32[np.ndarray, "ranks query_words key_words"],
    weight: Float32[np.ndarray, "query_words key_words"],
    usual: Float32[np.ndarray, "query_words key_words"],
    number: int,
) -> None:
    """Insert a head where it is more surprising than the first or the second one."""
    new = weight - usual
    kept = ((surprise, new), (pairs.weight, weight), (pairs.usual, usual), (pairs.head, number))
    is_first = new > surprise[0]
    if len(surprise) > 1:
        is_second = ~is_first & (new > surprise[1])
        for ranked, value in kept:
            np.copyto(ranked[1], ranked[0], where=is_first)
            np.copyto(ranked[1], value, where=is_second)
    for ranked, value in kept:
        np.copyto(ranked[0], value, where=is_first)


def _count_first_choice(
    counts: Int[np.ndarray, "query_words key_words"], weight: Float32[np.ndarray, "query_words key_words"]
) -> None:
    chosen = weight.argmax(axis=1)
    rows = np.flatnonzero(weight.max(axis=1) > 0)
    counts[rows, chosen[rows]] += 1
