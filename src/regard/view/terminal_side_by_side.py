"""Terminal summary of a text under several mechanisms: what each keeps and costs, and the notable pairs under each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.comparison.mechanism_choice import option_text
from regard.escape_text import escape_and_isolate, escape_text
from regard.language import translate, translate_count, translate_message
from regard.view.findings import findings
from regard.view.side_by_side import ComputedPanel, SideBySide
from regard.view.terminal_tables import Column, bar, fitted_table
from regard.view.word_pairs import Finding, WordPairs, word_pairs
from regard.view.words_from_tokens import weight_on_word

MAX_PAIRS = 6
_LONGEST_NAME = 20
"""Cells from which the name of a mechanism with its options is wrapped."""
_HEAD_COLUMNS, _GAP, _WEIGHT = 16, 2, 7
"""The most cells of a pair's head and exact weight with their gaps, of a gap, and of a weight."""


def print_side_by_side(readings: Sequence[SideBySide], console: Console) -> None:
    """Print for each text a table of the mechanisms, and one of its notable pairs of words."""
    for number, reading in enumerate(readings, start=1):
        title = Text(f"{number}. " if len(readings) > 1 else "", style="bold")
        console.print(title.append(escape_text(reading.title), style="bold"))
        if reading.exact.dropped:
            console.print(
                translate(
                    "Truncated: read the first {tokens} tokens, not the last {dropped}.",
                    tokens=len(reading.exact.tokens),
                    dropped=reading.exact.dropped,
                ),
                style="yellow",
            )
        console.print(_measures_table(reading, console))
        for name, panel in zip(reading.panel_names, reading.panels, strict=True):
            if panel.refusal is not None:
                refusal = escape_text(translate_message(panel.refusal))
                console.print(
                    translate("{name} refuses: {refusal}.", name=escape_text(name), refusal=refusal), style="yellow"
                )
        _print_chosen(reading, console)
        _print_pairs(reading, console)
        console.print()
    _print_notes(readings, console)
    console.print(
        translate(
            "Every mechanism computes with the queries, keys and values of the model's own layers. Mass kept: sum of "
            "min(exact, other), over all heads and queries. Operations by the catalogue's cost; times of all layers, "
            "the shortest of several, on {threads}. Top {top}: how many of the largest weights are of the same keys. "
            "Short texts say little about speed.",
            threads=translate_count(readings[0].threads, "CPU thread"),
            top=readings[0].top,
        ),
        style="dim",
    )


def _measures_table(compared: SideBySide, console: Console) -> Table:
    """The table of measures; in a narrow terminal without the bar of the mass kept, and without operations."""
    columns = (
        Column(translate("mechanism"), wraps_from=_LONGEST_NAME),
        Column("", leave_out=1),
        Column(translate("mass kept"), "right"),
        Column(translate("top {count}", count=compared.top), "right", leave_out=3),
        Column(translate("error"), "right", leave_out=4),
        Column(translate("operations"), "right", leave_out=2),
        Column(translate("time"), "right"),
    )
    plain = console.options.ascii_only
    rows: list[list[str | Text]] = [
        [compared.exact_name, Text(translate("exact")), "", "", "", "1 x", _format_time(compared.exact_seconds)],
        *(
            [escape_text(name), *_measures_row(compared, panel.computed, plain=plain)]
            for name, panel in zip(compared.panel_names, compared.panels, strict=True)
            if panel.computed is not None
        ),
    ]
    return fitted_table(columns, rows, console.width)


def _measures_row(compared: SideBySide, computed: ComputedPanel, *, plain: bool) -> list[str | Text]:
    ratio = "?"
    if computed.operations is not None and compared.exact_operations:
        ratio = _format_ratio(computed.operations / compared.exact_operations)
    summary = computed.summary
    return [
        bar(summary.mass_kept / 2, plain=plain),
        f"{100 * summary.mass_kept:.1f} %",
        f"{100 * summary.top_agreement:.0f} %",
        f"{100 * summary.output_error:.0f} %",
        ratio,
        _format_time(computed.seconds),
    ]


