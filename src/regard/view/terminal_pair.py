"""Terminal view of a translation: its alignment by words and by tokens, then the self-attention of each side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.escape_text import escape_and_isolate, escape_text
from regard.language import join_sentences, translate
from regard.view.reading import SOURCE, TARGET, PairReading, Reading, Tokens, kind_label
from regard.view.shares import mean_shares, signed_note
from regard.view.terminal_tables import bar
from regard.view.terminal_words import MAX_WORDS, print_omitted_count, print_words
from regard.view.words_from_tokens import Word, aggregate_by_word, words_of

MIN_SHARE, MAX_OTHERS = 0.05, 2
"""Further source words beside the first: their minimum share, and their maximum number."""


def print_pair(pair: PairReading, console: Console, *, number: int | None = None) -> None:
    """Print source, target and all kinds of attention. ``number``, from 1, names the pair among several."""
    plain = console.options.ascii_only
    _print_title(pair, console, number)
    words, tokens = _words(pair.alignment), _tokens(pair.alignment)
    layer, heads = pair.alignment.layers[pair.alignment_layer], pair.alignment.layers[pair.alignment_layer].heads
    weights = mean_shares(layer)[None]
    console.print(_table(translate("target"), words, aggregate_by_word(weights, *words)[0], plain=plain))
    print_omitted_count(len(words[0]), translate("words"), console)
    how = translate(
        "Each target word, and the source words its step attended to most: layer {layer}, {heads}. Layers are "
        "counted from 0.",
        layer=pair.alignment_layer,
        heads=translate("its one head") if heads == 1 else translate("the mean of its {heads} heads", heads=heads),
    )
    console.print(join_sentences((how, signed_note([layer]))), style="dim")
    if [len(word) for word in words] != [len(token) for token in tokens]:
        console.print(Text(f"\n{translate('Token alignment')}", style="bold"))
        console.print(_table(translate("target"), tokens, aggregate_by_word(weights, *tokens)[0], plain=plain))
        print_omitted_count(len(tokens[0]), translate("tokens"), console)
    for kind, reading in ((SOURCE, pair.source), (TARGET, pair.target)):
        if reading is not None:
            console.print(Text(f"\n{kind_label(kind)}", style="bold"))
            print_words(reading, console)


def pair_line(pair: PairReading, *, plain: bool) -> Text:
    """Format each target word with the source word of its largest share."""
    asks, gets = _words(pair.alignment)
    weights = aggregate_by_word(mean_shares(pair.alignment.layers[pair.alignment_layer])[None], asks, gets)[0]
    line = Text()
    for ask, row in zip(asks, weights, strict=True):
        line.append(escape_and_isolate(ask.text), style="bold").append(" <- " if plain else " ← ")
        line.append(f"{escape_and_isolate(gets[int(row.argmax())].text)}  ")
    return line


def _print_title(pair: PairReading, console: Console, number: int | None) -> None:
    start = "" if number is None else f"{number}. "
    arrow = "->" if console.options.ascii_only else "→"
    console.print(Text(start + escape_text(pair.alignment.key_tokens.text), style="bold"))
    target = Text(f"{arrow} {escape_text(pair.alignment.tokens.text)}", style="bold")
    console.print(target.append(f"  {translate('(as given)')}" if pair.forced else "", style="not bold dim"))


def _words(reading: Reading) -> tuple[tuple[Word, ...], tuple[Word, ...]]:
    """Words of target and source, with each end token as a word of its own."""
    return _words_and_special_tokens(reading.tokens), _words_and_special_tokens(reading.key_tokens)


def _words_and_special_tokens(tokens: Tokens) -> tuple[Word, ...]:
    special = [spoken for at, spoken in enumerate(_tokens_as_words(tokens)) if tokens.special[at]]
    return tuple(sorted([*words_of(tokens), *special], key=lambda word: word.pieces))


def _tokens(reading: Reading) -> tuple[tuple[Word, ...], tuple[Word, ...]]:
    return _tokens_as_words(reading.tokens), _tokens_as_words(reading.key_tokens)


def _tokens_as_words(tokens: Tokens) -> tuple[Word, ...]:
    """Each token as a word of its own."""
    return tuple(Word(tokens.surface(at), (at,), is_word=False) for at in range(len(tokens)))


def _table(
    name: str,
    parts: tuple[Sequence[Word], Sequence[Word]],
    weights: Float64[np.ndarray, "queries keys"],
    *,
    plain: bool,
) -> Table:
    asks, gets = parts
    table = Table(box=None, pad_edge=False)
    table.add_column(name)
    table.add_column(translate("attends to"))
    table.add_column(translate("share"), justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column(translate("then to"))
    for ask, row in list(zip(asks, weights, strict=True))[:MAX_WORDS]:
        first, *others = np.argsort(-row, kind="stable")[: MAX_OTHERS + 1].tolist()
        then = [
            f"{escape_and_isolate(gets[key].label)} {100 * row[key]:.1f} %" for key in others if row[key] >= MIN_SHARE
        ]
        table.add_row(
            Text(escape_and_isolate(ask.label), style="bold"),
            Text(escape_and_isolate(gets[first].label)),
            Text(f"{100 * row[first]:.1f} %"),
            bar(float(row[first]), plain=plain),
            Text(", ".join(then), style="dim"),
        )
    return table
