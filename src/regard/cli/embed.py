"""``regard embed``: texts to vectors, for inputs of any size, on this machine or on a Ray cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.completion import choice_completer
from regard.cli.embed_pictures import embed_pictures
from regard.cli.picture_input import has_picture_model
from regard.cli.picture_options import refuse_options
from regard.cli.progress import line_progress
from regard.cli.shared_options import (
    DEFAULT_MODEL,
    PRECISIONS,
    Dtype,
    Field,
    ModelName,
    Overwrite,
    Resume,
    Texts,
    Truncate,
    check_resume,
)
from regard.cli.stderr import say
from regard.cli.text_input import check_text_options, open_texts
from regard.cli.verb import Verb
from regard.errors import DataError, OptionError, OutputExistsError, RegardError, check_choice, write_error

if TYPE_CHECKING:
    from regard.text.embedding import Embedder
    from regard.text.embedding_job import EmbeddingOptions, EmbeddingSummary
    from regard.text.line_reader import Line, LineReader
    from regard.text.resumable_shards import ShardRecord, Shards
    from regard.text.vector_files import VectorFormat

FORMATS = ("npy", "jsonl", "parquet")

NOTES = """
[bold]Rows.[/bold] One row per text, in input order. A blank line counts as an empty text and keeps its row, so row \
numbers match line numbers; in JSON lines a blank line is an error. With --skip-bad, unusable lines get no row, and \
OUT.skipped.jsonl lists them.

[bold]Files.[/bold] .npy: a float32 array (rows, width); with --tokens (all tokens, width), and OUT.offsets.npy, where \
row r has the tokens offsets\\[r] to offsets\\[r+1]-1. .jsonl: text and vector; with --tokens text, tokens and \
vectors. .parquet: the same columns.

[bold]Vectors.[/bold] A text's vector is pooled as the model's folder specifies; for MiniLM it is the mean over the \
tokens, normalised to length 1. Token vectors (--tokens) are the last layer's hidden states, \\[CLS] and \\[SEP] \
included. A text may be as long as the model allows (MiniLM: 512 tokens); sentence-transformers truncates the same \
model at 256 tokens, so its vectors of longer texts differ. With --dtype bfloat16 the model computes with 8 \
significant bits; the output is float32 all the same.

[bold]Many files, many machines.[/bold] --data FOLDER, or a pattern in quotes, embeds each file into an output of its \
own, in the folder --out. With --ray the work is done by the machines of a Ray cluster, which share the disk; a worker \
that dies is replaced. --ray alone starts a cluster of this machine; --ray auto or HOST:PORT uses one that runs.

[bold]Pictures.[/bold] If the model reads pictures, the arguments are their paths, and --data names a folder, or a \
file with one path per line. A row is the pooled vector of a picture; the column text of .jsonl and .parquet is its \
path.

[bold]Interrupted?[/bold] Finished parts are kept in OUT.parts; repeat the command with --resume to continue.

