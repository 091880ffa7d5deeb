"""Terminal view of long texts: the notable pairs of tokens, and the heads that follow a named pattern."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from regard.escape_text import escape_and_isolate, escape_text
from regard.language import translate, translate_count
from regard.view.long_reading import LongPair, LongReading
from regard.view.terminal_tables import Column, fitted_table
from regard.view.terminal_words import print_named_heads

_TITLE = 200
"""Characters of the text that are printed above its tables."""
_PAIRS = 6
"""Notable pairs that are printed, as of shorter texts."""


def print_long_texts(readings: Sequence[LongReading], console: Console) -> None:
    """Print the tables of each text."""
    for reading in readings:
        tokens, heads = len(reading.tokens), len(reading.heads)
        title = escape_text(reading.title[:_TITLE]) + ("…" if len(reading.title) > _TITLE else "")
        console.print(Text(title, style="bold"))
        counts = (
            translate_count(tokens, "token"),
            translate_count(len(reading.layers), "layer"),
            translate_count(heads, "head"),
        )
        console.print(translate("{tokens}, {layers}, {heads}.", tokens=counts[0], layers=counts[1], heads=counts[2]))
        if reading.dropped:
            console.print(
                translate(
                    "Truncated: read the first {tokens} tokens, not the last {dropped}.",
                    tokens=tokens,
                    dropped=reading.dropped,
                ),
                style="yellow",
            )
        if reading.pairs:
            _print_pairs(reading, console)
        print_named_heads([head.statistics for head in reading.heads], console)
        console.print()


def _print_pairs(reading: LongReading, console: Console) -> None:
    console.print(Text(f"\n{translate('Notable pairs of tokens')}", style="bold"))
    columns = (
        Column(translate("tokens"), wraps_from=40),
        Column(translate("share"), "right"),
        Column(translate("layer·head"), "right"),
        Column(translate("usual"), "right", leave_out=1),
    )
    rows = []
    for pair in reading.pairs[:_PAIRS]:
        look = pair.looks[0]
        place = f"{look.layer}·{look.head}"
        rows.append((_names(reading, pair), f"{100 * look.weight:.1f} %", place, f"{100 * look.usual:.1f} %"))
    console.print(fitted_table(columns, rows, console.width))
    console.print(
        translate(
            'Ranked by the share minus the mean share of the head at that distance ("usual"), averaged over the two '
            "strongest heads. Attention shows which tokens a head uses, not why the model decides."
        ),
        style="dim",
    )


def _names(reading: LongReading, pair: LongPair) -> str:
    query = escape_and_isolate(reading.tokens.surface(pair.query))
    key = escape_and_isolate(reading.key_tokens.surface(pair.key))
    return f"{query} ({pair.query:,}) → {key} ({pair.key:,})"