def _format_ratio(ratio: float) -> str:
    """Format a ratio as the page does (``times`` in mechanisms.js)."""
    return f"{ratio:.{0 if ratio >= 9.95 else 1 if ratio >= 0.995 else 2}f} x"


def _format_time(seconds: float) -> str:
    return f"{1e3 * seconds:.2g} ms" if seconds < 0.1 else f"{seconds:.2g} s"


def _print_chosen(compared: SideBySide, console: Console) -> None:
    """Print the options of the mechanisms that differ from the defaults."""
    chosen = [
        f"{panel.choice.name} "
        + ", ".join(f"{name}={option_text(value)}" for name, value in panel.choice.options.items())
        for panel in compared.panels
        if panel.choice.options
    ]
    if chosen:
        fitted = any(panel.fitted for panel in compared.panels)
        tokens, options = len(compared.exact.tokens), translate("; ").join(chosen)
        text = (
            translate(
                "With {options} (options that were not given are set for {tokens} tokens).",
                options=options,
                tokens=tokens,
            )
            if fitted
            else translate("With {options}.", options=options)
        )
        console.print(escape_text(text), style="dim")


def _print_notes(readings: Sequence[SideBySide], console: Console) -> None:
    """Print what each mechanism needs beside the model's trained weights; without it the measures would mislead."""
    notes = dict.fromkeys(
        translate(
            "{name}: {notes}.", name=panel.choice.name, notes=translate("; ").join(map(translate_message, panel.notes))
        )
        for reading in readings
        for panel in reading.panels
        if panel.notes
    )
    for note in notes:
        console.print(escape_text(note), style="yellow")


def _print_pairs(compared: SideBySide, console: Console) -> None:
    pairs = word_pairs(compared.exact)
    found = findings(pairs, limit=MAX_PAIRS)
    computed = [
        (escape_text(name), panel.computed)
        for name, panel in zip(compared.panel_names, compared.panels, strict=True)
        if panel.computed is not None
    ]
    if not found or not computed:
        return
    labels, pair_title = [_pair_label(pairs, finding) for finding in found], translate("notable pair")
    room = console.width - max(map(cell_len, [pair_title, *labels])) - _HEAD_COLUMNS
    widths = [_GAP + max(_WEIGHT, min(_LONGEST_NAME, cell_len(name))) for name, _ in computed]
    fitting = max(1, sum(total <= room for total in accumulate(widths)))
    if len(computed) > fitting:
        console.print(
            translate(
                "The first {shown} of {count} mechanisms; the page (`out=...`) has all:",
                shown=fitting,
                count=len(computed),
            ),
            style="dim",
        )
        computed = computed[:fitting]
    table = Table(box=None, pad_edge=False)
    table.add_column(pair_title, no_wrap=True)
    for name in (translate("in"), translate("exact"), *(name for name, _ in computed)):
        table.add_column(name, justify="right", overflow="fold")
    for label, finding in zip(labels, found, strict=True):
        table.add_row(Text(label), *_pair_row(compared, [panel for _, panel in computed], pairs, finding))
    console.print(table)


def _pair_label(pairs: WordPairs, finding: Finding) -> str:
    query, key = pairs.query_words[finding.query_word], pairs.key_words[finding.key_word]
    return f"{escape_and_isolate(query.label)} → {escape_and_isolate(key.label)}"


def _pair_row(compared: SideBySide, computed: Sequence[ComputedPanel], pairs: WordPairs, finding: Finding) -> list[str]:
    """The head of a pair, its exact weight, and its weight under each mechanism, all between words."""
    look = finding.looks[0]
    query_word, key_word = pairs.query_words[finding.query_word], pairs.key_words[finding.key_word]
    layers = [compared.exact.layers, *(panel.layers for panel in computed)]
    weights = [weight_on_word(some[look.layer].weights_of(look.head, query_word.pieces), key_word) for some in layers]
    return [f"{look.layer}·{look.head}", *(f"{100 * weight:.1f} %" for weight in weights)]
