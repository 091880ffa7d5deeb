"""The terminal view: for each word what it attends to most, the findings, and shared words layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.view.compare import SharedWord, shared_words
from regard.view.findings import Finding, WordPairs, attended_most, findings, word_pairs
from regard.view.reading import Reading
from regard.view.visible import visible

BAR_WIDTH = 20  # characters of a share of 100 %
WORDS_SHOWN = 40
SHARED_SHOWN = 8
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def print_reading(reading: Reading, console: Console, *, number: int | None = None) -> None:
    """Prints one text: its table of words and its findings. ``number``, from 1, names it among several."""
    pairs = word_pairs(reading)
    title = Text(f"{number}. " if number is not None else "", style="bold")
    console.print(title.append(visible(reading.tokens.text), style="bold"))
    if reading.dropped:
        console.print(
            f"Cut: read the first {len(reading.tokens)} tokens, left out the last {reading.dropped}.", style="yellow"
        )
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
            Text(visible(pairs.query_words[finding.query_word].text)),
            Text(visible(pairs.key_words[finding.key_word].text)),
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
    for name in ("share", "layer", "head", "usual there", "also", "first choice in"):
        table.add_column(name, justify="right")
    for finding in found:
        first, *others = finding.looks
        pair = Text(visible(pairs.query_words[finding.query_word].text), style="bold")
        pair.append(" -> " if console.options.ascii_only else " → ").append(
            visible(pairs.key_words[finding.key_word].text)
        )
        table.add_row(
            pair,
            f"{100 * first.weight:.1f} %",
            str(first.layer),
            str(first.head),
            f"{100 * first.usual:.1f} %",
            ", ".join(f"{100 * look.weight:.1f} % in {look.layer}·{look.head}" for look in others),
            f"{finding.first_choice} of {finding.heads} heads",
        )
    console.print(table)
    console.print(
        "Ranked by share less what that head usually gives at that distance, averaged over the two strongest heads "
        '(the second, layer·head, under "also"). Attention shows where a head looks, not why the model decides.',
        style="dim",
    )


def _shared_table(shared: Sequence[SharedWord]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("word", no_wrap=True)
    table.add_column("texts", no_wrap=True)
    for step in range(len(shared[0].cosines)):
        table.add_column("embedding" if step == 0 else f"layer {step - 1}", justify="right")
    for one in shared:
        cosines = [f"{cosine:.2f}" for cosine in one.cosines]
        table.add_row(Text(visible(one.word)), f"{one.first + 1}, {one.second + 1}", *cosines)
    return table


def _bar(share: float, *, plain: bool) -> str:
    """A bar of blocks, in eighths of a character; of # where the terminal has only ASCII."""
    if plain:
        return "#" * round(share * BAR_WIDTH)
    eighths = round(share * BAR_WIDTH * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
