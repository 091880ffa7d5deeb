"""JSON data of the page that shows two readings side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from regard.errors import DataError
from regard.escape_text import direction_of, escape_text
from regard.view.attention_layer import choose_encoding
from regard.view.pack import ALPHABET, Json
from regard.view.page_data import attention_data
from regard.view.reading import ALONE, Reading
from regard.view.reading_comparison import ReadingComparison, all_words, compare_readings
from regard.view.without_marks import has_marks, unmarked_tokens, without_marks


def build_comparisons_data(comparisons: Sequence[ReadingComparison], model: str, room: int) -> Json:
    """Build all data that the page's script reads, with queries and keys of at most ``room`` characters if possible."""
    sides = [[_without_values(reading) for reading in _readings_of(comparison)] for comparison in comparisons]
    layers = [layer for readings in sides for reading in readings for layer in reading.layers]
    letters, largest_error = choose_encoding(layers, room)
    return {
        "model": escape_text(model),
        "letters": letters,
        "alphabet": ALPHABET,
        "largest_error": largest_error,
        "texts": [
            _comparison(comparison, readings, letters) for comparison, readings in zip(comparisons, sides, strict=True)
        ],
    }


def _readings_of(comparison: ReadingComparison) -> list[Reading]:
    """The two readings; one, if it is compared with itself."""
    return [comparison.first] if comparison.first is comparison.second else [comparison.first, comparison.second]


def _without_values(reading: Reading) -> Reading:
    return replace(reading, layers=tuple(layer.without_values() for layer in reading.layers))


def _comparison(comparison: ReadingComparison, readings: Sequence[Reading], letters: int) -> Json:
    move = comparison.move_of_word(comparison.listed_words[0])
    words = comparison.words[0]
    query = comparison.places[move.place][0]
    keys = (comparison.key_places[place][0] for place in (move.lost, move.gained))
    key = next((place for place in keys if place is not None), None)
    kind = "" if comparison.kind == ALONE else f"-{comparison.kind}"
    unmarked = _unmarked(comparison)
    return {
        "title": escape_text(comparison.title),
        "direction": direction_of(comparison.title),
        "names": [escape_text(name) for name in comparison.names],
        "attentions": [
            {"kind": side + kind, **attention_data(reading, letters), "findings": []}
            for side, reading in zip(("first", "second"), readings, strict=False)
        ],
        "places": comparison.places,
        **({} if comparison.first.keys is None else {"key_places": comparison.key_places}),
        "same": sorted(comparison.same_words),
        "listed": comparison.listed_words,
        "changes": _changes(comparison, range(len(comparison.places))),
        **({} if unmarked is None else {"unmarked_changes": unmarked}),
        "opening": {
            "layer": move.change.layer,
            "head": move.change.head,
            "query": words[query or 0].pieces[0],
            **({} if key is None else {"key": comparison.key_words[0][key].pieces[0]}),
        },
    }


def _changes(comparison: ReadingComparison, columns: Sequence[int]) -> list[Json]:
    """Encode the heads in their order, with the thousandths of attention that moved at each of these places."""
    moved = np.rint(1e3 * np.nan_to_num(comparison.moved, nan=-1e-3)).astype(int)[:, columns]
    return [
        {
            "layer": head.layer,
            "head": head.head,
            "other": [head.other_layer, head.other_head],
            "change": round(head.change, 4),
            "outside": [round(share, 4) for share in head.outside],
            "moved": row,
        }
        for head, row in zip(comparison.heads, moved.tolist(), strict=True)
    ]


def _unmarked(comparison: ReadingComparison) -> list[Json] | None:
    """Encode the comparison without marks, at the places of the whole one; None if that is the same or has no words."""
    readings = [comparison.first, comparison.second]
    if not all(map(has_marks, readings)):
        return None
    first = without_marks(readings[0])
    second = first if readings[0] is readings[1] else without_marks(readings[1])
    try:
        unmarked = compare_readings(first, second)
    except DataError:
        return None
    kept = [_unmarked_words(reading) for reading in readings]
    numbers = {
        tuple(None if word is None else words[word] for word, words in zip(place, kept, strict=True)): number
        for number, place in enumerate(unmarked.places)
    }
    columns = [numbers.get(place, -1) for place in comparison.places]
    padded = np.pad(unmarked.moved, ((0, 0), (0, 1)), constant_values=np.nan)
    return _changes(replace(unmarked, moved=padded), columns)


def _unmarked_words(reading: Reading) -> list[int]:
    """The numbers of the words that have a token without marks, in order."""
    kept = set(unmarked_tokens(reading)[0])
    return [number for number, word in enumerate(all_words(reading.tokens)) if kept.intersection(word.pieces)]
