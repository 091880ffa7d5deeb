"""Terminal summary of two readings compared: the heads and the words whose attention changed most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.text import Text

from regard.escape_text import escape_and_isolate, escape_text
from regard.language import translate, translate_message
from regard.view.picture_comparison import PictureComparison
from regard.view.reading import ALONE, kind_label
from regard.view.reading_comparison import HeadChange, Place, ReadingComparison, WordMove
from regard.view.terminal_tables import Column, bar, fitted_table

MAX_HEADS, MAX_WORDS = 6, 6
_LONGEST_WORD = 20
"""Cells from which a word is wrapped."""


def print_comparisons(comparisons: Sequence[ReadingComparison], console: Console) -> None:
    """Print each comparison: the texts, and tables of its heads and words."""
    for comparison in comparisons:
        _print_texts(comparison, console)
        moves = [comparison.move_in_head(number) for number in range(len(comparison.heads))[:MAX_HEADS]]
        rows = [
            (_head_text(move.change), move.change.change, _place_text(comparison, move.place), move) for move in moves
        ]
        title = translate("Heads whose attention changed most")
        _print_moves(title, (translate("head"), translate("word")), rows, comparison, console)
        moves = [comparison.move_of_word(place) for place in comparison.listed_words[:MAX_WORDS]]
        means = comparison.moved.mean(axis=0)
        rows = [
            (_place_text(comparison, move.place), float(means[move.place]), _head_text(move.change), move)
            for move in moves
        ]
        title = translate("Words whose attention changed most")
        _print_moves(title, (translate("word"), translate("head")), rows, comparison, console)
        console.print()
    console.print(
        translate(
            "Changed: the share of attention that moved to other words (total variation), averaged over the words that "
            "are the same in both, or over all heads. Beside it where that is most, and the words that lost and gained "
            "most there. Layers and heads are counted from 0."
        ),
        style="dim",
    )


def print_picture_comparisons(comparisons: Sequence[PictureComparison], console: Console) -> None:
    """Print each comparison of pictures: their names and labels, and a table of the heads."""
    for comparison in comparisons:
        for name, reading in zip(comparison.names, (comparison.first, comparison.second), strict=True):
            line = _name_side(name).append(escape_text(reading.title), style="bold")
            if reading.probabilities:
                label, share = reading.probabilities[0]
                line.append(f"  {escape_and_isolate(label)} {100 * share:.1f} %")
            console.print(line)
        if any((head.layer, head.head) != (head.other_layer, head.other_head) for head in comparison.heads):
            console.print(translate("Each head is compared with the head that is nearest to it."), style="dim")
        _print_heads_of_pictures(comparison, console)
        console.print()
    console.print(
        translate(
            "Changed: the share of attention that moved to other places (total variation), averaged over all tokens. "
            "Beside it the token whose attention changed most, and the places that lost and gained most of it. "
            "Tokens at the same place are compared. Layers, heads, rows and columns are counted from 0."
        ),
        style="dim",
    )


def _print_heads_of_pictures(comparison: PictureComparison, console: Console) -> None:
    noun, plain = comparison.first.noun, console.options.ascii_only
    moves = [comparison.move_in_head(number) for number in range(len(comparison.heads))[:MAX_HEADS]]
    cells = [
        (
            Text(_head_text(move.change), style="bold"),
            f"{100 * move.change.change:.1f} %",
            bar(move.change.change, plain=plain),
            Text(comparison.first.layers[move.change.layer].name_of(move.place)),
            _shares_text(comparison.name_of_key(move, move.lost), move.lost_shares, plain=plain),
            _shares_text(comparison.name_of_key(move, move.gained), move.gained_shares, plain=plain),
        )
        for move in moves
    ]
    console.print(fitted_table(_columns(translate("head"), translate_message(noun)), cells, console.width))


def _print_texts(comparison: ReadingComparison, console: Console) -> None:
    if comparison.kind != ALONE:
        console.print(Text(kind_label(comparison.kind), style="bold"))
    for name, title in zip(comparison.names, comparison.titles, strict=True):
        console.print(_name_side(name).append(escape_text(title), style="bold"))
    differing = [_place_text(comparison, place) for place in comparison.differing_words]
    differing += [_key_text(comparison, place) for place in comparison.differing_key_words]
    if differing:
        console.print(translate("Different: {names}.", names=translate(", ").join(differing)), style="dim")
    outside = [100 * float(np.mean([head.outside[side] for head in comparison.heads])) for side in (0, 1)]
    if any(outside):
        console.print(
            translate(
                "Words that only one text has get {first} of the attention in the first and {second} in the second, on "
                "average over all heads.",
                first=f"{outside[0]:.1f} %",
                second=f"{outside[1]:.1f} %",
            ),
            style="dim",
        )
    if any((head.layer, head.head) != (head.other_layer, head.other_head) for head in comparison.heads):
        console.print(translate("Each head is compared with the head that is nearest to it."), style="dim")


def _name_side(name: str) -> Text:
    return Text(translate("{name}: ", name=escape_text(name)), style="dim")


def _place_text(comparison: ReadingComparison, place: int) -> str:
    return _sign_of(comparison.places[place]) + escape_and_isolate(comparison.name_of(place))


def _key_text(comparison: ReadingComparison, place: int) -> str:
    return _sign_of(comparison.key_places[place]) + escape_and_isolate(comparison.name_of_key(place))


def _sign_of(place: Place) -> str:
    """A minus before a word that only the first text has, a plus before one that only the second has."""
    first, second = place
    return "-" if second is None else "+" if first is None else ""


def _head_text(change: HeadChange) -> str:
    first, second = f"{change.layer}·{change.head}", f"{change.other_layer}·{change.other_head}"
    return first if first == second else f"{first} / {second}"


def _print_moves(
    title: str,
    names: tuple[str, str],
    rows: Sequence[tuple[str, float, str, WordMove]],
    comparison: ReadingComparison,
    console: Console,
) -> None:
    """Print a table of heads with their words, or of words with their heads."""
    console.print(Text(f"\n{title}", style="bold"))
    plain = console.options.ascii_only
    cells = [
        (
            Text(label, style="bold"),
            f"{100 * changed:.1f} %",
            bar(changed, plain=plain),
            Text(other),
            _shares_text(_key_text(comparison, move.lost), move.lost_shares, plain=plain),
            _shares_text(_key_text(comparison, move.gained), move.gained_shares, plain=plain),
        )
        for label, changed, other, move in rows
    ]
    console.print(fitted_table(_columns(*names), cells, console.width))


def _columns(name: str, other: str) -> tuple[Column, ...]:
    return (
        Column(name, wraps_from=_LONGEST_WORD),
        Column(translate("changed"), "right"),
        Column("", leave_out=1),
        Column(other, wraps_from=_LONGEST_WORD),
        Column(translate("less to"), wraps_from=_LONGEST_WORD + 20),
        Column(translate("more to"), wraps_from=_LONGEST_WORD + 20),
    )


def _shares_text(name: str, shares: tuple[float, float], *, plain: bool) -> Text:
    """A word and its shares in both readings: "animal 67.7 → 28.1 %"."""
    arrow = "->" if plain else "→"
    return Text(f"{name} {100 * shares[0]:.1f} {arrow} {100 * shares[1]:.1f} %")
