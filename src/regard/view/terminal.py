"""Terminal view: the word that each word attends to most, the findings, and shared words layer by layer.

More than ``MAX_TABLES`` texts get one line each, with the strongest finding, since tables would flood the screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.arguments import explain_arguments
from regard.escape_text import escape_and_isolate, escape_text
from regard.language import join_sentences, translate
from regard.view.findings import findings
from regard.view.long_reading import LongReading
from regard.view.picture_comparison import PictureComparison
from regard.view.picture_reading import PictureReading
from regard.view.reading import PairReading, Reading
from regard.view.reading_comparison import ReadingComparison
from regard.view.shared_words import SharedWord, shared_words
from regard.view.shares import MAX_LABELS, MAX_WORDS, answer_words, signed_note
from regard.view.side_by_side import SideBySide
from regard.view.terminal_comparison import print_comparisons, print_picture_comparisons
from regard.view.terminal_long import print_long_texts
from regard.view.terminal_pair import pair_line, print_pair
from regard.view.terminal_picture import print_pictures
from regard.view.terminal_side_by_side import print_side_by_side
from regard.view.terminal_tables import make_share_table
from regard.view.terminal_words import format_pair, print_words
from regard.view.word_pairs import word_pairs
from regard.view.words_from_tokens import is_mostly_unknown

PrintedReading: TypeAlias = (
    Reading | LongReading | PairReading | PictureReading | SideBySide | ReadingComparison | PictureComparison
)
MAX_SHARED_WORDS = 8
MAX_TITLE_CHARACTERS = 1000  # maximum length of the text above its table
PAIR_WIDTH = 30  # maximum width of a pair of words if each text has one line
MAX_TABLES = 10  # maximum number of texts for which each has its tables


@explain_arguments
def print_readings(readings: PrintedReading | Sequence[PrintedReading], console: Console) -> None:
    """Print every reading, of one kind: pictures, texts under several mechanisms, comparisons, texts and translations.

    Up to ``MAX_TABLES`` texts have tables, and the words that several share.
    """
    several: Sequence[Any] = [readings] if isinstance(readings, PrintedReading) else readings
    first = several[0] if several else None
    if isinstance(first, PictureReading):
        print_pictures(several, console)
    elif isinstance(first, SideBySide):
        print_side_by_side(several, console)
    elif isinstance(first, ReadingComparison):
        print_comparisons(several, console)
    elif isinstance(first, PictureComparison):
        print_picture_comparisons(several, console)
    elif isinstance(first, LongReading):
        print_long_texts(several, console)
    else:
        _print_texts(several, console)


def _print_texts(readings: Sequence[Reading | PairReading], console: Console) -> None:
    if len(readings) > MAX_TABLES:
        _print_lines(readings, console)
    else:
        for number, reading in enumerate(readings, start=1):
            _print_one(reading, console, number=number if len(readings) > 1 else None)
            console.print()
    texts = [reading for reading in readings if isinstance(reading, Reading)]
    if len(texts) > 1:
        print_shared_words(texts, console)


def _print_one(reading: Reading | PairReading, console: Console, *, number: int | None) -> None:
    if isinstance(reading, PairReading):
        print_pair(reading, console, number=number)
    else:
        print_reading(reading, console, number=number)


@explain_arguments
def print_reading(reading: Reading, console: Console, *, number: int | None = None) -> None:
    """Print one text: its table of words and its findings. ``number``, from 1, names it among several."""
    title = Text(f"{number}. " if number is not None else "", style="bold")
    console.print(title.append(_shorten(escape_text(reading.tokens.text)), style="bold"))
    if reading.dropped:
        console.print(
            translate(
                "Truncated: read the first {tokens} tokens, not the last {dropped}.",
                tokens=len(reading.tokens),
                dropped=reading.dropped,
            ),
            style="yellow",
        )
    _print_answer(reading, console)
    print_words(reading, console)


def _print_answer(reading: Reading, console: Console) -> None:
    """Print the answer of a classifier; nothing if the reading has none."""
    if reading.answer is None:
        return
    plain = console.options.ascii_only
    shown = [(escape_and_isolate(label), share) for label, share in reading.answer.probabilities[:MAX_LABELS]]
    console.print(make_share_table(translate("label"), translate("probability"), shown, plain=plain))
    if not reading.answer.has_label:
        console.print(translate("No label reaches 50 %, so the text has none."), style="yellow")
    more = len(reading.answer.probabilities) - len(shown)
    if more:
        console.print(translate("… and {more} less probable labels.", more=more), style="dim")
    words = [(escape_and_isolate(word), share) for word, share in answer_words(reading)[:MAX_WORDS]]
    if not words:
        return
    console.print(make_share_table(f"\n{translate('attended to')}", f"\n{translate('share')}", words, plain=plain))
    layer = reading.layers[-1]
    heads = "" if layer.heads == 1 else translate(", averaged over its {heads} heads", heads=layer.heads)
    what = translate("the first token") if reading.answer.pooling == "cls" else translate("the mean of all tokens")
    several = translate("Each label has a probability of its own. ") if reading.answer.several else ""
    how = translate(
        "The label is computed from {what}; the shares are its attention in the last layer, {layer}{heads}. Attention "
        "shows which tokens the model uses, not why it decides.",
        what=what,
        layer=len(reading.layers) - 1,
        heads=heads,
    )
    console.print(join_sentences((f"{several}{how}", signed_note(reading.layers[-1:]))) + "\n", style="dim")


def answer_line(reading: Reading) -> str:
    """The most probable label with its probability; empty if the reading has no answer."""
    if reading.answer is None:
        return ""
    label, probability = reading.answer.probabilities[0]
    return f"{escape_and_isolate(label)} {100 * probability:.1f} %"


def _shorten(text: str) -> str:
    """Shorten a text that would fill the screen, and add its length."""
    if len(text) <= MAX_TITLE_CHARACTERS:
        return text
    return text[:MAX_TITLE_CHARACTERS] + translate("… ({count} characters)", count=f"{len(text):,}")


def print_shared_words(readings: Sequence[Reading], console: Console) -> None:
    """Print the cosines of the vectors of words in several texts, by layer; nothing if no word is shared."""
    shared = shared_words(list(readings))
    if not shared:
        return
    console.print(Text(translate("Words in several texts: cosine of their vectors, layer by layer"), style="bold"))
    console.print(_shared_words_table(shared[:MAX_SHARED_WORDS]))
    if len(shared) > MAX_SHARED_WORDS:
        console.print(
            translate(
                "… and {more} more, with higher cosines after the last layer.", more=len(shared) - MAX_SHARED_WORDS
            ),
            style="dim",
        )
    console.print(
        translate("1 means the same direction; a low cosine means that the texts use the word differently."),
        style="dim",
    )


def _print_lines(readings: Sequence[Reading | PairReading], console: Console) -> None:
    """Print one line each: a text's strongest finding and as much of the text as fits; a translation's alignment."""
    texts = [(number, reading) for number, reading in enumerate(readings, start=1) if isinstance(reading, Reading)]
    if texts:
        console.print(_lines_table(texts, console))
        console.print(
            translate(
                "More than {limit} texts: the strongest finding of each. View a text alone to see all its words. "
                "Layers and heads are counted from 0.",
                limit=MAX_TABLES,
            )
            + "\n",
            style="dim",
        )
    pairs = [(number, reading) for number, reading in enumerate(readings, start=1) if isinstance(reading, PairReading)]
    for number, pair in pairs:
        line = Text(f"{number}. ").append(pair_line(pair, plain=console.options.ascii_only))
        line.truncate(console.width, overflow="ellipsis")
        console.print(line)
    if pairs:
        console.print(
            "\n"
            + translate(
                "More than {limit} translations: each word and its largest share. View one alone to see more.",
                limit=MAX_TABLES,
            ),
            style="dim",
        )


def _lines_table(texts: Sequence[tuple[int, Reading]], console: Console) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("", justify="right", no_wrap=True)
    answers = [answer_line(reading) for _, reading in texts]
    labelled, pair_title = [translate("label")] if any(answers) else [], translate("word pair")
    for name in (*labelled, pair_title):
        table.add_column(name, no_wrap=True)
    for name in (translate("share"), translate("layer"), translate("head")):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(translate("text"), no_wrap=True)
    rows = [_strongest_finding_cells(reading, plain=console.options.ascii_only) for _, reading in texts]
    number_width = len(str(texts[-1][0]))
    pair_width = max(cell_len(pair_title), *(pair.cell_len for pair, *_ in rows))
    # Width left of the line beside the numbers (share 7, layer 5, head 4) and two spaces between columns.
    answer_width = max(map(cell_len, [*labelled, *answers])) + 2 if labelled else 0
    room = max(4, console.width - number_width - answer_width - pair_width - 7 - 5 - 4 - 5 * 2)
    for (number, reading), answer, row in zip(texts, answers, rows, strict=True):
        text = Text(escape_and_isolate(reading.tokens.text))
        text.truncate(room, overflow="ellipsis")
        table.add_row(str(number), *([Text(answer)] if labelled else []), *row, text)
    return table


def _strongest_finding_cells(reading: Reading, *, plain: bool) -> tuple[Text, str, str, str]:
    """Cells of a text's first finding: the pair, its share, layer and head."""
    pairs = word_pairs(reading)
    found = findings(pairs, limit=1)
    if not found:
        return Text(translate("unknown words") if is_mostly_unknown(pairs.words) else translate("nothing")), "", "", ""
    look = found[0].looks[0]
    pair = format_pair(found[0], pairs, plain=plain)
    pair.truncate(PAIR_WIDTH, overflow="ellipsis")
    return pair, f"{100 * look.weight:.1f} %", str(look.layer), str(look.head)


def _shared_words_table(shared: Sequence[SharedWord]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(translate("word"), no_wrap=True)
    table.add_column(translate("texts"), no_wrap=True)
    for step in range(len(shared[0].cosines)):
        name = translate("embedding") if step == 0 else translate("layer {number}", number=step - 1)
        table.add_column(name, justify="right")
    for word in shared:
        cosines = [f"{cosine:.2f}" for cosine in word.cosines]
        table.add_row(Text(escape_and_isolate(word.word)), f"{word.first + 1}, {word.second + 1}", *cosines)
    return table
