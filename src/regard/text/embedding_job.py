"""Embed an input of any size in constant memory: lines in chunks, chunks in batches of similar length.

    lines -> chunk of at most 512 lines -> tokens -> batches sorted by length -> vectors in the order of lines -> shard

The ends of chunks depend on the lines alone, so an interrupted and resumed run computes the same chunks as an
uninterrupted one, and its output is the same to the bit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, final

import torch

from regard.atomic_write import sync_file, sync_folder
from regard.errors import DataError, OutputExistsError
from regard.text.embedding import Embedder
from regard.text.line import Line
from regard.text.resumable_shards import ShardRecord, Shards, SkippedLine
from regard.text.tokenizer import TokenizedText
from regard.text.unknown_words import is_mostly_unknown
from regard.text.vector_files import VectorFormat, Vectors, check_finite

CHUNK_LINES = 512
CHUNK_CHARACTERS = {False: 2**18, True: 2**15}
"""Characters per chunk without and with a vector per token; a token rarely has less than a character."""
MAX_NAMED_LINES = 10
"""Maximum line numbers in a summary; the file of skipped lines has all of them."""


@final
@dataclass(frozen=True)
class EmbeddingOptions:
    """Embedding options: vectors per token or per text, texts per batch, and what to do with long or unusable texts."""

    tokens: bool = False
    batch: int = 32
    truncate: bool = False
    skip_bad: bool = False


@final
@dataclass(frozen=True)
class LineChunk:
    """Lines of a chunk, and the number and the SHA-256 of all lines of the input up to its end."""

    lines: tuple[Line, ...]
    stop: int
    digest: str


@final
@dataclass(frozen=True)
class Chunk:
    """Rows of a chunk, and the record of their lines."""

    texts: tuple[TokenizedText, ...]
    vectors: Vectors
    record: ShardRecord


@final
@dataclass
class EmbeddingSummary:
    """Counts of rows and vectors written, and of lines skipped, truncated or of unknown words, with the first ones."""

    rows: int = 0
    vectors: int = 0
    skipped: int = 0
    truncated: int = 0
    unknown: int = 0
    first_skipped: list[SkippedLine] = field(default_factory=list)
    first_truncated: list[int] = field(default_factory=list)
    first_unknown: list[int] = field(default_factory=list)

    def add(self, record: ShardRecord) -> None:
        """Add the counts of one more shard."""
        self.rows += len(record.lengths)
        self.vectors += sum(record.lengths)
        self.skipped += len(record.skipped)
        self.truncated += len(record.truncated)
        self.unknown += len(record.unknown)
        self.first_skipped += record.skipped[: MAX_NAMED_LINES - len(self.first_skipped)]
        self.first_truncated += record.truncated[: MAX_NAMED_LINES - len(self.first_truncated)]
        self.first_unknown += record.unknown[: MAX_NAMED_LINES - len(self.first_unknown)]

    def check(self) -> None:
        """Raise DataError if no row was written."""
        if not self.rows:
            got = "no line"
            if self.first_skipped:
                first = self.first_skipped[0].problem.splitlines()[0]
                got = f"{format_count(self.skipped, 'line')} skipped; the first: {first}"
            raise DataError(
                "no line could be used",
                expected="at least one text",
                got=got,
                do="check the file and its field (`field=...`)",
            )


def format_count(number: int, thing: str) -> str:
    """Format a count with its noun: "1 line", "1,000 lines"."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def embed_chunks(
    lines: Iterable[Line], embedder: Embedder, options: EmbeddingOptions, after: ShardRecord | None = None
) -> Iterator[Chunk]:
    """Embed the lines chunk by chunk, starting after the lines of the record ``after``.

    Raises DataError for an unusable line unless ``skip_bad``, and OutputExistsError if the lines before differ from the
    record.
    """
    for chunk in cut_chunks(lines, options, after):
        yield embed_chunk(chunk, embedder, options)


def cut_chunks(
    lines: Iterable[Line], options: EmbeddingOptions, after: ShardRecord | None = None
) -> Iterator[LineChunk]:
    """Cut the lines into chunks, starting after the lines of the record ``after``.

    Unless ``skip_bad``, a line with a problem ends its chunk, since nothing beyond it is embedded. Raises
    OutputExistsError if the lines before differ from the record.
    """
    digest = hashlib.sha256()
    taken: list[Line] = []
    size, stop = 0, 0 if after is None else after.lines
    for line in _skip_finished_lines(lines, digest, after):
        taken.append(line)
        size, stop = size + len(line.text), stop + 1
        ends_here = line.problem is not None and not options.skip_bad
        if ends_here or len(taken) == CHUNK_LINES or size >= CHUNK_CHARACTERS[options.tokens]:
            yield LineChunk(tuple(taken), stop, digest.hexdigest())
            taken, size = [], 0
    if taken:
        yield LineChunk(tuple(taken), stop, digest.hexdigest())


