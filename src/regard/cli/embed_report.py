"""The report of ``regard embed`` at its end: truncated texts, unknown words and skipped lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli.stderr import say

if TYPE_CHECKING:
    from regard.text.embedding_job import EmbeddingSummary


def describe_counts(rows: int, vectors: int, width: int) -> str:
    """Describe an output, for example "3 rows, 3 vectors of 384 float32"."""
    from regard.text.embedding_job import format_count

    return f"{format_count(rows, 'row')}, {format_count(vectors, 'vector')} of {width} float32"


def describe_model(model: str, dtype: str, how: str) -> str:
    """Describe what made the vectors, for example "minilm in bfloat16, mean pooling"."""
    return f"{model if dtype == 'float32' else f'{model} in {dtype}'}, {how}"


def report_summary(summary: EmbeddingSummary, out: Path | None, source: Path | None = None) -> None:
    """Report truncated texts, texts of unknown words, and skipped lines, of ``source`` if there are several files."""
    from regard.text.embedding_job import format_count, skipped_path

    if source is not None and (summary.truncated or summary.unknown or summary.skipped):
        say(f"{source}:")
    if summary.truncated:
        say(
            f"truncated at the model's limit: {format_count(summary.truncated, 'text')}, "
            + _format_line_numbers(summary.first_truncated, summary.truncated)
        )
    if summary.unknown:
        from regard.text.unknown_words import UNKNOWN_WORDS_ADVICE, unknown_words_warning

        lacks = unknown_words_warning(summary.unknown, _format_line_numbers(summary.first_unknown, summary.unknown))
        say(f"{lacks}. {UNKNOWN_WORDS_ADVICE}")
    if summary.skipped:
        first = [skipped.line for skipped in summary.first_skipped]
        say(f"skipped: {format_count(summary.skipped, 'line')}, {_format_line_numbers(first, summary.skipped)}")
        for skipped in summary.first_skipped[:3]:
            say("  " + skipped.problem.splitlines()[0])
        if out is not None:
            say(f"  full list: {skipped_path(out)}")


def _format_line_numbers(first: list[int], count: int) -> str:
    more = f" and {count - len(first):,} more" if count > len(first) else ""
    return f"line{'s' if count > 1 else ''} " + ", ".join(map(str, first)) + more
