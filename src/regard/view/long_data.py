"""JSON data of the page of long texts: tokens by number, and for each head what ``long_reading`` computes of it.

    tokens      the different tokens of the text, and the number of each token in three letters
    overviews   one letter for the largest share of a patch and one for its mean: ``pack_logarithms``
    rows        of each chosen query the numbers of keys in three letters, and their shares in two

About 21 kB for a head at most, and 4 bytes for a token: 0.5 MB for 100,000 tokens with four heads, 3.0 MB for a GPT-2
small (``page_size``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from regard.escape_text import direction_of, escape_text
from regard.view.long_reading import LongHead, LongPair, LongReading
from regard.view.pack import ALPHABET, Json, pack_integers, pack_logarithms
from regard.view.page_data import statistics_table, token_entries
from regard.view.reading import Tokens

_MAX_TITLE = 200
"""Characters of a text that stand in its tab and in the list of texts."""


def build_long_data(readings: Sequence[LongReading], model: str, room: int) -> Json:
    """Build all data that the page's script reads. It does not depend on ``room``: a text takes what its heads take."""
    del room
    return {
        "model": escape_text(model),
        "alphabet": ALPHABET,
        "served": any(reading.is_served for reading in readings),
        "texts": [_text(reading) for reading in readings],
    }


def _text(reading: LongReading) -> Json:
    is_alone = reading.key_tokens is reading.tokens
    statistics = [head.statistics for head in reading.heads]
    title = escape_text(reading.title[:_MAX_TITLE]).strip()
    return {
        "title": title + ("…" if len(reading.title) > _MAX_TITLE else ""),
        "direction": direction_of(reading.title),
        "tokens": _tokens(reading.tokens),
        "key_tokens": None if is_alone else _tokens(reading.key_tokens),
        "dropped": reading.dropped,
        "signed": any(reading.signed),
        "layers": [sum(head.layer == layer for head in statistics) for layer in range(len(reading.layers))],
        "queries": pack_integers(np.array(reading.queries), 3),
        "heads": [_head(head) for head in reading.heads],
        "statistics": statistics_table(statistics, reading.uniform, is_alone=is_alone),
        "pairs": [_pair(pair) for pair in reading.pairs],
    }


def _tokens(tokens: Tokens) -> Json:
    """The different tokens, with a space before those that follow one, and the number of each token."""
    numbers: dict[str, int] = {}
    order = []
    for entry in token_entries(tokens, ()):
        surface = f" {entry}" if isinstance(entry, str) else (" " if "gap" in entry else "") + str(entry["surface"])
        order.append(numbers.setdefault(surface, len(numbers)))
    return {"vocabulary": list(numbers), "numbers": pack_integers(np.array(order), 3)}


def _head(head: LongHead) -> Json:
    return {
        "size": list(head.largest.shape),
        "largest": pack_logarithms(head.largest, 1),
        "mean": pack_logarithms(head.mean, 1),
        "row_keys": head.keys.shape[1],
        "keys": pack_integers(head.keys, 3),
        "shares": pack_logarithms(head.shares, 2),
    }


def _pair(pair: LongPair) -> Json:
    looks = [
        {"layer": look.layer, "head": look.head, "weight": round(look.weight, 4), "usual": round(look.usual, 4)}
        for look in pair.looks
    ]
    return {"query": pair.query, "key": pair.key, "looks": looks}
