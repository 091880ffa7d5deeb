"""``regard embed``: texts to vectors, for inputs of any size, on this machine or on a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, final

import typer

from regard.cli.embed_media import embed_media
from regard.cli.embed_output import FORMATS, choose_format, explain_early_end, open_parts, start_or_resume
from regard.cli.embed_report import describe_counts, describe_model, report_summary
from regard.cli.loaded_model import open_model
from regard.cli.media_input import are_picture_paths, refuse_options
from regard.cli.option_group import expand_option_groups
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
    format_option,
)
from regard.cli.stderr import say
from regard.cli.text_input import check_text_options, open_texts
from regard.cli.verb import Verb
from regard.errors import OptionError, check_choice
from regard.fields import option_field

if TYPE_CHECKING:
    from regard.cli.embed_files import FilesRun
    from regard.models.model_folder import ModelFolder
    from regard.text.embedding import Embedder
    from regard.text.embedding_files import FileToEmbed
    from regard.text.embedding_job import EmbeddingOptions, EmbeddingSummary
    from regard.text.line import Line
    from regard.text.line_reader import LineReader
    from regard.text.resumable_shards import ShardRecord, Shards
    from regard.text.vector_files import VectorFormat


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
own, in the folder --out. Files in folders of FOLDER are read too, and their outputs are in folders of these names; \
hidden ones are left out. With --ray the work is done by the machines of a Ray cluster, which share the disk; a worker \
that dies is replaced. --ray alone starts a cluster of this machine; --ray auto or HOST:PORT uses one that runs.

[bold]Pictures and sounds.[/bold] If the model reads pictures or sounds, the arguments are their paths, and --data \
names a folder, or a file with one path per line. A row is the pooled vector of a file; the column text of .jsonl and \
.parquet is its path. A CLIP reads texts and pictures: the input is pictures if all arguments are files or folders of \
pictures, or --data is a folder of them, else texts. Its vectors of texts and pictures can be compared.

[bold]Interrupted?[/bold] Finished parts are kept in OUT.parts; repeat the command with --resume to continue.

[bold]Examples[/bold]

  regard embed "I ate an apple." "Apple released a new phone."

  regard embed --data reviews.txt -o reviews.npy

  zcat reviews.jsonl.gz | regard embed --field text -o reviews.parquet

  regard embed --data reviews.txt -o reviews.npy --resume

  regard embed --ray auto --data "corpus/*.jsonl.gz" --field text -o vectors --format npy

  regard embed --model flowers-model/ holiday/*.jpg -o holiday.npy

  regard embed --model birds-model/ dawn/*.flac -o dawn.npy
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("embed", cls=Verb, epilog=NOTES)(embed)


@final
@dataclass(frozen=True)
class _HowOptions:
    """How texts become vectors, and where the work is done."""

    dtype: Dtype = "float32"
    tokens: bool = option_field(False, "Write one vector per token instead of one per text.")
    batch: int = option_field(32, "Texts per batch.", least=1)
    truncate: Truncate = False
    skip_bad: bool = option_field(False, "Skip unusable lines and report them.")
    ray: str | None = option_field(
        None,
        "Use a Ray cluster: HOST:PORT, auto (started here by ray start), or by default a new one here.",
        metavar="[ADDRESS]",
    )
    resume: Resume = False
    overwrite: Overwrite = False


@expand_option_groups()
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
        format_option("npy, jsonl or parquet. Default: the suffix of --out.", FORMATS, show_default=False),
    ] = None,
    model: ModelName = None,
    *,
    how: _HowOptions,
) -> None:
    """Turn texts, pictures or sounds into vectors: one each, or with --tokens one contextual vector per token."""
    texts, model = texts or [], DEFAULT_MODEL if model is None else model
    check_choice("precision", how.dtype, PRECISIONS)
    check_text_options(texts, data, field)
    check_resume(resume=how.resume, overwrite=how.overwrite)
    opened, model_kind = open_model(model)
    kind = None if model_kind is None else model_kind.files
    if model_kind is not None and model_kind.texts and not are_picture_paths(texts, data):
        kind = None
    if kind is not None:
        useless = {"--tokens": how.tokens, "--truncate": how.truncate, "--ray": how.ray is not None}
        useless |= {"--resume": how.resume}
        refuse_options([name for name, is_given in useless.items() if is_given], kind.several, "texts")
        embed_media(
            texts,
            data,
            field,
            out,
            choose_format(form, out),
            kind=kind,
            model=opened,
            dtype=how.dtype,
            batch=how.batch,
            skip_bad=how.skip_bad,
            overwrite=how.overwrite,
        )
        return
    from regard.text.embedding_files import names_several_files
    from regard.text.embedding_job import EmbeddingOptions

    options = EmbeddingOptions(tokens=how.tokens, batch=how.batch, truncate=how.truncate, skip_bad=how.skip_bad)
    run = {"resume": how.resume, "overwrite": how.overwrite}
    if names_several_files(data):
        _embed_several(data, field, out, form, model, how.dtype, options, how.ray, **run)
    elif how.ray is not None:
        _embed_on_ray(data, field, out, form, model, how.dtype, options, how.ray, **run)
    else:
        _embed_lines(texts, data, field, out, choose_format(form, out), model, opened, how.dtype, options, **run)


def _embed_lines(
    texts: list[str],
    data: str | None,
    field: str | None,
    out: Path | None,
    name: str,
    model: str,
    opened: str | ModelFolder,
    dtype: str,
    options: EmbeddingOptions,
    *,
    resume: bool,
    overwrite: bool,
) -> None:
    """Embed the texts of the arguments, a file or a pipe, here."""
    parts = None if out is None else open_parts(out, name, options, data, resume=resume, overwrite=overwrite)
    if out is None and (resume or overwrite):
        raise OptionError(
            "--resume and --overwrite need an output file",
            expected="--out FILE",
            got="no --out",
            do="name the file, such as -o vectors.npy",
        )
    with open_texts(texts, data, field) as lines:
        embedder, written = _load_embedder(opened, dtype, name, options)
        if parts is None:
            summary = _print_vectors(lines, embedder, options, written)
        else:
            after = start_or_resume(parts, _run_settings(name, field, dtype, embedder, options), resume=resume)
            with explain_early_end(parts):
                summary = _write_vectors(lines, embedder, options, written, parts, after)
            counts = describe_counts(summary.rows, summary.vectors, written.width)
            say(f"{out}: {counts} ({_describe_vectors(model, dtype, embedder, options)})")
    report_summary(summary, out)


def _embed_several(
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
    """Embed several files, here or on a Ray cluster."""
    from regard.cli import embed_files
    from regard.text.embedding_job import format_count
    from regard.text.vector_files import find_format

    address = None if ray is None else _find_cluster(ray, data, out)
    files = embed_files.plan_files(str(data), out, form)
    assert out is not None, "the plan needs it"
    written = find_format(str(form))(tokens=options.tokens)
    kept = embed_files.open_run(out, files, written, resume=resume, overwrite=overwrite)
    embedder, run = _prepare_run(files, field, model, dtype, str(form), options)
    left = embed_files.start_files(kept, run, resume=resume)
    with embed_files.explain_early_end(left, kept):
        total = _embed_left(left, run, embedder, address, model=model, dtype=dtype, names_sources=True)
    kept.remove()
    counts = f"{format_count(len(left), 'file')}, {describe_counts(total.rows, total.vectors, run.form.width)}"
    say(f"{out}: {counts} ({_describe_vectors(model, dtype, embedder, options)})")


def _embed_on_ray(
    data: str | None,
    field: str | None,
    out: Path | None,
    form: str | None,
    model: str,
    dtype: str,
    options: EmbeddingOptions,
    ray: str,
    *,
    resume: bool,
    overwrite: bool,
) -> None:
    """Embed a single file on a Ray cluster."""
    from regard.cli import embed_files
    from regard.text.embedding_files import FileToEmbed

    address = _find_cluster(ray, data, out)
    assert data is not None, "the check of the input for Ray needs it"
    assert out is not None, "so does it need the output"
    name = choose_format(form, out)
    open_parts(out, name, options, data, resume=resume, overwrite=overwrite)
    with open_texts([], data, field):  # an unreadable file is refused before a cluster is started
        pass
    files = [FileToEmbed(Path(data), out)]
    embedder, run = _prepare_run(files, field, model, dtype, name, options)
    embed_files.start_file(files[0], run.settings, resume=resume)
    with embed_files.explain_early_end(files, None):
        total = _embed_left(files, run, embedder, address, model=model, dtype=dtype, names_sources=False)
    counts = describe_counts(total.rows, total.vectors, run.form.width)
    say(f"{out}: {counts} ({_describe_vectors(model, dtype, embedder, options)})")


def _describe_vectors(model: str, dtype: str, embedder: Embedder, options: EmbeddingOptions) -> str:
    return describe_model(model, dtype, "last layer" if options.tokens else str(embedder.pooling))


def _find_cluster(ray: str, data: str | None, out: Path | None) -> str:
    """Check that the input suits a Ray cluster, and return the address of the cluster."""
    from regard.cli import embed_files
    from regard.ray_embedding.supervisor import check_ray

    embed_files.check_ray_input(data, out)
    return check_ray(ray)


def _prepare_run(
    files: list[FileToEmbed], field: str | None, model: str, dtype: str, name: str, options: EmbeddingOptions
) -> tuple[Embedder, FilesRun]:
    from regard.cli import embed_files

    embedder, written = _load_embedder(model, dtype, name, options)
    settings = _run_settings(name, field, dtype, embedder, options)
    return embedder, embed_files.FilesRun(files, settings, written, options, field)


def _embed_left(
    left: Sequence[FileToEmbed],
    run: FilesRun,
    embedder: Embedder,
    address: str | None,
    *,
    model: str,
    dtype: str,
    names_sources: bool,
) -> EmbeddingSummary:
    """Embed the files that are left, here or on the cluster at ``address``; report each, and return the total."""
    from regard.cli import embed_files
    from regard.text.embedding_job import EmbeddingSummary

    found = (
        embed_files.embed_here(left, run, embedder)
        if address is None
        else embed_files.embed_on_ray(left, run, address, model=model, dtype=dtype)
    )
    total = EmbeddingSummary()
    for number, summary in found:
        total.rows, total.vectors = total.rows + summary.rows, total.vectors + summary.vectors
        report_summary(summary, left[number].out, left[number].source if names_sources else None)
    return total


def _load_embedder(
    model: str | ModelFolder, dtype: str, name: str, options: EmbeddingOptions
) -> tuple[Embedder, VectorFormat]:
    import torch

    from regard.layers.precision import note_if_slower
    from regard.models import Encoder
    from regard.text.embedding import Embedder
    from regard.text.vector_files import find_format

    embedder = Embedder(Encoder.load(model, dtype=getattr(torch, dtype)))
    note_if_slower(dtype, embedder.model.device)
    if not options.tokens:
        embedder.pooling.check()
    return embedder, find_format(name)(
        tokens=options.tokens, width=embedder.model.width if options.tokens else embedder.width
    )


def _run_settings(
    name: str, field: str | None, dtype: str, embedder: Embedder, options: EmbeddingOptions
) -> dict[str, object]:
    """Settings that a resumed run must share with the interrupted one."""
    from dataclasses import asdict

    from regard.text.embedding_job import fingerprint

    of_model = {"dtype": dtype, "fingerprint of the model": fingerprint(embedder)}
    return {"format": name, "field": field, **of_model, **asdict(options)}


def _write_vectors(
    lines: LineReader | Sequence[Line],
    embedder: Embedder,
    options: EmbeddingOptions,
    written: VectorFormat,
    parts: Shards,
    after: ShardRecord | None,
) -> EmbeddingSummary:
    from regard.text import embedding_job

    with line_progress(lines, parts.out) as advance:
        found = embedding_job.embed_chunks(lines, embedder, options, after=after)
        return embedding_job.write_output(parts, found, written, advance)


def _print_vectors(
    lines: LineReader | Sequence[Line], embedder: Embedder, options: EmbeddingOptions, written: VectorFormat
) -> EmbeddingSummary:
    from regard.text import embedding_job

    summary = embedding_job.EmbeddingSummary()
    with line_progress(lines, None) as advance:
        for chunk in embedding_job.embed_chunks(lines, embedder, options):
            written.write(sys.stdout.buffer, chunk.texts, chunk.vectors)
            sys.stdout.buffer.flush()
            summary.add(chunk.record)
            advance(chunk.record.lines)
    summary.check()
    return summary
