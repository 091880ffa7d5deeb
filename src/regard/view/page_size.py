"""The predicted size of a page: of queries, keys and values, of weights, of pictures, and of summaries of texts.

    numbers     of queries, keys and values, or of the weights of a layer without steps, in the encoding that the page
                chooses; of projections, if they fit
    summary     of each head an overview of patches x patches, two characters each; of the chosen queries the strongest
                keys, ``ROW_BYTES`` each; and its statistics

A summary of many heads or texts is coarser, to stay within ``MAX_SUMMARY_BYTES`` and its part of ``MAX_PAGE_BYTES``.
``fit_page`` chooses the form of a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from regard.fields import repr_of_fields
from regard.view.pack import characters_of, choose_letters
from regard.view.picture_reading import PictureReading
from regard.view.reading import Reading

MAX_VECTOR_CHARACTERS = 880_000
"""Characters of vectors that keep the data of a page below 1 MiB; the most precise encoding that fits is used."""
MAX_PAGE_BYTES = 32_000_000
"""Size of the data of a page, at most: a BERT base with the 512 tokens that it reads has 28 MB."""
MAX_SUMMARY_BYTES = 8_000_000
"""Size of the summary of one text, at most, if its heads allow it: it fits into a mail."""
MAX_WHOLE_TOKENS = 1024
"""Tokens of a text, at most, whose weights a page computes and draws one by one."""
MAX_PATCHES = 64
"""Patches of an overview along each side, at most."""
MAX_QUERIES = 128
"""Queries at even distances whose strongest keys are stored, at most."""
MAX_PAIRS = 24
"""Notable pairs, at most."""
ROW_KEYS = 16
"""Keys of such a query that are stored, at most."""
ROW_BYTES = 5 * ROW_KEYS
_HEAD_BYTES = 300
"""Statistics of a head on a whole page."""
_STATISTICS_BYTES = 600
_TOKEN_BYTES = 4.5
_MAX_PICTURE_BYTES = 270_000


@final
@dataclass(frozen=True)
class SummaryDetail:
    """Sizes of what a summary holds of each head: patches along each side, queries at even distances, notable pairs."""

    __repr__ = repr_of_fields

    patches: int = MAX_PATCHES
    queries: int = MAX_QUERIES
    pairs: int = MAX_PAIRS

    @property
    def bytes_of_head(self) -> int:
        """The size of a head without its statistics."""
        return 2 * self.patches**2 + ROW_BYTES * (self.queries + self.pairs)


def choose_detail(reading: Reading, texts: int = 1) -> SummaryDetail:
    """Choose the most detailed summary of one of so many texts that fits: a share of each part if need be."""
    finest, limit = SummaryDetail(), min(MAX_SUMMARY_BYTES, MAX_PAGE_BYTES / max(1, texts))
    room = (limit - _TOKEN_BYTES * len(reading.tokens)) / max(1, reading.heads) - _STATISTICS_BYTES
    share = min(1.0, max(0.0, room / finest.bytes_of_head))
    parts = (MAX_PATCHES * share**0.5, MAX_QUERIES * share, MAX_PAIRS * share)
    return SummaryDetail(*(max(1, int(part)) for part in parts))


def bytes_of_summary(reading: Reading, texts: int = 1) -> float:
    """The size of the summary of one of so many texts, about."""
    head = choose_detail(reading, texts).bytes_of_head + _STATISTICS_BYTES
    return head * reading.heads + _TOKEN_BYTES * len(reading.tokens)


def bytes_of_numbers(numbers: int, heads: int) -> float:
    """The size of so many numbers, and of the statistics of so many heads, on a page, about."""
    return characters_of(numbers, choose_letters(numbers, MAX_VECTOR_CHARACTERS)) + _HEAD_BYTES * heads


def bytes_of_picture(reading: PictureReading) -> float:
    """The size of a picture and of the rollout of its layers, about."""
    rollout = 0 if reading.rollout is None else 3 * reading.rollout.size
    return min(1.4 * reading.pixels.size, _MAX_PICTURE_BYTES) + rollout


def has_many_tokens(reading: object) -> bool:
    """Whether a reading is of one text, and of too many tokens to show every weight."""
    return isinstance(reading, Reading) and max(len(reading.tokens), len(reading.key_tokens)) > MAX_WHOLE_TOKENS
