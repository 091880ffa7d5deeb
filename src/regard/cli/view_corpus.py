"""``regard view --summary``: what every head does over all texts of a file, in the terminal and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.loaded_model import ModelLoading
from regard.cli.progress import track
from regard.errors import OptionError
from regard.language import translate_message

if TYPE_CHECKING:
    from rich.console import Console

    from regard.chinese_words import ChineseWords
    from regard.models.model_folder import ModelFolder
    from regard.text.line import Line
    from regard.view import CorpusStatistics


def check_summary_options(path: Path | None, others: dict[str, Any], *, overwrite: bool) -> None:
    """Check the options beside ``--summary``, before a model is loaded.

    Raises OptionError for another option that has no effect, and for an output that is no table.
    """
    from regard.view.output_path import TABLE, check_output_path

    names = [name for name, value in others.items() if value not in (None, False, (), [])]
    if names:
        raise OptionError(
            f"{names[0]} has no effect with --summary, which shows no text by itself",
            expected="texts, --model, --truncate, and -o heads.csv or heads.json",
            got=", ".join(names),
            do=f"leave out {names[0]}, or --summary",
        )
    if path is not None:
        check_output_path(path, TABLE, overwrite=overwrite)


def summarize_texts(
    model: str | ModelFolder,
    lines: Sequence[Line],
    *,
    truncate: bool,
    chinese_words: ChineseWords | None,
    loading: ModelLoading,
) -> CorpusStatistics:
    """Read the texts one by one, and pool the statistics of every head."""
    from regard.cli.view_texts import load_text_reader
    from regard.view import corpus_statistics, group_chinese_words, read

    loaded = load_text_reader(model, pairs=False, loading=loading)
    with track(lines, "texts") as tracked:
        readings = (read(loaded, line.text, truncate=truncate, name=line.name) for line in tracked)
        return corpus_statistics(group_chinese_words(reading, chinese_words) for reading in readings)


def print_summary(corpus: CorpusStatistics, console: Console) -> None:
    """Print the heads that follow a named pattern, the clearest first, and what the numbers mean."""
    from rich.text import Text

    from regard.view.terminal_tables import Column, fitted_table

    named = [head for head in corpus.heads if head.pattern is not None]
    counts = f"{corpus.texts:,} texts, {corpus.tokens:,} tokens"
    sentence = f"{counts}. {len(named)} of {len(corpus.heads)} heads follow a named pattern."
    console.print(translate_message(sentence), soft_wrap=True)
    if not named:
        return
    rows = []
    for head in sorted(named, key=lambda head: -head.pattern.excess if head.pattern else 0.0):
        assert head.pattern is not None
        numbers = (head.pattern.score, head.pattern.chance, head.agreement, head.marks)
        shares = [Text("–" if share is None else f"{100 * share:.0f} %") for share in numbers]
        rows.append(
            [Text(f"{head.layer}·{head.head}", style="bold"), Text(translate_message(head.pattern.name)), *shares]
        )
    columns = (
        Column(translate_message("layer·head")),
        Column(translate_message("pattern"), wraps_from=24),
        Column(translate_message("score"), "right"),
        Column(translate_message("chance"), "right", leave_out=2),
        Column(translate_message("texts"), "right", leave_out=3),
        Column(translate_message("hidden"), "right", leave_out=1),
    )
    console.print()
    console.print(fitted_table(columns, rows, console.width))
    explanation = (
        "score: the share of attention that follows the pattern, over all tokens, without special tokens and a first "
        'token that is kept apart, which get the share "hidden". chance: what uniform attention would have. texts: the '
        "share of texts, of those long enough (– if none is), in which the head has the same name."
    )
    console.print("\n" + translate_message(explanation), style="dim")
