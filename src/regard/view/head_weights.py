"""The weights of one head, or the mean of several, with the names of their rows and columns: for figures and tables.

A place that is not chosen is where the page opens: the strongest finding of a text; of a translation the layer whose
mean over the heads gives the alignments; of a classifier's first token the mean of its last layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from jaxtyping import Float64

from regard.errors import DataError, OptionError, check_choice, check_count, short_repr
from regard.escape_text import escape_text
from regard.fields import repr_of_fields
from regard.view.findings import findings, strongest_pieces
from regard.view.reading import PairReading, Reading, Tokens
from regard.view.word_pairs import word_pairs
from regard.view.words_from_tokens import Word, aggregate_by_word, words_of

MEAN = "mean"
"""In place of the number of a head: the mean over all heads of the layer."""


@final
@dataclass(frozen=True)
class Place:
    """A layer and a head of it, None for the mean of all; and the token that is the query."""

    layer: int
    head: int | None
    token: int

    @property
    def name(self) -> str:
        """The layer and the head, as figures and messages call them."""
        return f"layer {self.layer}, {'mean of all heads' if self.head is None else f'head {self.head}'}"


@final
@dataclass(frozen=True, eq=False)
class HeadWeights:
    """Weights of one head with the names of rows and columns; ``sink`` is the column that is kept apart, if any.

    ``row`` is the row of the chosen token.
    """

    __repr__ = repr_of_fields

    place: Place
    weights: Float64[np.ndarray, "rows columns"]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    row: int
    is_signed: bool
    sink: int | None

    @property
    def largest(self) -> float:
        """The largest absolute weight without the column that is kept apart; 1 if all are 0."""
        sizes = np.abs(self.weights if self.sink is None else np.delete(self.weights, self.sink, axis=1))
        return float(sizes.max(initial=0.0)) or 1.0


def find_attention(reading: Reading | PairReading, attention: str | None) -> Reading:
    """The kind of attention of this name, such as "source" of a translation; None is the first one."""
    kinds = reading.attentions
    if attention is None:
        return next(iter(kinds.values()))
    check_choice("kind of attention", attention, kinds)
    return kinds[attention]


def find_place(reading: Reading | PairReading, shown: Reading, *, layer: Any, head: Any, token: Any) -> Place:
    """The place that these arguments choose: ``head`` is a number, "mean", or None.

    Without a layer it is where the page opens; with a layer and no head the mean of all. ``token`` is a number, or the
    text of a token, which is then the first such. Raises OptionError for a place that ``shown`` does not have.
    """
    if reading.is_empty:
        raise no_layers_error(reading)
    if layer is None:
        if head is not None:
            raise OptionError(
                "`head` needs a layer", expected="`layer` and `head`", got=f"head {short_repr(head)} alone",
                do="add `layer`, counted from 0",
            )  # fmt: skip
        place = opening_place(reading, shown)
    else:
        check_count("`layer`", layer, minimum=0, maximum=len(shown.layers) - 1, example=0)
        place = Place(int(layer), find_head(head, shown.layers[int(layer)].heads), _usual_token(shown))
    return place if token is None else replace(place, token=_find_token(shown.tokens, token))


def find_head(head: Any, heads: int) -> int | None:
    """The number of a head; None for the mean of all. Raises OptionError for a head that the layer does not have."""
    if head is None or (isinstance(head, str) and head == MEAN):
        return None
    check_count("`head`", head, minimum=0, maximum=heads - 1, example=0)
    return int(head)


def no_layers_error(reading: Any) -> DataError:
    """The error for a figure or a table of a reading without layers."""
    return DataError(
        "a reading without layers has nothing to draw", expected="one layer of attention or more",
        got=f"none, for {reading.title[:40]!r}", do="record a call of the model",
    )  # fmt: skip


def head_weights(shown: Reading, place: Place, *, words: bool = False) -> HeadWeights:
    """The weights at a place; ``words`` joins tokens of a word: the mean over its queries, the sum over its keys."""
    layer = shown.layers[place.layer]
    weights = layer.mean_weights() if place.head is None else layer.weights_of(place.head)
    queries, keys = _parts(shown.tokens, words=words), _parts(shown.key_tokens, words=words)
    if words:
        weights = aggregate_by_word(weights[None], queries, keys)[0]
    return HeadWeights(
        place=place,
        weights=weights,
        rows=_names(queries),
        columns=_names(keys),
        row=_part_with(queries, place.token),
        is_signed=layer.is_signed,
        sink=None if shown.sink is None else _part_with(keys, shown.sink),
    )


def opening_place(reading: Reading | PairReading, shown: Reading) -> Place:
    """Where the page of ``reading`` opens, for one of its kinds of attention."""
    if shown.keys is not None:
        layer = reading.alignment_layer if isinstance(reading, PairReading) else 0
        return Place(layer, None, _usual_token(shown))
    if shown.answer is not None and shown.answer.pooling == "cls":
        return Place(len(shown.layers) - 1, None, 0)
    pairs = word_pairs(shown)
    for finding in findings(pairs, limit=1):
        look = finding.looks[0]
        query, key = pairs.query_words[finding.query_word], pairs.key_words[finding.key_word]
        return Place(look.layer, look.head, strongest_pieces(shown, query, key, look.layer, look.head)[0])
    return Place(0, 0, _usual_token(shown))


def _usual_token(shown: Reading) -> int:
    """The first token that is not special; of a decoder the last one, since its first token attends to itself."""
    if shown.sink is not None:
        return len(shown.tokens) - 1
    return next((token for token, special in enumerate(shown.tokens.special) if not special), 0)


def _find_token(tokens: Tokens, token: Any) -> int:
    if not isinstance(token, str):
        check_count("`token`", token, minimum=0, maximum=len(tokens) - 1, example=0)
        return int(token)
    surfaces = [tokens.surface(number) for number in range(len(tokens))]
    found = [number for number, surface in enumerate(surfaces) if token in (surface, tokens.pieces[number])]
    if not found:
        raise OptionError(
            f"the text has no token {short_repr(token)}", expected="one of " + short_repr(surfaces),
            got=short_repr(token), do="choose one of them, or its number from 0",
        )  # fmt: skip
    return found[0]


def _parts(tokens: Tokens, *, words: bool) -> tuple[Word, ...]:
    """The tokens, or the words and the special tokens, in order."""
    if not words:
        return tuple(Word(tokens.surface(number), (number,), True) for number in range(len(tokens)))
    special = [Word(tokens.surface(number), (number,), False) for number, is_one in enumerate(tokens.special) if is_one]
    return tuple(sorted((*words_of(tokens), *special), key=lambda word: word.pieces))


def _names(parts: Sequence[Word]) -> tuple[str, ...]:
    return tuple(escape_text(part.text) for part in parts)


def _part_with(parts: Sequence[Word], token: int) -> int:
    return next((number for number, part in enumerate(parts) if token in part.pieces), 0)
