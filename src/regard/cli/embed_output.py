"""The output of ``regard embed``: its format, its files, the parts that an interrupted run keeps, and the report."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli.stderr import say
from regard.errors import DataError, OptionError, OutputExistsError, RegardError, check_parent_folder, write_error
from regard.language import abbreviate_names, count_noun, translate_message

if TYPE_CHECKING:
    from regard.media import Medium
    from regard.text.embedding_job import EmbeddingOptions, EmbeddingSummary, LineEmbedder
    from regard.text.resumable_shards import ShardRecord, Shards

FORMATS = ("npy", "jsonl", "parquet")


def choose_format(form: str | None, out: Path | None) -> str:
    """Choose the format by ``--format``, else by the suffix of the output. Raises OptionError for an unknown format."""
    from regard.text.vector_files import ALTERNATIVE_FORMATS, find_format

    if form is not None:
        find_format(form)
    if out is None and form not in (None, "jsonl"):
        raise OptionError(
            f"{form} cannot be written to standard output",
            expected="--out FILE",
            got="no --out",
            do=f"add -o vectors.{form}",
        )
    suffix = "" if out is None else out.suffix.lower().removeprefix(".")
    known = suffix in FORMATS
    if form is not None and known and form != suffix:
        raise OptionError(
            f"--format {form} and the name {str(out)!r} contradict each other",
            expected="one format",
            got=f"{form} and .{suffix}",
            do=f"name the output .{form}, or leave out --format",
        )
    if form is None and out is not None and not known:
        raise OptionError(
            f"the name {out.name!r} does not say which format to write",
            expected="a name ending in .npy, .jsonl or .parquet",
            got=f"the suffix {out.suffix!r}" if suffix else "no suffix",
            do=ALTERNATIVE_FORMATS.get(suffix, "rename the output, or add --format"),
        )
    name = form or suffix or "jsonl"
    find_format(name).check_installed()
    return name


def open_parts(
    out: Path, name: str, options: EmbeddingOptions, data: str | None, *, resume: bool, overwrite: bool
) -> Shards:
    """Open the output's shards. Raises OutputExistsError if it exists, without ``resume`` or ``overwrite``."""
    from regard.text.embedding_job import skipped_path
    from regard.text.resumable_shards import Shards
    from regard.text.vector_files import find_format

    check_parent_folder(out)
    if data not in (None, "-") and out.exists() and out.samefile(str(data)):
        raise OptionError(
            "input and output are the same file", expected="two files", got=str(out), do="choose another --out"
        )
    written = (out, *find_format(name)(tokens=options.tokens).companions(out), skipped_path(out))
    for path in written:
        if path.exists() and not path.is_file():
            kind = "a folder" if path.is_dir() else "a device or a pipe"
            raise OptionError(
                f"{path} is {kind}",
                expected="the name of a file",
                got=kind,
                do="choose another name, or redirect: > FILE",
            )
    parts = Shards(out)
    if parts.has_earlier_run and not (resume or overwrite):
        raise OutputExistsError(
            f"{parts.folder} holds the output of an interrupted run",
            expected="--resume or --overwrite",
            got="neither",
            do="add --resume to continue that run, or --overwrite to start again",
        )
    existing = [path for path in (written if options.skip_bad else written[:-1]) if os.path.lexists(path)]
    if existing and not overwrite and not parts.has_earlier_run:
        raise OutputExistsError(
            f"{existing[0]} already exists",
            expected="a new file",
            got="an existing file" + (", which is complete: there is nothing to resume" if resume else ""),
            do="choose another name, or add --overwrite",
        )
    return parts


def start_or_resume(parts: Shards, settings: dict[str, object], medium: Medium, *, resume: bool) -> ShardRecord | None:
    """Start a run, or resume one and return the record of its last complete shard (None: start at line 1)."""
    if not (resume and parts.has_earlier_run):
        report_fresh_start(parts, resume=resume)
        parts.start(settings)
        return None
    after = parts.resume(settings)
    if after is not None:
        say(f"resuming after {medium.count(after.lines)}")
    return after


def report_fresh_start(parts: Shards, *, resume: bool) -> None:
    """Report that a run that was to be resumed starts at the beginning, since nothing of it is left."""
    if resume:
        say(f"{parts.out}: there is no interrupted run to resume, so this one starts at the beginning")


@contextmanager
def explain_early_end(keep: Callable[[], str], output: str) -> Iterator[None]:
    """If the run ends early, report what is kept and how to continue.

    ``keep`` removes what has no finished part, and says where finished ones are kept, "" if there is none; ``output``
    is the name of the output in messages.
    """
    try:
        yield
    except KeyboardInterrupt:
        kept = keep()
        say("regard: interrupted" + (f"; {kept}: repeat the command with --resume to continue" if kept else ""))
        sys.exit(130)
    except DataError:  # the same command would stop at the same line again
        kept = keep()
        if kept:
            say(f"{kept}: correct the input, or skip lines with --skip-bad, and continue with --resume")
        raise
    except RegardError:
        keep()
        raise  # its message already says what to do
    except OSError as error:
        kept = keep()
        then = "repeat the command with --resume to continue" if kept else "run the command again"
        raise write_error(f"{output} cannot be written", error, then=f"{kept}: {then}" if kept else then) from error


def keep_parts(parts: Shards) -> str:
    """Say where finished shards are kept; without a complete shard, remove the folder and return an empty text."""
    if parts.is_empty:
        parts.remove()
        return ""
    return f"finished parts are kept in {parts.folder}"


def describe_output(summary: EmbeddingSummary, made_by: str, embedder: LineEmbedder) -> str:
    """Describe an output, for example "3 rows, 3 vectors of 384 float32 (minilm in bfloat16, mean pooling)"."""

    counts = f"{count_noun(summary.rows, 'row')}, {count_noun(summary.vectors, 'vector')}"
    return f"{counts} of {embedder.width} float32 ({made_by}, {embedder.how})"


def report_summary(summary: EmbeddingSummary, out: Path | None, source: Path | None = None) -> None:
    """Report truncated texts, texts of unknown words, and skipped lines, of ``source`` if there are several files."""
    from regard.text.embedding_job import skipped_path

    if source is not None and (summary.truncated or summary.unknown or summary.skipped):
        say(f"{source}:")
    if summary.truncated:
        say(
            f"truncated at the model's limit: {count_noun(summary.truncated, 'text')}, "
            + _format_line_numbers(summary.first_truncated, summary.truncated)
        )
    if summary.unknown:
        from regard.text.unknown_words import unknown_words_warning

        say(unknown_words_warning(summary.unknown, _format_line_numbers(summary.first_unknown, summary.unknown)))
    if summary.skipped:
        first = [skipped.line for skipped in summary.first_skipped]
        say(f"skipped: {summary.count_skipped()}, {_format_line_numbers(first, summary.skipped)}")
        for skipped in summary.first_skipped[:3]:
            say("  " + skipped.problem.splitlines()[0])
        if out is not None:
            say(f"  full list: {skipped_path(out)}")


def _format_line_numbers(first: list[int], count: int) -> str:
    listed = abbreviate_names([str(line) for line in first], len(first), count=count)
    return translate_message(f"line {listed}" if count == 1 else f"lines {listed}")
