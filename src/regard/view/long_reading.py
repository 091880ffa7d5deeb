"""A long text in few numbers: what a page holds of a text whose queries, keys and values would be too many.

For each head:

    statistics    as of any text (``head_statistics``), over all queries and keys
    overview      patches of queries x keys, at most 64 x 64, in each the largest share of attention of a key, and the
                  mean over the queries of the share of all keys of the patch
    rows          of chosen queries the ``ROW_KEYS`` keys with the largest shares: queries at even distances, and those
                  of the notable pairs

``page_size`` decides how many of them.

All weights are computed once, block by block, so that memory is linear in the length of the text. A notable pair is

    surprise = mean over its two strongest heads of (share - mean share of the head at that distance)

for the key that a head gives most of a query's attention to, among words that are neither the same nor neighbours. The
second head must be at least ``AGREEMENT`` times as surprising as the first (``findings``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from regard.fields import repr_of_fields
from regard.view.attention_layer import AttentionLayer
from regard.view.findings import AGREEMENT
from regard.view.head_patterns import LayerPatterns, PatternPairs
from regard.view.head_statistics import HeadStatistics, HeadSums, describe_uniform
from regard.view.page_size import ROW_KEYS, choose_detail
from regard.view.reading import Reading, Tokens
from regard.view.shares import shares_by_block, shares_of
from regard.view.word_pairs import Look
from regard.view.words_from_tokens import Word, is_mostly_unknown, words_of

MIN_SURPRISE = 0.1
"""The surprise from which a pair is notable."""
FIRST_QUERIES = 64
"""The first queries of a decoder, none of which is notable: each of their few keys has a large share."""
_CANDIDATES = 4096
"""The most surprising pairs of a head that are compared with those of other heads."""


@final
@dataclass(frozen=True, eq=False)
class LongHead:
    """One head of a long text: statistics, the overview, and the strongest keys of the chosen queries."""

    __repr__ = repr_of_fields

    statistics: HeadStatistics
    largest: Float32[np.ndarray, "query_patches key_patches"]
    mean: Float32[np.ndarray, "query_patches key_patches"]
    keys: Int[np.ndarray, "chosen row_keys"]
    shares: Float32[np.ndarray, "chosen row_keys"]


@final
@dataclass(frozen=True)
class LongPair:
    """A notable pair of tokens and the two heads that show it, the more surprising first."""

    query: int
    key: int
    looks: tuple[Look, ...]
    surprise: float


@final
@dataclass(frozen=True, eq=False)
class LongReading:
    """One text of any length in few numbers: its tokens, and ``heads`` in order of layer and head.

    ``layers`` are names, ``queries`` the chosen queries, ``uniform`` is the entropy of uniform attention. ``signed``
    says for each layer whether its weights may be below 0, so that shares are of their absolute values. ``is_served``
    says that a server computes the other weights when the page asks for them (``serve``).
    """

    __repr__ = repr_of_fields

    tokens: Tokens
    key_tokens: Tokens
    layers: tuple[str, ...]
    signed: tuple[bool, ...]
    heads: tuple[LongHead, ...]
    queries: tuple[int, ...]
    pairs: tuple[LongPair, ...]
    uniform: str
    dropped: int = 0
    is_served: bool = False

    @property
    def title(self) -> str:
        """The text, as the title of the reading."""
        return self.tokens.text

    @property
    def is_empty(self) -> bool:
        """Whether there is no layer to show."""
        return not self.layers


def estimate_seconds(reading: Reading) -> float:
    """The time that ``summarize_long`` takes, about, on a core of a laptop."""
    return reading.heads * (6e-3 + 15e-9 * len(reading.tokens) * len(reading.key_tokens))


def summarize_long(
    reading: Reading, advance: Callable[[int], None] = lambda done: None, *, texts: int = 1
) -> LongReading:
    """Compute the few numbers of one of so many texts on a page.

    ``advance`` is called with the share of the work done, in thousandths.
    """
    pairs, words, detail = PatternPairs(reading), _WordPlaces(reading), choose_detail(reading, texts)
    edges = [_edges(len(tokens), detail.patches) for tokens in (reading.tokens, reading.key_tokens)]
    heads: list[_HeadParts] = []
    for number, layer in enumerate(reading.layers):
        patterns = LayerPatterns(pairs, layer)
        parts = [_HeadParts(reading, edges) for _ in range(layer.heads)]
        for rows, by_head in shares_by_block(layer):
            possible = patterns.of_queries(rows)
            for part, shares in zip(parts, by_head, strict=True):
                part.sums.add(shares, rows, possible)
                part.add_to_overview(shares, rows)
                part.add_strongest(words.hide_near(shares, rows), rows)
            advance(round(1000 * (number + rows.stop / layer.queries) / len(reading.layers)))
        for part in parts:
            part.keep_candidates()
        heads += parts
    places = [(number, head) for number, layer in enumerate(reading.layers) for head in range(layer.heads)]
    notable = () if is_mostly_unknown(words.words) else _notable_pairs(heads, places, words)[: detail.pairs]
    queries = _choose_queries(len(reading.tokens), detail.queries, notable)
    made = tuple(
        part.finish(reading.layers[layer], layer, head, queries)
        for part, (layer, head) in zip(heads, places, strict=True)
    )
    return LongReading(
        tokens=reading.tokens,
        key_tokens=reading.key_tokens,
        layers=tuple(layer.name for layer in reading.layers),
        signed=tuple(layer.is_signed for layer in reading.layers),
        heads=made,
        queries=queries,
        pairs=notable,
        uniform=describe_uniform(reading, [head.statistics for head in made]),
        dropped=reading.dropped,
    )


@final
class _HeadParts:
    """The numbers of one head while blocks of its queries are added."""

    def __init__(self, reading: Reading, edges: Sequence[Int[np.ndarray, " edges"]]) -> None:
        queries, keys = len(reading.tokens), len(reading.key_tokens)
        self.sums = HeadSums(reading)
        self._edges = edges
        self._largest = np.zeros((len(edges[0]) - 1, len(edges[1]) - 1))
        self._sum = np.zeros_like(self._largest)
        self._strongest: Int[np.ndarray, " queries"] = np.zeros(queries, dtype=np.int32)
        self._share: Float32[np.ndarray, " queries"] = np.zeros(queries, dtype=np.float32)
        self._keys = keys
        self.candidates: dict[tuple[int, int], tuple[float, float]] = {}

    def add_to_overview(self, shares: Float[np.ndarray, "rows first_keys"], rows: range) -> None:
        """Add the largest share and the sum of each patch."""
        patch = np.searchsorted(self._edges[0], np.arange(rows.start, rows.stop), side="right") - 1
        starts = self._edges[1][:-1]
        some = starts[starts < shares.shape[1]]
        np.maximum.at(self._largest[:, : len(some)], patch, np.maximum.reduceat(shares, some, axis=1))
        np.add.at(self._sum[:, : len(some)], patch, np.add.reduceat(shares, some, axis=1))

    def add_strongest(self, shares: Float[np.ndarray, "rows first_keys"], rows: range) -> None:
        """Keep the strongest key of each query."""
        strongest = shares.argmax(axis=1)
        self._strongest[rows.start : rows.stop] = strongest
        self._share[rows.start : rows.stop] = shares[np.arange(len(rows)), strongest]

    def keep_candidates(self) -> None:
        """Keep the share and the usual share of the most surprising of the strongest keys, by query and key."""
        queries = len(self._strongest)
        at = self._strongest - np.arange(queries) + queries - 1
        shorter = min(queries, self._keys)
        counts = np.minimum(
            np.minimum(np.arange(1, queries + self._keys), shorter), np.arange(queries + self._keys - 1, 0, -1)
        )
        usual = (self.sums.by_distance / counts)[at]
        surprise = self._share - usual
        order = np.argsort(-surprise, kind="stable")[:_CANDIDATES]
        chosen = order[surprise[order] > 0]
        self.candidates = {
            (int(query), int(self._strongest[query])): (float(self._share[query]), float(usual[query]))
            for query in chosen
        }

    def finish(self, layer: AttentionLayer, number: int, head: int, queries: Sequence[int]) -> LongHead:
        """Compute the rows of the chosen queries, and return the head."""
        rows = shares_of(layer, head, queries)
        count = min(ROW_KEYS, rows.shape[1])
        keys = np.argpartition(-rows, count - 1, axis=1)[:, :count]
        shares = np.take_along_axis(rows, keys, axis=1)
        order = np.argsort(-shares, axis=1, kind="stable")
        sizes = np.diff(self._edges[0])[:, None]
        return LongHead(
            statistics=self.sums.statistics(number, head),
            largest=self._largest.astype(np.float32),
            mean=(self._sum / sizes).astype(np.float32),
            keys=np.take_along_axis(keys, order, axis=1),
            shares=np.take_along_axis(shares, order, axis=1).astype(np.float32),
        )


@final
class _WordPlaces:
    """Which keys may be notable for a query: tokens of known words that are neither the same word nor a neighbour."""

    def __init__(self, reading: Reading) -> None:
        self.words = words_of(reading.tokens)
        self._text = {token: word.text.casefold() for word in self.words for token in word.pieces}
        key_words = self.words if reading.keys is None else words_of(reading.keys)
        self._key_text = {token: word.text.casefold() for word in key_words for token in word.pieces}
        self._is_query, self._is_key = (
            _tokens_of_words(self.words, len(reading.tokens)),
            _tokens_of_words(key_words, len(reading.key_tokens)),
        )
        if reading.sink is not None:
            self._is_key[reading.sink] = False
            self._is_query[:FIRST_QUERIES] = False
        self._near = _neighbours(self.words, len(reading.tokens)) if reading.keys is None else None

    def hide_near(
        self, shares: Float[np.ndarray, "rows first_keys"], rows: range
    ) -> Float[np.ndarray, "rows first_keys"]:
        """The shares of keys that may be notable, 0 for others."""
        hidden = shares * self._is_key[: shares.shape[1]]
        hidden[~self._is_query[rows.start : rows.stop]] = 0
        if self._near is not None:
            for row, (first, last) in enumerate(self._near[rows.start : rows.stop]):
                hidden[row, first:last] = 0
        return hidden

    def are_different(self, query: int, key: int) -> bool:
        """Whether the words of a query and a key are spelled differently."""
        return self._text.get(query) != self._key_text.get(key)


def _tokens_of_words(words: Sequence[Word], size: int) -> Bool[np.ndarray, " tokens"]:
    is_proper = np.zeros(size, dtype=bool)
    is_proper[[token for word in words if word.is_word and word.is_known for token in word.pieces]] = True
    return is_proper


def _neighbours(words: Sequence[Word], size: int) -> Int[np.ndarray, "tokens 2"]:
    """The first and the last token, exclusive, of the words next to the word of each token, and of itself."""
    near = np.zeros((size, 2), dtype=np.int64)
    for number, word in enumerate(words):
        before, after = words[max(0, number - 1)], words[min(len(words) - 1, number + 1)]
        near[list(word.pieces)] = before.pieces[0], after.pieces[-1] + 1
    return near


def _notable_pairs(
    heads: Sequence[_HeadParts], places: Sequence[tuple[int, int]], words: _WordPlaces
) -> tuple[LongPair, ...]:
    """Rank the pairs of which two heads agree, or one if there is a single head; of each query the first."""
    looks: dict[tuple[int, int], list[Look]] = {}
    for part, (layer, head) in zip(heads, places, strict=True):
        for pair, (share, usual) in part.candidates.items():
            if words.are_different(*pair):
                looks.setdefault(pair, []).append(Look(layer, head, share, usual))
    found = []
    for (query, key), own in looks.items():
        best = sorted(own, key=lambda look: look.usual - look.weight)[:2]
        surprises = [look.weight - look.usual for look in best]
        if len(heads) == 1 or (len(best) == 2 and surprises[1] >= AGREEMENT * surprises[0]):
            found.append(LongPair(query, key, tuple(best), float(np.mean(surprises))))
    found.sort(key=lambda pair: (-pair.surprise, pair.query))
    first = {pair.query: pair for pair in reversed(found) if pair.surprise >= MIN_SURPRISE}
    return tuple(pair for pair in found if first.get(pair.query) is pair)


def _choose_queries(tokens: int, count: int, pairs: Sequence[LongPair]) -> tuple[int, ...]:
    even = np.linspace(0, tokens - 1, min(tokens, count)).round().astype(int).tolist()
    return tuple(sorted({*even, *(pair.query for pair in pairs)}))


def _edges(tokens: int, limit: int) -> Int[np.ndarray, " edges"]:
    """The first tokens of at most ``limit`` patches, and the number of tokens."""
    patches = min(tokens, limit)
    return np.asarray(np.arange(patches + 1) * tokens // patches)