def embed_chunk(chunk: LineChunk, embedder: Embedder, options: EmbeddingOptions) -> Chunk:
    """Embed the lines of one chunk. Raises DataError for an unusable line unless ``skip_bad``."""
    good, skipped = _tokenize_lines(chunk.lines, embedder, options)
    texts = tuple(text for _, text in good)
    vectors = _compute_vectors(texts, embedder, options)
    check_finite(vectors)
    record = ShardRecord(
        lines=chunk.stop,
        digest=chunk.digest,
        lengths=tuple(len(text) if options.tokens else 1 for text in texts),
        skipped=tuple(skipped),
        truncated=tuple(line.number for line, text in good if text.dropped),
        unknown=tuple(line.number for line, text in good if is_mostly_unknown(text)),
    )
    return Chunk(texts, vectors, record)


def write_output(
    parts: Shards, found: Iterable[Chunk], form: VectorFormat, progress: Callable[[int], None]
) -> EmbeddingSummary:
    """Write each chunk as a shard, then join all shards into the output and return the summary.

    ``progress`` is called with the number of lines done. Raises DataError if no row was written.
    """
    for chunk in found:
        parts.add(chunk.record, partial(form.write, texts=chunk.texts, vectors=chunk.vectors))
        progress(chunk.record.lines)
    return join_output(parts, form)


def join_output(parts: Shards, form: VectorFormat) -> EmbeddingSummary:
    """Join all shards into the output, remove them, and return the summary. Raises DataError if no row was written."""
    summary = EmbeddingSummary()
    for record in parts.records():
        summary.add(record)
    if summary.rows:
        _join_shards(parts, form)
    parts.remove()
    summary.check()
    return summary


def skipped_path(out: Path) -> Path:
    """Path of the file that lists the skipped lines."""
    return out.with_name(f"{out.name}.skipped.jsonl")


def fingerprint(embedder: Embedder) -> str:
    """SHA-256 of everything that determines the vectors: configs, weights, tokenizer and pooling."""
    configs = [module.config for module in embedder.model.modules() if hasattr(module, "config")]
    digest = hashlib.sha256(f"{embedder.pooling} {configs}".encode())
    digest.update(embedder.tokenizer.to_json().encode())
    for name, tensor in embedder.model.state_dict().items():
        digest.update(name.encode())
        digest.update(memoryview(tensor.detach().cpu().contiguous().view(torch.uint8).numpy()).cast("B"))
    return digest.hexdigest()


def _skip_finished_lines(lines: Iterable[Line], digest: Any, after: ShardRecord | None) -> Iterator[Line]:
    """Yield the lines after the record ``after``, once the lines before match its hash; hash every line read."""
    rest = iter(lines)
    if after is not None:
        for line in islice(rest, after.lines):
            digest.update(line.raw)
        if digest.hexdigest() != after.digest:
            raise OutputExistsError(
                "the input differs from that of the interrupted run",
                expected=f"the same first {format_count(after.lines, 'text')}, to resume",
                got="other text, or fewer texts",
                do="resume with the same input (`resume=True`), or start again (`overwrite=True`)",
            )
    for line in rest:
        digest.update(line.raw)
        yield line


def _tokenize_lines(
    lines: Sequence[Line], embedder: Embedder, options: EmbeddingOptions
) -> tuple[list[tuple[Line, TokenizedText]], list[SkippedLine]]:
    """Tokenize the usable lines and collect the others. Raises the first problem unless ``skip_bad``."""
    tokenizer = embedder.tokenizer
    read = iter(tokenizer.tokenize([line.text for line in lines if not line.problem], truncate=options.truncate))
    good, skipped = [], []
    for line in lines:
        try:
            line.require_text()
            text = next(read)
            tokenizer.check_length(text, line.name)
            good.append((line, text))
        except DataError as problem:
            if not options.skip_bad:
                raise
            skipped.append(SkippedLine(line.number, str(problem)))
    return good, skipped


def _compute_vectors(texts: tuple[TokenizedText, ...], embedder: Embedder, options: EmbeddingOptions) -> Vectors:
    if options.tokens:
        return [vectors.numpy() for vectors in embedder.contextual(texts, batch=options.batch)]
    return list(embedder.pooled(texts, batch=options.batch).numpy())


def _join_shards(parts: Shards, form: VectorFormat) -> None:
    """Join the shards beside the output, then rename; the output itself last, since its presence completes the run."""
    out, data = parts.out, parts.data_files()
    temporary = parts.folder / f"joined{out.suffix}"
    form.join(data, lambda: (length for record in parts.records() for length in record.lengths), temporary)
    listed = skipped_path(temporary)
    with listed.open("w", encoding="utf-8") as file:
        for record in parts.records():
            for skipped in record.skipped:
                file.write(json.dumps({"line": skipped.line, "problem": skipped.problem}, ensure_ascii=False) + "\n")
    if listed.stat().st_size == 0:
        listed.unlink()
        skipped_path(out).unlink(missing_ok=True)
    ours = [*form.companions(temporary), *([listed] if listed.exists() else []), temporary]
    for path in ours:
        sync_file(path)
    for path in ours:
        path.replace(out.with_name(out.name + path.name.removeprefix(temporary.name)))
    sync_folder(out.absolute().parent)
