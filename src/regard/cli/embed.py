"""``regard embed``: texts, pictures or sounds to vectors, for inputs of any size, here or on a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, final

import typer

from regard.cli.embed_output import (
    FORMATS,
    choose_format,
    describe_output,
    explain_early_end,
    keep_parts,
    open_parts,
    report_summary,
    start_or_resume,
)
from regard.cli.loaded_model import choose_numbers, open_model
from regard.cli.media_input import are_picture_paths, open_media, refuse_options
from regard.cli.option_group import expand_option_groups
from regard.cli.progress import line_progress
from regard.cli.shared_options import (
    DEFAULT_MODEL,
    Device,
    Dtype,
    Field,
    ModelName,
    Overwrite,
    Resume,
    Texts,
    Truncate,
    Weights,
    check_resume,
    drop_none,
    format_option,
)
from regard.cli.stderr import say
from regard.cli.text_input import check_text_options, open_texts
from regard.cli.verb import Verb
from regard.device_names import AUTO
from regard.errors import OptionError
from regard.fields import option_field
from regard.language import count_noun

if TYPE_CHECKING:
    from regard.cli.embed_files import FilesRun
    from regard.media import Medium
    from regard.models.model_folder import ModelFolder
    from regard.text.embedding_files import FileToEmbed
    from regard.text.embedding_job import EmbeddingOptions, EmbeddingSummary, LineEmbedder
    from regard.text.line import Line
    from regard.text.line_reader import LineReader
    from regard.text.resumable_shards import Shards
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
class _Options:
    """The input, how it is embedded, the output, and where the work is done."""

    data: str | None = option_field(
        None,
        "Input file, one text per line, plain or gzip; - is standard input. A pipe is read without --data. "
        "A folder, or a pattern in quotes, names several files.",
        metavar="FILE",
    )
    field: Field = None
    out: Path | None = option_field(
        None,
        "Output file, or folder for several input files. Default: JSON lines on standard output.",
        option="--out -o",
        metavar="FILE",
    )
    form: Annotated[
        str | None,
        format_option("npy, jsonl or parquet. Default: the suffix of --out.", FORMATS, show_default=False),
    ] = None
    model: ModelName = None
    device: Device = AUTO
    dtype: Dtype = AUTO
    weights: Weights = None
    tokens: bool = option_field(False, "Write one vector per token instead of one per text.")
    batch: int = option_field(32, "Texts per batch.", minimum=1)
    truncate: Truncate = False
    skip_bad: bool = option_field(False, "Skip unusable lines and report them.")
    ray: str | None = option_field(
        None,
        "Use a Ray cluster: HOST:PORT, auto (started here by ray start), or by default a new one here.",
        metavar="[ADDRESS]",
    )
    resume: Resume = False
    overwrite: Overwrite = False

    @property
    def model_name(self) -> str:
        """The folder or the name of the model."""
        return DEFAULT_MODEL if self.model is None else self.model

    @property
    def made_by(self) -> str:
        """The model and its number formats, if they are not the default."""
        model = self.model_name if self.dtype == "float32" else f"{self.model_name} in {self.dtype}"
        return model if self.weights is None else f"{model} with {self.weights} weights"

    def on_this_machine(self) -> _Options:
        """The same options with the device and the dtype that ``AUTO`` stands for here; with Ray machines may differ.

        Raises DeviceError for a device that cannot be used.
        """
        if self.ray is not None:
            return replace(self, dtype="float32" if self.dtype == AUTO else self.dtype)
        numbers = choose_numbers(self.device, self.dtype)
        return replace(self, device=numbers["device"], dtype=str(numbers["dtype"]).removeprefix("torch."))

    @property
    def embedding(self) -> EmbeddingOptions:
        """The options that say which vectors are computed."""
        from regard.text.embedding_job import EmbeddingOptions

        return EmbeddingOptions(self.tokens, self.batch, self.truncate, self.skip_bad)


@expand_option_groups()
def embed(texts: Texts = None, *, options: _Options) -> None:
    """Turn texts, pictures or sounds into vectors: one each, or with --tokens one contextual vector per token."""
    texts = texts or []
    check_text_options(texts, options.data, options.field)
    check_resume(resume=options.resume, overwrite=options.overwrite)
    opened, kind = open_model(options.model_name)
    options = options.on_this_machine()
    from regard.media import TEXTS
    from regard.text.embedding_files import names_several_files

    medium = TEXTS if kind is None or kind.files is None else kind.files
    if kind is not None and kind.texts and not are_picture_paths(texts, options.data):
        medium = TEXTS
    if medium is not TEXTS:
        useless = {"--tokens": options.tokens, "--truncate": options.truncate, "--ray": options.ray is not None}
        refuse_options([name for name, is_given in useless.items() if is_given], medium.plural, "texts")
    if medium is TEXTS and names_several_files(options.data):
        _embed_several(options)
    elif options.ray is not None:
        _embed_on_ray(options, options.ray)
    else:
        _embed_lines(texts, options, opened, medium)


def _embed_lines(texts: list[str], options: _Options, opened: str | ModelFolder, medium: Medium) -> None:
    """Embed the texts or files of the arguments, a file or a pipe, here."""
    from regard.text.embedding_job import write_output

    out, name = options.out, choose_format(options.form, options.out)
    parts = None if out is None else _open_parts(out, name, options)
    if out is None and (options.resume or options.overwrite):
        raise OptionError(
            "--resume and --overwrite need an output file",
            expected="--out FILE",
            got="no --out",
            do="name the file, such as -o vectors.npy",
        )
    with open_media(texts, options.data, options.field, medium) as lines:
        embedder, form = _load_embedder(opened, medium, name, options)
        if parts is None:
            summary = _print_vectors(lines, embedder, form)
        else:
            settings = _run_settings(name, embedder, options)
            after = start_or_resume(parts, settings, medium, resume=options.resume)
            with explain_early_end(partial(keep_parts, parts), str(out)), line_progress(lines, out) as advance:
                summary = write_output(parts, lines, embedder, form, advance, after=after)
            say(f"{out}: {describe_output(summary, options.made_by, embedder)}")
    report_summary(summary, out)


def _embed_several(options: _Options) -> None:
    """Embed several files, here or on a Ray cluster."""
    from regard.cli import embed_files
    from regard.text.vector_files import find_format

    out, name = options.out, str(options.form)
    address = None if options.ray is None else _find_cluster(options.ray, options)
    files = embed_files.plan_files(str(options.data), out, options.form)
    assert out is not None, "the plan needs it"
    form = find_format(name)(tokens=options.tokens)
    kept = embed_files.open_run(out, files, form, resume=options.resume, overwrite=options.overwrite)
    run = _prepare_run(files, name, options)
    left = embed_files.start_files(kept, run, resume=options.resume)
    with explain_early_end(partial(embed_files.keep_files, left, kept), "the output"):
        total = _embed_left(left, run, address, names_sources=True)
    kept.remove()
    counts = describe_output(total, options.made_by, run.embedder)
    say(f"{out}: {count_noun(len(left), 'file')}, {counts}")


def _embed_on_ray(options: _Options, ray: str) -> None:
    """Embed a single file on a Ray cluster."""
    from regard.cli import embed_files
    from regard.text.embedding_files import FileToEmbed

    address = _find_cluster(ray, options)
    assert options.data is not None, "the check of the input for Ray needs it"
    assert options.out is not None, "so does it need the output"
    name = choose_format(options.form, options.out)
    _open_parts(options.out, name, options)
    with open_texts([], options.data, options.field):  # an unreadable file is refused before a cluster is started
        pass
    files = [FileToEmbed(Path(options.data), options.out)]
    run = _prepare_run(files, name, options)
    embed_files.start_file(files[0], run.settings, resume=options.resume)
    with explain_early_end(partial(embed_files.keep_files, files, None), "the output"):
        total = _embed_left(files, run, address, names_sources=False)
    say(f"{options.out}: {describe_output(total, options.made_by, run.embedder)}")


def _open_parts(out: Path, name: str, options: _Options) -> Shards:
    run = {"resume": options.resume, "overwrite": options.overwrite}
    return open_parts(out, name, options.embedding, options.data, **run)


def _find_cluster(ray: str, options: _Options) -> str:
    """Check that the input suits a Ray cluster, and return the address of the cluster."""
    from regard.cli import embed_files
    from regard.ray_embedding.supervisor import check_ray

    embed_files.check_ray_input(options.data, options.out)
    return check_ray(ray)


def _prepare_run(files: list[FileToEmbed], name: str, options: _Options) -> FilesRun:
    from regard.cli import embed_files
    from regard.media import TEXTS

    embedder, form = _load_embedder(options.model_name, TEXTS, name, options)
    settings = _run_settings(name, embedder, options)
    return embed_files.FilesRun(files, settings, form, embedder, options.field, options.model_name, options.device)


def _embed_left(
    left: Sequence[FileToEmbed], run: FilesRun, address: str | None, *, names_sources: bool
) -> EmbeddingSummary:
    """Embed the files that are left, here or on the cluster at ``address``; report each, and return the total."""
    from regard.cli import embed_files
    from regard.text.embedding_job import EmbeddingSummary

    found = embed_files.embed_here(left, run) if address is None else embed_files.embed_on_ray(left, run, address)
    total = EmbeddingSummary()
    for number, summary in found:
        total.rows, total.vectors = total.rows + summary.rows, total.vectors + summary.vectors
        report_summary(summary, left[number].out, left[number].source if names_sources else None)
    return total


def _load_embedder(
    model: str | ModelFolder, medium: Medium, name: str, options: _Options
) -> tuple[LineEmbedder, VectorFormat]:
    """Load the model, which reads ``medium``, and find the format ``name``."""
    import torch

    from regard.classification.media_classifier import FileLines
    from regard.media import TEXTS
    from regard.models import Encoder, MediaEncoder
    from regard.text.embedding import Embedder
    from regard.text.embedding_job import TextLines
    from regard.text.vector_files import find_format

    device = "cpu" if options.ray is not None else options.device  # the machines of a cluster compute the vectors
    formats = {"device": device, "dtype": getattr(torch, options.dtype), "weights": options.weights}
    embedder: LineEmbedder
    if medium is TEXTS:
        embedder = TextLines(Embedder(Encoder.load(model, **formats)), options.embedding)
    else:
        embedder = FileLines(MediaEncoder.load(model, **formats), options.embedding)
    return embedder, find_format(name)(tokens=options.tokens, width=embedder.width)


def _run_settings(name: str, embedder: LineEmbedder, options: _Options) -> dict[str, object]:
    """Settings that a resumed run must share with the interrupted one."""
    formats = {"dtype": options.dtype, **drop_none({"weights": options.weights})}
    of_model = {**formats, "fingerprint of the model": embedder.fingerprint()}
    return {"format": name, "field": options.field, **of_model, **asdict(embedder.options)}


def _print_vectors(lines: LineReader | Sequence[Line], embedder: LineEmbedder, form: VectorFormat) -> EmbeddingSummary:
    from regard.text import embedding_job

    summary = embedding_job.EmbeddingSummary(nouns=embedder.nouns)
    with line_progress(lines, None) as advance:
        for chunk in embedding_job.embed_chunks(lines, embedder):
            form.write(sys.stdout.buffer, chunk.texts, chunk.vectors)
            sys.stdout.buffer.flush()
            summary.add(chunk.record)
            advance(chunk.record.lines)
    summary.check()
    return summary
