"""Two readings compared: the words that stand at the same place in both, and how much the attention of each head moved.

    moved_i = 1/2 * sum over words j of |first_ij - second_ij|       total variation between the rows of word i: 0 .. 1
    change  = mean of moved_i over the words i that are the same in both texts

Words are aligned in order, by longest equal runs (``difflib``). Words that stand in for as many others are aligned with
these: they count as one key, and not as queries. A word that only one text has counts as a key with a share of 0 in the
other, and not as a query.
Where targets attend to sources, words of the targets are queries and words of the sources keys, and both are aligned.
Words of several tokens: shares are averaged over the query's tokens and summed over the key's. Special tokens are words
of their own; ``without_marks`` leaves them out.

A head is compared with the head of the same number, which means something for two texts, two checkpoints of a training
or two mechanisms. Where models have other numbers of heads, or a reading is compared with itself, it is compared with
the head that is nearest to it: the one with the smallest change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property, partial
from typing import final

import numpy as np
import torch
from jaxtyping import Float32, Float64

from regard.arguments import explain_arguments
from regard.errors import DataError, OptionError, check_kind
from regard.fields import repr_of_fields
from regard.view.attention_layer import AttentionLayer
from regard.view.reading import ALONE, PairReading, Reading, Tokens, kind_label
from regard.view.shares import shares_of
from regard.view.words_from_tokens import Word, aggregate_by_word, words_of

MAX_SHARES = 2**27
"""Maximum number of shares in all heads of a text that are held at once, to find nearest heads: 512 MiB."""

Place = tuple[int | None, int | None]
"""The numbers of two aligned words; None for a word that only one text has."""


@final
@explain_arguments
@dataclass(frozen=True)
class HeadChange:
    """A head of the first reading and one of the second, and the share of attention that moved, from 0 to 1.

    ``outside`` are the mean shares that go to words which only the first text has, and only the second.
    """

    layer: int
    head: int
    other_layer: int
    other_head: int
    change: float
    outside: tuple[float, float]


@final
@explain_arguments
@dataclass(frozen=True)
class WordMove:
    """How the row of one word changed in one head: the words that lost and gained most, with both of their shares.

    ``moved`` is the share of attention that moved, ``lost`` and ``gained`` the numbers of places.
    """

    place: int
    change: HeadChange
    moved: float
    lost: int
    gained: int
    lost_shares: tuple[float, float]
    gained_shares: tuple[float, float]


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class ReadingComparison:
    """Two readings, the words that are aligned, and the changes of heads, the largest first.

    ``names`` are the names of the two, such as those of models. ``moved`` (heads, places) is the share of the attention
    of each word that moved, in the order of ``heads``; NaN for a word that only one text has. ``kind`` is that of
    ``PairReading.attentions``, if the readings are of translations.
    """

    __repr__ = repr_of_fields

    first: Reading
    second: Reading
    names: tuple[str, str]
    places: tuple[Place, ...]
    heads: tuple[HeadChange, ...]
    moved: Float32[np.ndarray, "_heads _places"]
    kind: str = ALONE

    @property
    def is_empty(self) -> bool:
        """Whether there is no layer to show."""
        return not self.heads

    @property
    def title(self) -> str:
        """Both texts, or one if they are equal; of a translation after the kind of attention."""
        titles = " | ".join(dict.fromkeys(self.titles))
        return titles if self.kind == ALONE else f"{kind_label(self.kind)}: {titles}"

    @property
    def titles(self) -> tuple[str, str]:
        """Both texts, each after the text that it attends to if that is another one."""
        readings = (self.first, self.second)
        first, second = (
            reading.title if reading.keys is None else f"{reading.keys.text} → {reading.title}" for reading in readings
        )
        return first, second

    @cached_property
    def same_words(self) -> tuple[int, ...]:
        """The places of the words that are the same in both texts; those whose attention changed most come first."""
        same = [number for number, place in enumerate(self.places) if self._is_same(place)]
        changes = self.moved[:, same].mean(axis=0) if len(self.moved) else np.zeros(len(same))
        return tuple(same[at] for at in np.argsort(-changes, kind="stable"))

    @property
    def listed_words(self) -> tuple[int, ...]:
        """``same_words`` without punctuation and special tokens, if there are others."""
        proper = [place for place in self.same_words if self.words[0][self.places[place][0] or 0].is_word]
        return tuple(proper) or self.same_words

    @property
    def differing_words(self) -> tuple[int, ...]:
        """The places of the words that differ, in order."""
        return tuple(number for number, place in enumerate(self.places) if not self._is_same(place))

    @property
    def differing_key_words(self) -> tuple[int, ...]:
        """The places of the words of the keys that differ; none if the texts attend to themselves."""
        places = () if self.first.keys is None else self.key_places
        return tuple(number for number, place in enumerate(places) if not _are_same(self.key_words, place))

    def _is_same(self, place: Place) -> bool:
        return _are_same(self.words, place)

    @cached_property
    def words(self) -> tuple[tuple[Word, ...], tuple[Word, ...]]:
        """The words of both texts, which ``places`` number."""
        return all_words(self.first.tokens), all_words(self.second.tokens)

    @cached_property
    def key_words(self) -> tuple[tuple[Word, ...], tuple[Word, ...]]:
        """The words of the keys of both, which ``key_places`` number."""
        return all_words(self.first.key_tokens), all_words(self.second.key_tokens)

    @cached_property
    def key_places(self) -> tuple[Place, ...]:
        """The places of the keys: ``places``, unless the texts attend to others."""
        return self.places if self.first.keys is None else align_words(*self.key_words)

    def name_of(self, place: int) -> str:
        """The word at a place: "tired / wide" for two different ones."""
        return _name_place(self.words, self.places[place])

    def name_of_key(self, place: int) -> str:
        """The word at a place of the keys."""
        return _name_place(self.key_words, self.key_places[place])

    def shares_of(self, side: int, layer: int, head: int) -> Float64[np.ndarray, "places key_places"]:
        """The shares of a head of the first (0) or second (1) reading between the words at all places.

        They are 0 for a word that the text does not have.
        """
        reading = (self.first, self.second)[side]
        weights = shares_of(reading.layers[layer], head)[None]
        shares = aggregate_by_word(weights, self.words[side], self.key_words[side])[0]
        rows, columns = (
            np.array([-1 if place[side] is None else place[side] for place in places], dtype=np.int64)
            for places in (self.places, self.key_places)
        )
        return np.asarray(np.pad(shares, ((0, 1), (0, 1)))[np.ix_(rows, columns)])

    def move_in_head(self, number: int) -> WordMove:
        """The row that changed most in the head of this number in ``heads``, of the words that are the same."""
        return self.move_of(number, max(self.same_words, key=lambda place: float(self.moved[number, place])))

    def move_of_word(self, place: int) -> WordMove:
        """The row of the word at a place in the head where it changed most."""
        return self.move_of(int(np.argmax(self.moved[:, place])), place)

    def move_of(self, number: int, place: int) -> WordMove:
        """How the row of the word at a place changed in the head of this number in ``heads``."""
        change = self.heads[number]
        before = self.shares_of(0, change.layer, change.head)[place]
        after = self.shares_of(1, change.other_layer, change.other_head)[place]
        return find_move(place, change, float(self.moved[number, place]), before, after)


def find_move(
    place: int,
    change: HeadChange,
    moved: float,
    before: Float64[np.ndarray, " keys"],
    after: Float64[np.ndarray, " keys"],
) -> WordMove:
    """How a row of shares changed: the keys that lost and gained most."""
    lost, gained = int(np.argmax(before - after)), int(np.argmax(after - before))
    return WordMove(
        place=place,
        change=change,
        moved=moved,
        lost=lost,
        gained=gained,
        lost_shares=(float(before[lost]), float(after[lost])),
        gained_shares=(float(before[gained]), float(after[gained])),
    )


@explain_arguments
def compare_readings(first: Reading, second: Reading, *, names: tuple[str, str] = ("A", "B")) -> ReadingComparison:
    """Compare two readings of texts: two texts, two models or two checkpoints on one text, or two mechanisms.

    ``compare_readings(reading, reading)`` compares each head with the other head that is nearest to it. Raises
    OptionError for the attention of one text to another and that of a text to itself, DataError for texts without a
    word in common, and for heads that are too many and too long to find the nearest of each.
    """
    return _compare(first, second, names, ALONE)


@explain_arguments
def compare_pairs(
    first: PairReading, second: PairReading, *, names: tuple[str, str] = ("A", "B")
) -> tuple[ReadingComparison, ...]:
    """Compare two translations, or two models on one: a comparison for each kind of attention that both have.

    Raises as ``compare_readings``.
    """
    for pair in (first, second):
        check_kind("pair", pair, PairReading, do="make one with regard.view.read_pair")
    attentions = first.attentions, second.attentions
    return tuple(
        _compare(attentions[0][kind], attentions[1][kind], names, kind)
        for kind in attentions[0]
        if kind in attentions[1]
    )


def _compare(first: Reading, second: Reading, names: tuple[str, str], kind: str) -> ReadingComparison:
    for reading in (first, second):
        check_kind("reading", reading, Reading, do="make one with regard.view.read")
    if (first.keys is None) != (second.keys is None):
        raise OptionError(
            "the attention of one text to another cannot be compared with that of a text to itself",
            expected="two readings of one kind of attention",
            got="one with key tokens of its own, and one without",
            do="compare the alignments of two pairs, or pair.source or pair.target with another text",
        )
    words = all_words(first.tokens), all_words(second.tokens)
    places = align_words(*words)
    comparison = ReadingComparison(
        first, second, names, places, (), np.zeros((0, len(places)), dtype=np.float32), kind=kind
    )
    same, both = list(comparison.same_words), [number for number, place in enumerate(places) if None not in place]
    if not same:
        raise DataError(
            "the two texts have no word in common, so nothing can be compared",
            expected="texts that differ in some words",
            got=f"{first.title[:40]!r} and {second.title[:40]!r}",
            do="change a word of a text, and compare it with the text",
        )
    same_numbers = [layer.heads for layer in first.layers] == [layer.heads for layer in second.layers]
    if same_numbers and first is not second:
        heads = [(*head, *head) for head in heads_of(first.layers)]
    else:

        def shares_in(side: int, layer: int, head: int) -> Float64[np.ndarray, "places key_places"]:
            return comparison.shares_of(side, layer, head)[same]

        of_sides = [partial(shares_in, side) for side in (0, 1)]
        heads = nearest_heads(first.layers, second.layers, *of_sides, is_self=first is second)
    moved = np.full((len(heads), len(places)), np.nan, dtype=np.float32)
    changes = []
    only = [[place[side] is None for place in comparison.key_places] for side in (1, 0)]
    for number, head in enumerate(heads):
        sides = comparison.shares_of(0, *head[:2]), comparison.shares_of(1, *head[2:])
        moved[number, both] = np.abs(sides[0] - sides[1])[both].sum(axis=1) / 2
        outside = [
            float(shares[same][:, columns].sum(axis=1).mean()) for shares, columns in zip(sides, only, strict=True)
        ]
        changes.append(HeadChange(*head, float(moved[number, same].mean()), (outside[0], outside[1])))
    order = sorted(range(len(heads)), key=lambda number: -changes[number].change)
    return replace(comparison, heads=tuple(changes[number] for number in order), moved=moved[order])


def all_words(tokens: Tokens) -> tuple[Word, ...]:
    """The words of a text and its special tokens, in order."""
    special = [Word(tokens.surface(at), (at,), is_word=False) for at, mark in enumerate(tokens.special) if mark]
    return tuple(sorted((*words_of(tokens), *special), key=lambda word: word.pieces))


def align_words(first: tuple[Word, ...], second: tuple[Word, ...]) -> tuple[Place, ...]:
    """Align two texts: every word of both, in order, with the word of the other text at its place if there is one."""
    matcher = SequenceMatcher(None, [word.text for word in first], [word.text for word in second], autojunk=False)
    places: list[Place] = []
    for _, start, end, other_start, other_end in matcher.get_opcodes():
        if end - start == other_end - other_start:
            places += zip(range(start, end), range(other_start, other_end), strict=True)
        else:
            places += ((at, None) for at in range(start, end))
            places += ((None, at) for at in range(other_start, other_end))
    return tuple(places)


def _are_same(words: tuple[tuple[Word, ...], tuple[Word, ...]], place: Place) -> bool:
    first, second = place
    return first is not None and second is not None and words[0][first].text == words[1][second].text


def _name_place(words: tuple[tuple[Word, ...], tuple[Word, ...]], place: Place) -> str:
    labels = [of_text[at].label for of_text, at in zip(words, place, strict=True) if at is not None]
    return " / ".join(dict.fromkeys(labels))


def heads_of(layers: Sequence[AttentionLayer]) -> list[tuple[int, int]]:
    """The numbers of all layers and heads, in order."""
    return [(number, head) for number, layer in enumerate(layers) for head in range(layer.heads)]


def nearest_heads(
    layers: Sequence[AttentionLayer],
    other_layers: Sequence[AttentionLayer],
    shares: Callable[[int, int], Float64[np.ndarray, "rows keys"]],
    other_shares: Callable[[int, int], Float64[np.ndarray, "rows keys"]],
    *,
    is_self: bool,
) -> list[tuple[int, int, int, int]]:
    """For each head the head of the other layers with the smallest change, by the ``shares`` of a layer and head.

    With ``is_self`` both are the same heads, and none is its own nearest one. Raises DataError for too many shares.
    """
    numbers, other_numbers = heads_of(layers), heads_of(other_layers)
    if not numbers or not other_numbers:
        return []
    size = (len(numbers) + len(other_numbers)) * shares(*numbers[0]).size
    if size > MAX_SHARES:
        raise DataError(
            "there are too many tokens to find the nearest head of each head",
            expected=f"at most {MAX_SHARES:,} shares in all heads",
            got=f"{size:,}",
            do="compare shorter texts or smaller pictures, or models with the same numbers of heads",
        )
    rows, other_rows = (
        torch.from_numpy(np.stack([of_head(*head).reshape(-1).astype(np.float32) for head in heads]))
        for of_head, heads in ((shares, numbers), (other_shares, other_numbers))
    )
    distances = torch.cdist(rows, other_rows, p=1)
    if is_self and len(numbers) > 1:
        distances.fill_diagonal_(torch.inf)
    nearest = distances.argmin(dim=1).tolist()
    return [(*head, *other_numbers[other]) for head, other in zip(numbers, nearest, strict=True)]