[bold]Examples[/bold]

  regard embed "I ate an apple." "Apple released a new phone."

  regard embed --data reviews.txt -o reviews.npy

  zcat reviews.jsonl.gz | regard embed --field text -o reviews.parquet

  regard embed --data reviews.txt -o reviews.npy --resume

  regard embed --ray auto --data "corpus/*.jsonl.gz" --field text -o vectors --format npy

  regard embed --model flowers-model/ holiday/*.jpg -o holiday.npy
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("embed", cls=Verb, epilog=NOTES)(embed)


def embed(
    texts: Texts = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="FILE",
            help="Input file, one text per line, plain or gzip; - is standard input. A pipe is read without --data. "
            "A folder, or a pattern in quotes, names several files.",
            show_default=False,
        ),
    ] = None,
    field: Field = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Output file, or folder for several input files. Default: JSON lines on standard output.",
            show_default=False,
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="npy, jsonl or parquet. Default: the suffix of --out.",
            show_default=False,
            autocompletion=choice_completer(FORMATS),
        ),
    ] = None,
    model: ModelName = None,
    dtype: Dtype = "float32",
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Write one vector per token instead of one per text.")
    ] = False,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Texts per batch.")] = 32,
    truncate: Truncate = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip unusable lines and report them.")] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="[ADDRESS]",
            help="Use a Ray cluster: HOST:PORT, auto (started here by ray start), or by default a new one here.",
            show_default=False,
        ),
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Turn texts or pictures into vectors: one each, or with --tokens one contextual vector per token."""
    texts, model = texts or [], DEFAULT_MODEL if model is None else model
    check_choice("precision", dtype, PRECISIONS)
    check_text_options(texts, data, field)
    check_resume(resume=resume, overwrite=overwrite)
    if has_picture_model(model):
        given = {"--tokens": tokens, "--truncate": truncate, "--ray": ray is not None, "--resume": resume}
        refuse_options([name for name, is_given in given.items() if is_given], "pictures", "texts")
        name = _choose_format(form, out)
        embed_pictures(
            texts, data, field, out, name, model=model, dtype=dtype, batch=batch, skip_bad=skip_bad, overwrite=overwrite
        )
        return
    from regard.text.embedding_files import names_several_files
    from regard.text.embedding_job import EmbeddingOptions, format_count

    options = EmbeddingOptions(tokens=tokens, batch=batch, truncate=truncate, skip_bad=skip_bad)
    if ray is not None or names_several_files(data):
        _embed_files(data, field, out, form, model, dtype, options, ray, resume=resume, overwrite=overwrite)
        return
    name = _choose_format(form, out)
    parts = None if out is None else _open_parts(out, name, options, data, resume=resume, overwrite=overwrite)
    if out is None and (resume or overwrite):
        raise OptionError(
            "--resume and --overwrite need an output file",
            expected="--out FILE",
            got="no --out",
            do="name the file, such as -o vectors.npy",
        )
    with open_texts(texts, data, field) as lines:
        embedder, written = _load_embedder(model, dtype, name, options)
        if parts is None:
            summary = _print_vectors(lines, embedder, options, written)
        else:
            after = _start_or_resume(parts, _run_settings(name, field, dtype, embedder, options), resume=resume)
            with _explain_early_end(parts):
                summary = _write_vectors(lines, embedder, options, written, parts, after)
            kind = model if dtype == "float32" else f"{model} in {dtype}"
            kind += ", last layer" if tokens else f", {embedder.pooling}"
            rows, vectors = format_count(summary.rows, "row"), format_count(summary.vectors, "vector")
            say(f"{out}: {rows}, {vectors} of {written.width} float32 ({kind})")
    _report(summary, out)


def _embed_files(
    data: str | None,
    field: str | None,
    out: Path | None,
    form: str | None,
    model: str,
    dtype: str,
    options: EmbeddingOptions,
    ray: str | None,
    *,
    resume: bool,
    overwrite: bool,
) -> None:
    """Embed several files, or a single one on a Ray cluster."""
    from regard.cli import embed_files
    from regard.text.embedding_files import FileToEmbed, names_several_files
    from regard.text.embedding_job import EmbeddingSummary, format_count
    from regard.text.vector_files import find_format

    address = None
    if ray is not None:
        from regard.ray_embedding.supervisor import check_ray

        embed_files.check_ray_input(data, out)
        address = check_ray(ray)
    assert data is not None
    several = names_several_files(data)
    if several:
        files = embed_files.plan_files(data, out, form)
        assert out is not None
        name = str(form)
        kept = embed_files.open_run(
            out, files, find_format(name)(tokens=options.tokens), resume=resume, overwrite=overwrite
        )
    else:
        assert out is not None
        name = _choose_format(form, out)
        files = [FileToEmbed(Path(data), out)]
        kept = _open_parts(out, name, options, data, resume=resume, overwrite=overwrite)
        with open_texts([], data, field):  # an unreadable file is refused before a cluster is started
            pass
    embedder, written = _load_embedder(model, dtype, name, options)
    settings = _run_settings(name, field, dtype, embedder, options)
    run = embed_files.FilesRun(files, settings, written, options, field)
    if several:
        left = embed_files.start_files(kept, run, resume=resume)
    else:
        left = files
        embed_files.start_file(files[0], settings, resume=resume)
    with embed_files.explain_early_end(left, kept if several else None):
        found = (
            embed_files.embed_here(left, run, embedder)
            if address is None
            else embed_files.embed_on_ray(
                left,
                run,
                address,
                model=model,
                fingerprint=str(settings["fingerprint of the model"]),
                dtype=dtype,
                name=name,
            )
        )
        total = EmbeddingSummary()
        for number, summary in found:
            total.rows, total.vectors = total.rows + summary.rows, total.vectors + summary.vectors
            _report(summary, left[number].out, left[number].source if several else None)
    if several:
        kept.remove()
    kind = model if dtype == "float32" else f"{model} in {dtype}"
    kind += ", last layer" if options.tokens else f", {embedder.pooling}"
    counts = [format_count(total.rows, "row"), f"{format_count(total.vectors, 'vector')} of {written.width} float32"]
    counts = [format_count(len(left), "file"), *counts] if several else counts
    say(f"{out}: {', '.join(counts)} ({kind})")


def _choose_format(form: str | None, out: Path | None) -> str:
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


def _open_parts(
    out: Path, name: str, options: EmbeddingOptions, data: str | None, *, resume: bool, overwrite: bool
) -> Shards:
    """Open the output's shards. Raises OutputExistsError if it exists, without ``resume`` or ``overwrite``."""
    from regard.text.embedding_job import skipped_path
    from regard.text.resumable_shards import Shards
    from regard.text.vector_files import find_format

    if not out.absolute().parent.is_dir():
        raise OptionError(
            f"there is no folder {out.parent}",
            expected="an existing folder",
            got=str(out),
            do="create the folder first",
        )
    if data not in (None, "-") and out.exists() and out.samefile(str(data)):
        raise OptionError(
            "input and output are the same file", expected="two files", got=str(out), do="choose another --out"
        )
    written = (out, *find_format(name)(tokens=options.tokens).companions(out), skipped_path(out))
    for path in written:
        if path.is_dir():
            raise OptionError(
                f"{path} is a folder", expected="the name of a file", got="a folder", do="choose another name"
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


def _load_embedder(model: str, dtype: str, name: str, options: EmbeddingOptions) -> tuple[Embedder, VectorFormat]:
    import torch

    from regard.layers.precision import say_if_slower
    from regard.models.load import load_encoder
    from regard.text.embedding import Embedder
    from regard.text.vector_files import find_format

    embedder = Embedder(load_encoder(model, dtype=getattr(torch, dtype)))
    say_if_slower(dtype, embedder.model.device, say)
    if not options.tokens:
        embedder.pooling.check()
    return embedder, find_format(name)(tokens=options.tokens, width=embedder.model.width)


def _run_settings(
    name: str, field: str | None, dtype: str, embedder: Embedder, options: EmbeddingOptions
) -> dict[str, object]:
    """Settings that a resumed run must share with the interrupted one."""
    from dataclasses import asdict

    from regard.text.embedding_job import fingerprint

    of_model = {"dtype": dtype, "fingerprint of the model": fingerprint(embedder)}
    return {"format": name, "field": field, **of_model, **asdict(options)}


def _start_or_resume(parts: Shards, settings: dict[str, object], *, resume: bool) -> ShardRecord | None:
    """Start a run, or resume one and return the record of its last complete shard (None: start at line 1)."""
    if not (resume and parts.has_earlier_run):
        parts.start(settings)
        return None
    after = parts.resume(settings)
    if after is not None:
        say(f"resuming after line {after.lines:,}")
    return after


def _write_vectors(
    lines: LineReader | list[Line],
    embedder: Embedder,
    options: EmbeddingOptions,
    written: VectorFormat,
    parts: Shards,
    after: ShardRecord | None,
) -> EmbeddingSummary:
    from regard.text import embedding_job

    with line_progress(lines) as advance:
        found = embedding_job.embed_chunks(lines, embedder, options, after=after)
        return embedding_job.write_output(parts, found, written, advance)


def _print_vectors(
    lines: LineReader | list[Line], embedder: Embedder, options: EmbeddingOptions, written: VectorFormat
) -> EmbeddingSummary:
    from regard.text import embedding_job

    summary = embedding_job.EmbeddingSummary()
    with line_progress(lines) as advance:
        for chunk in embedding_job.embed_chunks(lines, embedder, options):
            written.write(sys.stdout.buffer, chunk.texts, chunk.vectors)
            sys.stdout.buffer.flush()
            summary.add(chunk.record)
            advance(chunk.record.lines)
    summary.check()
    return summary


@contextmanager
def _explain_early_end(parts: Shards) -> Iterator[None]:
    """If the run ends early, report what is kept and how to continue; remove the folder if it is empty."""
    try:
        yield
    except KeyboardInterrupt:
        kept = _describe_kept_parts(parts)
        say("regard: interrupted" + (f"; {kept}: repeat the command with --resume to continue" if kept else ""))
        sys.exit(130)
    except DataError:  # the same command would stop at the same line again
        kept = _describe_kept_parts(parts)
        if kept:
            say(f"{kept}: correct the line, or skip it with --skip-bad, and continue with --resume")
        raise
    except RegardError:
        raise  # its message already says what to do
    except OSError as error:
        kept = _describe_kept_parts(parts)
        then = "repeat the command with --resume to continue" if kept else "run the command again"
        raise write_error("the output cannot be written", error, then=f"{kept}: {then}" if kept else then) from error


def _describe_kept_parts(parts: Shards) -> str:
    """Say where finished shards are kept; without a complete shard, remove the folder and return an empty text."""
    if parts.is_empty:
        parts.remove()
        return ""
    return f"finished parts are kept in {parts.folder}"


def _report(summary: EmbeddingSummary, out: Path | None, source: Path | None = None) -> None:
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
