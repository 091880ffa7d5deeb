"""Terminal view of a classifier's answer: its labels, and the words that the pooled tokens attended to."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.escape_text import escape_and_isolate
from regard.view.answer_words import MAX_LABELS, MAX_WORDS, answer_words
from regard.view.reading import Reading
from regard.view.shares import SIGNED_NOTE
from regard.view.terminal_words import bar


def print_answer(reading: Reading, console: Console) -> None:
    """Print the answer of a classifier; nothing if the reading has none."""
    if reading.answer is None:
        return
    plain = console.options.ascii_only
    shown = reading.answer.probabilities[:MAX_LABELS]
    console.print(_table("label", "probability", shown, plain=plain))
    if not reading.answer.has_label:
        console.print("No label reaches 50 %, so the text has none.", style="yellow")
    more = len(reading.answer.probabilities) - len(shown)
    if more:
        console.print(f"… and {more} less probable labels.", style="dim")
    words = answer_words(reading)
    if not words:
        return
    console.print(_table("\nattended to", "\nshare", words[:MAX_WORDS], plain=plain))
    layer = reading.layers[-1]
    heads = "" if layer.heads == 1 else f", averaged over its {layer.heads} heads"
    what = "the first token" if reading.answer.pooling == "cls" else "the mean of all tokens"
    several = "Each label has a probability of its own. " if reading.answer.several else ""
    console.print(
        f"{several}The label is computed from {what}; the shares are its attention in the last layer, "
        f"{len(reading.layers) - 1}{heads}. Attention shows which tokens the model uses, not why it decides."
        f"{' ' + SIGNED_NOTE if layer.is_signed else ''}\n",
        style="dim",
    )


def answer_line(reading: Reading) -> str:
    """The most probable label with its probability; empty if the reading has no answer."""
    if reading.answer is None:
        return ""
    label, probability = reading.answer.probabilities[0]
    return f"{escape_and_isolate(label)} {100 * probability:.1f} %"


def _table(name: str, number: str, rows: tuple[tuple[str, float], ...], *, plain: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(name)
    table.add_column(number, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for text, share in rows:
        table.add_row(Text(escape_and_isolate(text), style="bold"), f"{100 * share:.1f} %", bar(share, plain=plain))
    return table
