"""Tables of words in the terminal: the word that each attends to most, and the findings."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.escape_text import escape_and_isolate
from regard.language import join_sentences, translate, translate_message
from regard.text.unknown_words import UNKNOWN_WORDS_ADVICE
from regard.view.findings import findings, strongest_finding_per_word
from regard.view.head_patterns import pattern_label
from regard.view.head_statistics import HeadStatistics, statistics_of
from regard.view.reading import Reading
from regard.view.shares import signed_note
from regard.view.terminal_tables import Column, bar, fitted_table
from regard.view.without_marks import without_marks
from regard.view.word_pairs import Finding, WordPairs, word_pairs
from regard.view.words_from_tokens import is_mostly_unknown, unknown_words_note, words_note

_LONGEST_WORD = 20
"""Cells from which a word is wrapped."""
MAX_WORDS = 40
MAX_HEADS = 4  # maximum number of heads with the name of a pattern


def print_words(reading: Reading, console: Console) -> None:
    """Print the self-attention of a text: its table of words and its findings."""
    pairs = word_pairs(reading)
    note = unknown_words_note(pairs.words)
    if note:
        console.print(
            translate("{note} Such words are read as one unknown token, and excluded here.", note=note), style="yellow"
        )
    if is_mostly_unknown(pairs.words):
        rest = translate("That is most of the text, so the rest is not shown.")
        console.print(join_sentences((rest, translate_message(UNKNOWN_WORDS_ADVICE))), style="yellow")
        return
    _print_sink(reading, pairs, console)
    looks = strongest_finding_per_word(pairs)
    if not looks:
        console.print(translate("The text has no two words that could attend to each other."))
        return
    console.print(_words_table(looks[:MAX_WORDS], pairs, console))
    print_omitted_count(len(looks), translate("words"), console)
    console.print(
        join_sentences(
            (
                translate(
                    "For each word, the one it attends to most beyond the head's usual weight at that distance. Layers "
                    "and heads are counted from 0."
                ),
                signed_note(reading.layers),
                words_note(reading),
            )
        ),
        style="dim",
    )
    _print_findings(findings(pairs), pairs, console)
    _print_patterns(reading, console)


def _print_sink(reading: Reading, pairs: WordPairs, console: Console) -> None:
    """Print how much attention the token gets that is kept apart, if there is one."""
    if reading.sink is None or pairs.share_of_sink is None:
        return
    name = escape_and_isolate(reading.tokens.surface(reading.sink))
    first = reading.sink == 0
    console.print(
        translate(
            "{token} gets {share} % of the attention of all later ones. It is kept apart: many heads attend there when "
            "they find nothing relevant.",
            token=translate("The first token, {name},", name=name)
            if first
            else translate("The token {name}", name=name),
            share=f"{100 * pairs.share_of_sink:.1f}",
        ),
        style="dim",
    )


def print_omitted_count(count: int, name: str, console: Console) -> None:
    """Print how many of ``count`` rows a table of words omits, if any."""
    if count > MAX_WORDS:
        console.print(translate("… and {more} more {name}.", more=count - MAX_WORDS, name=name), style="dim")


def format_pair(finding: Finding, pairs: WordPairs, *, plain: bool) -> Text:
    """Format the two words of a finding."""
    pair = Text(escape_and_isolate(pairs.query_words[finding.query_word].label), style="bold")
    return pair.append(" -> " if plain else " → ").append(escape_and_isolate(pairs.key_words[finding.key_word].label))


def _words_table(looks: Sequence[Finding], pairs: WordPairs, console: Console) -> Table:
    columns = (
        Column(translate("word"), wraps_from=_LONGEST_WORD),
        Column(translate("attends to"), wraps_from=_LONGEST_WORD),
        Column(translate("share"), "right"),
        Column("", leave_out=1),
        Column(translate("layer"), "right"),
        Column(translate("head"), "right"),
    )
    rows = [
        (
            Text(escape_and_isolate(pairs.query_words[finding.query_word].label)),
            Text(escape_and_isolate(pairs.key_words[finding.key_word].label)),
            f"{100 * finding.looks[0].weight:.1f} %",
            bar(finding.looks[0].weight, plain=console.options.ascii_only),
            str(finding.looks[0].layer),
            str(finding.looks[0].head),
        )
        for finding in looks
    ]
    return fitted_table(columns, rows, console.width)


def _print_findings(found: Sequence[Finding], pairs: WordPairs, console: Console) -> None:
    if not found:
        return
    console.print(Text(f"\n{translate('Notable word pairs')}", style="bold"))
    columns = (
        Column(translate("word pair"), wraps_from=2 * _LONGEST_WORD),
        Column(translate("share"), "right"),
        Column(translate("layer"), "right"),
        Column(translate("head"), "right"),
        Column(translate("usual"), "right", leave_out=3),
        Column(translate("also"), "right", leave_out=2),
        Column(translate("first in"), "right", leave_out=1),
    )
    rows = [_finding_cells(finding, pairs, plain=console.options.ascii_only) for finding in found]
    console.print(fitted_table(columns, rows, console.width))
    console.print(
        translate(
            'Ranked by the share minus the head\'s usual share at that distance ("usual"), averaged over the two '
            'strongest heads (the second, layer·head, under "also"). "first in": how many heads prefer this word. '
            "Attention shows which tokens a head uses, not why the model decides."
        ),
        style="dim",
    )


def _finding_cells(finding: Finding, pairs: WordPairs, *, plain: bool) -> tuple[str | Text, ...]:
    first, *others = finding.looks
    return (
        format_pair(finding, pairs, plain=plain),
        f"{100 * first.weight:.1f} %",
        str(first.layer),
        str(first.head),
        f"{100 * first.usual:.1f} %",
        ", ".join(
            translate("{share} % in {head}", share=f"{100 * look.weight:.1f}", head=f"{look.layer}·{look.head}")
            for look in others
        ),
        translate("{part} of {whole}", part=finding.first_choice, whole=finding.heads),
    )


def _print_patterns(reading: Reading, console: Console) -> None:
    """Print the heads that follow a named pattern beside the attention to marks; nothing if no head does."""
    left_out = translate(", without special tokens and a first token that is kept apart")
    print_named_heads(statistics_of(without_marks(reading)), console, left_out=left_out)


def print_named_heads(statistics: Sequence[HeadStatistics], console: Console, *, left_out: str = "") -> None:
    """Print the heads that follow a named pattern; nothing if no head does. ``left_out`` says what does not count."""
    heads: dict[str, list[tuple[float, str]]] = {}
    chances = {}
    for head in statistics:
        if head.pattern is not None:
            heads.setdefault(head.pattern.name, []).append((head.pattern.score, f"{head.layer}·{head.head}"))
            chances[head.pattern.name] = head.pattern.chance
    if not heads:
        return
    console.print(Text(f"\n{translate('Heads with a named pattern')}", style="bold"))
    columns = (
        Column(translate("pattern")),
        Column(translate("chance"), "right", leave_out=1),
        Column(translate("layer·head"), wraps_from=24),
    )
    rows = []
    for name, found in sorted(heads.items(), key=lambda item: max(item[1]), reverse=True):
        shown = [f"{head} {100 * score:.0f} %" for score, head in sorted(found, reverse=True)[:MAX_HEADS]]
        more = [translate("and {more} more", more=len(found) - MAX_HEADS)] if len(found) > MAX_HEADS else []
        rows.append((pattern_label(name), f"{100 * chances[name]:.0f} %", ", ".join(shown + more)))
    console.print(fitted_table(columns, rows, console.width))
    console.print(
        translate(
            'The share of attention that follows the pattern{left_out}; uniform attention would have "chance".',
            left_out=left_out,
        ),
        style="dim",
    )
