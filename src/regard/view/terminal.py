"""The terminal view: for each word what it attends to most, the findings, and shared words layer by layer.

More than ``TABLES_SHOWN`` texts get one line each, the strongest finding, since tables for all would flood the screen.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.view.compare import SharedWord, shared_words
from regard.view.findings import Finding, WordPairs, attended_most, findings, word_pairs
from regard.view.reading import Reading
from regard.view.visible import isolated, visible
from regard.view.words import vocabulary_gap

BAR_WIDTH = 20  # characters of a share of 100 %
WORDS_SHOWN = 40
SHARED_SHOWN = 8
PAIR_WIDTH = 30  # characters of a pair of words where a text has one line
TABLES_SHOWN = 10  # texts, up to which each has its tables
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def print_readings(readings: Sequence[Reading], console: Console) -> None:
    """Prints every text, with its tables where there are few, and the words that several texts share."""
    if len(readings) > TABLES_SHOWN:
        _print_lines(readings, console)
    else:
        for number, reading in enumerate(readings, start=1):
            print_reading(reading, console, number=number if len(readings) > 1 else None)
            console.print()
    if len(readings) > 1:
        print_shared(readings, console)


def print_reading(reading: Reading, console: Console, *, number: int | None = None) -> None:
    """Prints one text: its table of words and its findings. ``number``, from 1, names it among several."""
    pairs = word_pairs(reading)
    title = Text(f"{number}. " if number is not None else "", style="bold")
    console.print(title.append(visible(reading.tokens.text), style="bold"))
    if reading.dropped:
        console.print(
            f"Cut: read the first {len(reading.tokens)} tokens, left out the last {reading.dropped}.", style="yellow"
        )
    gap = vocabulary_gap(pairs.words)
    if gap:
        console.print(f"{gap} Such words are read as one unknown token, and left out here.", style="yellow")
    looks = attended_most(pairs)
    if not looks:
        console.print("There are no two words here that could look at each other.")
        return
    console.print(_words_table(looks[:WORDS_SHOWN], pairs, plain=console.options.ascii_only))
    if len(looks) > WORDS_SHOWN:
        console.print(f"… and {len(looks) - WORDS_SHOWN} more words.", style="dim")
    console.print(
        "The word it attends to most beyond what that head usually gives at that distance, and its share. "
        "Layers and heads count from 0.",
        style="dim",
    )
    _print_findings(findings(pairs), pairs, console)


def print_shared(readings: Sequence[Reading], console: Console) -> None:
    """Prints how far the contextual vectors of words in several texts are apart, by layer; nothing if none is."""
    shared = shared_words(list(readings))
    if not shared:
        return
    console.print(Text("Words in several texts: cosine of their vectors, layer by layer", style="bold"))
    console.print(_shared_table(shared[:SHARED_SHOWN]))
    if len(shared) > SHARED_SHOWN:
        console.print(f"… and {len(shared) - SHARED_SHOWN} more pairs, closer at the end.", style="dim")
    console.print("1 is the same direction; the lower, the more the texts use the word differently.", style="dim")


def _words_table(looks: Sequence[Finding], pairs: WordPairs, *, plain: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("word")
    table.add_column("attends to")
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("layer", justify="right")
    table.add_column("head", justify="right")
    for finding in looks:
        strongest = finding.looks[0]
        table.add_row(
            Text(isolated(pairs.query_words[finding.query_word].label)),
            Text(isolated(pairs.key_words[finding.key_word].label)),
            Text(f"{100 * strongest.weight:.1f} %"),
            Text(_bar(strongest.weight, plain=plain), style="cyan"),
            str(strongest.layer),
            str(strongest.head),
        )
    return table


def _print_findings(found: Sequence[Finding], pairs: WordPairs, console: Console) -> None:
    if not found:
        return
    console.print(Text("\nWhat stands out", style="bold"))
    table = Table(box=None, pad_edge=False)
    table.add_column("pair of words")
    for name in ("share", "layer", "head", "usual", "also", "first in"):
        table.add_column(name, justify="right", no_wrap=True)
    for finding in found:
        first, *others = finding.looks
        table.add_row(
            _pair(finding, pairs, plain=console.options.ascii_only),
            f"{100 * first.weight:.1f} %",
            str(first.layer),
            str(first.head),
            f"{100 * first.usual:.1f} %",
            ", ".join(f"{100 * look.weight:.1f} % in {look.layer}·{look.head}" for look in others),
            f"{finding.first_choice} of {finding.heads}",
        )
    console.print(table)
    console.print(
        'Ranked by share less what that head usually gives at that distance ("usual"), averaged over the two '
        'strongest heads (the second, layer·head, under "also"). "first in": how many heads choose this word first. '
        "Attention shows where a head looks, not why the model decides.",
        style="dim",
    )


def _pair(finding: Finding, pairs: WordPairs, *, plain: bool) -> Text:
    pair = Text(isolated(pairs.query_words[finding.query_word].label), style="bold")
    return pair.append(" -> " if plain else " → ").append(isolated(pairs.key_words[finding.key_word].label))


def _print_lines(readings: Sequence[Reading], console: Console) -> None:
    """One line a text: its strongest finding, then as much of the text as fits."""
    table = Table(box=None, pad_edge=False)
    for name in ("", "stands out", "share", "layer", "head", "text"):
        table.add_column(name, justify="left" if name in ("stands out", "text") else "right", no_wrap=True)
    rows = [_strongest(reading, plain=console.options.ascii_only) for reading in readings]
    number_width = len(str(len(readings)))
    pair_width = max(len("stands out"), *(pair.cell_len for pair, *_ in rows))
    # What is left of the line beside the numbers (share 7, layer 5, head 4) and two spaces between columns.
    room = max(4, console.width - number_width - pair_width - 7 - 5 - 4 - 5 * 2)
    for number, (reading, row) in enumerate(zip(readings, rows, strict=True), start=1):
        text = Text(isolated(reading.tokens.text))
        text.truncate(room, overflow="ellipsis")
        table.add_row(str(number), *row, text)
    console.print(table)
    console.print(
        f"More than {TABLES_SHOWN} texts: each by what stands out most. Give a text alone to see all its words. "
        "Layers and heads count from 0.\n",
        style="dim",
    )


def _strongest(reading: Reading, *, plain: bool) -> tuple[Text, str, str, str]:
    """A text's first finding as cells: the pair, its share, layer and head."""
    pairs = word_pairs(reading)
    found = findings(pairs, limit=1)
    if not found:
        return Text("nothing"), "", "", ""
    look = found[0].looks[0]
    pair = _pair(found[0], pairs, plain=plain)
    pair.truncate(PAIR_WIDTH, overflow="ellipsis")
    return pair, f"{100 * look.weight:.1f} %", str(look.layer), str(look.head)


def _shared_table(shared: Sequence[SharedWord]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("word", no_wrap=True)
    table.add_column("texts", no_wrap=True)
    for step in range(len(shared[0].cosines)):
        table.add_column("embedding" if step == 0 else f"layer {step - 1}", justify="right")
    for one in shared:
        cosines = [f"{cosine:.2f}" for cosine in one.cosines]
        table.add_row(Text(isolated(one.word)), f"{one.first + 1}, {one.second + 1}", *cosines)
    return table


def _bar(share: float, *, plain: bool) -> str:
    """A bar of blocks, in eighths of a character; of # where the terminal has only ASCII."""
    if plain:
        return "#" * round(share * BAR_WIDTH)
    eighths = round(share * BAR_WIDTH * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
