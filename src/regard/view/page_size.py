"""The size of the page of a text, predicted before it is built: whether it holds every weight, or a summary of heads.

    whole       two characters for each number of queries, keys and values, or each weight of a layer without steps
    summary     of each head an overview of patches x patches, two characters each; of the chosen queries the strongest
                keys, ``ROW_BYTES`` each; and its statistics

A text is summarized if it has too many tokens to draw, or if the whole page would exceed ``MAX_WHOLE_BYTES``. Up to
``MAX_PATCHES`` tokens a summary would have every pair of tokens, too, and be hardly smaller, so that such a text is
whole whatever its model. A summary of many heads is coarser, to stay within ``MAX_SUMMARY_BYTES``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from regard.fields import repr_of_fields
from regard.view.reading import Reading

MAX_WHOLE_BYTES = 32_000_000
"""Size of the data of one text with every weight, at most: a BERT base with the 512 tokens that it reads has 28 MB."""
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
_STATISTICS_BYTES = 600
_TOKEN_BYTES = 4.5


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


def choose_detail(reading: Reading) -> SummaryDetail:
    """Choose the most detailed summary of a text within ``MAX_SUMMARY_BYTES``: a share of each part if need be."""
    finest = SummaryDetail()
    room = (MAX_SUMMARY_BYTES - _TOKEN_BYTES * len(reading.tokens)) / max(1, reading.heads) - _STATISTICS_BYTES
    share = min(1.0, max(0.0, room / finest.bytes_of_head))
    parts = (MAX_PATCHES * share**0.5, MAX_QUERIES * share, MAX_PAIRS * share)
    return SummaryDetail(*(max(1, int(part)) for part in parts))


def bytes_of_whole(reading: Reading) -> int:
    """The size of all vectors and weights of a text on a large page, about."""
    return 2 * sum(layer.size for layer in reading.layers)


def bytes_of_summary(reading: Reading) -> float:
    """The size of the summary of a text, about."""
    head = choose_detail(reading).bytes_of_head + _STATISTICS_BYTES
    return head * reading.heads + _TOKEN_BYTES * len(reading.tokens)


def has_many_tokens(reading: object) -> bool:
    """Whether a reading is of one text, and of too many tokens to show every weight."""
    return isinstance(reading, Reading) and _longest(reading) > MAX_WHOLE_TOKENS


def is_summarized(reading: object) -> bool:
    """Whether a reading is of one text, and too large for a page with all of its weights."""
    if has_many_tokens(reading):
        return True
    return (
        isinstance(reading, Reading) and _longest(reading) > MAX_PATCHES and bytes_of_whole(reading) > MAX_WHOLE_BYTES
    )


def _longest(reading: Reading) -> int:
    return max(len(reading.tokens), len(reading.key_tokens))
