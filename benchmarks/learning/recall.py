"""Associative recall by distance: sequences of key-value pairs among noise, each pair queried once, n tokens later.

    . k3 v1 . . k7 v4 k3 . . . k7 . .        the query k3 asks for v1, n = 3 tokens after it; k7 for v4, n = 4

A sequence of ``length`` tokens holds ``2 * octaves`` pairs with different keys. A pair is a key and then its value; its
query is the same key again, n tokens after the value, and the answer is the value. The distances n of two pairs are
drawn from each octave 2-3, 4-7, 8-15, .., evenly, so each sequence asks at every scale, and an offset alone does not
tell where the answer is. Values are drawn independently: a guess is right with a probability of 1/``VALUES``. Keys,
values and noise have tokens of their own, and all other places hold noise.

The nearest published task is multi-query associative recall: Arora et al. 2024, "Zoology: measuring and improving
recall in efficient language models", section 4. There all pairs stand at the beginning, gaps follow a power law, and
keys and values share one vocabulary of thousands of tokens; here pairs stand anywhere, so the distance is the only
thing that differs between the octaves.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Int
from torch import Tensor

from regard.errors import OptionError, check_count

KEYS, VALUES, NOISE = 64, 16, 16
"""Number of different keys, values and noise tokens."""
VOCABULARY = KEYS + VALUES + NOISE
"""Token ids: keys, then values, then noise."""
PAIRS_PER_OCTAVE = 2
_PLACING_ATTEMPTS = 1000
"""Attempts to place a pair before the sequence is started again."""


@final
class Query(NamedTuple):
    """The place of a query in its sequence, its answer (a value from 0), and the tokens from the value to the query."""

    place: int
    answer: int
    distance: int


@final
class RecallSequence(NamedTuple):
    """The token ids of a sequence, and its queries."""

    ids: list[int]
    queries: list[Query]


@final
class RecallBatch(NamedTuple):
    """Sequences as tensors; the queries of all sequences are in one dimension, and ``rows`` are their sequences."""

    ids: Int[Tensor, "batch length"]
    rows: Int[Tensor, " queries"]
    places: Int[Tensor, " queries"]
    answers: Int[Tensor, " queries"]
    distances: Int[Tensor, " queries"]

    @classmethod
    def of(cls, sequences: Sequence[RecallSequence], device: torch.device) -> RecallBatch:
        """Make the tensors of one or more sequences on ``device``."""
        queries = [(row, *query) for row, one in enumerate(sequences) for query in one.queries]
        columns = torch.tensor(queries, device=device).T
        return cls(torch.tensor([one.ids for one in sequences], device=device), *columns.unbind())


@final
@dataclass(frozen=True)
class RecallProblem:
    """Sequences of ``length`` tokens with distances in ``octaves`` octaves: from 2 to 2^(octaves + 1) - 1.

    Raises OptionError unless the longest distance fits into the sequence, and its pairs take at most a third of it.
    """

    octaves: int = 7
    length: int = 320

    def __post_init__(self) -> None:
        check_count("octaves", self.octaves)
        check_count("length", self.length)
        least = max(self.longest + 2, 9 * self.queries)
        if self.length < least:
            raise OptionError(
                "the pairs do not fit into the sequence",
                expected=f"a length of {least} or more for {self.octaves} octaves",
                got=str(self.length),
                do="raise length (--length), or lower octaves (--octaves)",
            )

    @property
    def longest(self) -> int:
        """The longest distance."""
        return int(2 ** (self.octaves + 1) - 1)

    @property
    def queries(self) -> int:
        """The number of queries of a sequence."""
        return PAIRS_PER_OCTAVE * self.octaves

    @property
    def octave_names(self) -> tuple[str, ...]:
        """The distances of each octave, such as "4-7"."""
        return tuple(f"{2**one}-{2 ** (one + 1) - 1}" for one in range(1, self.octaves + 1))

    def draw(self, chance: random.Random, size: int) -> list[RecallSequence]:
        """Draw ``size`` sequences."""
        return [self._draw_sequence(chance) for _ in range(size)]

    def _draw_sequence(self, chance: random.Random) -> RecallSequence:
        while True:
            tokens = [-1] * self.length
            queries = self._place_pairs(chance, tokens)
            if queries is not None:
                noise = range(KEYS + VALUES, VOCABULARY)
                return RecallSequence([chance.choice(noise) if token < 0 else token for token in tokens], queries)

    def _place_pairs(self, chance: random.Random, tokens: list[int]) -> list[Query] | None:
        """Put pairs and queries into free places of ``tokens``, the most distant first; None if one finds no place."""
        keys, queries = chance.sample(range(KEYS), self.queries), []
        for number, key in enumerate(keys):
            low = 2 ** (self.octaves - number // PAIRS_PER_OCTAVE)
            for _ in range(_PLACING_ATTEMPTS):
                distance = chance.randrange(low, 2 * low)
                first = chance.randrange(self.length - 1 - distance)
                places = (first, first + 1, first + 1 + distance)
                if all(tokens[place] < 0 for place in places):
                    break
            else:
                return None
            value = chance.randrange(VALUES)
            for place, token in zip(places, (key, KEYS + value, key), strict=True):
                tokens[place] = token
            queries.append(Query(places[2], value, distance))
        return queries
