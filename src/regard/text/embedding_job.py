"""Embed an input of any size in constant memory: lines in chunks, chunks in batches.

    lines -> chunk of at most 512 lines -> what the model reads -> batches -> vectors in the order of lines -> shard

A line is a text, or the path of a picture, a sound or another file: a ``LineEmbedder`` knows what it makes of lines.

The ends of chunks depend on the lines alone, so an interrupted and resumed run computes the same chunks as an
uninterrupted one, and its output is the same to the bit.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, final

import torch

from regard.atomic_write import sync_file, sync_folder
from regard.errors import DataError, OutputExistsError
from regard.language import count_noun
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


class LineEmbedder(ABC):
    """Makes the vectors of the lines of an input: of texts, or of the files whose paths they are.

    ``width`` is the number of components of a vector. ``how`` says how it is made, such as "mean pooling"; ``nouns``
    are what messages call a line and several; ``chunk`` is the most lines that are read at a time, None is
    ``CHUNK_LINES``.
    """

    chunk: int | None = None

    def __init__(self, options: EmbeddingOptions, *, width: int, how: str, nouns: tuple[str, str]) -> None:
        self.options, self.width, self.how, self.nouns = options, width, how, nouns

    @abstractmethod
    def read(self, lines: Sequence[Line]) -> Sequence[tuple[TokenizedText, Any] | DataError]:
        """For each line its row in the output and what ``compute`` makes vectors of, or the problem with the line."""

    @abstractmethod
    def compute(self, inputs: Sequence[Any]) -> Vectors:
        """The vectors of what ``read`` returned."""

    @abstractmethod
    def fingerprint(self) -> str:
        """SHA-256 of everything that determines the vectors."""


@final
class TextLines(LineEmbedder):
    """Makes the vectors of texts with ``embedder``; with ``tokens`` one for each token.

    Raises RefusedError for an unsupported pooling.
    """

    def __init__(self, embedder: Embedder, options: EmbeddingOptions) -> None:
        if not options.tokens:
            embedder.pooling.check()
        width = embedder.model.width if options.tokens else embedder.width
        how = "last layer" if options.tokens else str(embedder.pooling)
        super().__init__(options, width=width, how=how, nouns=("line", "lines"))
        self.embedder = embedder

    def read(self, lines: Sequence[Line]) -> Sequence[tuple[TokenizedText, Any] | DataError]:
        """Tokenize the texts."""
        tokenizer, truncate = self.embedder.tokenizer, self.options.truncate
        tokenized = iter(tokenizer.tokenize([line.text for line in lines if not line.problem], truncate=truncate))
        read: list[tuple[TokenizedText, Any] | DataError] = []
        for line in lines:
            try:
                line.require_text()
                text = next(tokenized)
                tokenizer.check_length(text, line.name)
                read.append((text, text))
            except DataError as problem:
                read.append(problem)
        return read

    def compute(self, inputs: Sequence[TokenizedText]) -> Vectors:
        """Embed tokenized texts."""
        if self.options.tokens:
            return [vectors.numpy() for vectors in self.embedder.contextual(inputs, batch=self.options.batch)]
        return list(self.embedder.pooled(inputs, batch=self.options.batch).numpy())

    def fingerprint(self) -> str:
        """SHA-256 of configs, weights, tokenizer and pooling."""
        return fingerprint(self.embedder.model, str(self.embedder.pooling), self.embedder.tokenizer.to_json())


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
    """Counts of rows and vectors written, and of lines skipped, truncated or of unknown words, with the first ones.

    ``nouns`` are those of ``LineEmbedder``.
    """

    rows: int = 0
    vectors: int = 0
    skipped: int = 0
    truncated: int = 0
    unknown: int = 0
    first_skipped: list[SkippedLine] = field(default_factory=list)
    first_truncated: list[int] = field(default_factory=list)
    first_unknown: list[int] = field(default_factory=list)
    nouns: tuple[str, str] = ("line", "lines")

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
            got = f"no {self.nouns[0]}"
            if self.first_skipped:
                got = f"{self.count_skipped()} skipped; the first: {self.first_skipped[0].problem.splitlines()[0]}"
            raise DataError(
                f"no {self.nouns[0]} could be used",
                expected=f"at least one usable {self.nouns[0]}",
                got=got,
                do="check the paths, or the file and its field (`field=...`)",
            )

    def count_skipped(self) -> str:
        """The number of lines skipped, in words."""
        return count_noun(self.skipped, *self.nouns)


def embed_chunks(lines: Iterable[Line], embedder: LineEmbedder, after: ShardRecord | None = None) -> Iterator[Chunk]:
    """Embed the lines chunk by chunk, starting after the lines of the record ``after``.

    Raises DataError for an unusable line unless ``skip_bad``, and OutputExistsError if the lines before differ from the
    record.
    """
    for chunk in cut_chunks(lines, embedder.options, after, limit=embedder.chunk):
        yield embed_chunk(chunk, embedder)


def cut_chunks(
    lines: Iterable[Line], options: EmbeddingOptions, after: ShardRecord | None = None, *, limit: int | None = None
) -> Iterator[LineChunk]:
    """Cut the lines into chunks of at most ``limit``, starting after the lines of the record ``after``.

    Unless ``skip_bad``, a line with a problem ends its chunk, since nothing beyond it is embedded. Raises
    OutputExistsError if the lines before differ from the record.
    """
    digest, limit = hashlib.sha256(), limit or CHUNK_LINES
    chunk: list[Line] = []
    size, stop = 0, 0 if after is None else after.lines
    for line in _skip_finished_lines(lines, digest, after):
        chunk.append(line)
        size, stop = size + len(line.text), stop + 1
        ends_here = line.problem is not None and not options.skip_bad
        if ends_here or len(chunk) == limit or size >= CHUNK_CHARACTERS[options.tokens]:
            yield LineChunk(tuple(chunk), stop, digest.hexdigest())
            chunk, size = [], 0
    if chunk:
        yield LineChunk(tuple(chunk), stop, digest.hexdigest())


def embed_chunk(chunk: LineChunk, embedder: LineEmbedder) -> Chunk:
    """Embed the lines of one chunk. Raises DataError for an unusable line unless ``skip_bad``."""
    options, inputs = embedder.options, list[Any]()
    good, skipped = list[tuple[Line, TokenizedText]](), list[SkippedLine]()
    for line, read in zip(chunk.lines, embedder.read(chunk.lines), strict=True):
        if not isinstance(read, DataError):
            good.append((line, read[0]))
            inputs.append(read[1])
        elif options.skip_bad:
            skipped.append(SkippedLine(line.number, str(read)))
        else:
            raise read
    texts = tuple(text for _, text in good)
    vectors = embedder.compute(inputs)
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
    parts: Shards,
    lines: Iterable[Line],
    embedder: LineEmbedder,
    form: VectorFormat,
    progress: Callable[[int], None],
    *,
    after: ShardRecord | None = None,
) -> EmbeddingSummary:
    """Embed each chunk and write it as a shard, then join all shards into the output and return the summary.

    ``progress`` is called with the number of lines done. Raises as ``embed_chunks``, and DataError if no row was
    written.
    """
    for chunk in embed_chunks(lines, embedder, after):
        parts.add(chunk.record, partial(form.write, texts=chunk.texts, vectors=chunk.vectors))
        progress(chunk.record.lines)
    return join_output(parts, form, nouns=embedder.nouns)


def join_output(
    parts: Shards, form: VectorFormat, *, nouns: tuple[str, str] = EmbeddingSummary.nouns
) -> EmbeddingSummary:
    """Join all shards into the output, remove them, and return the summary. Raises DataError if no row was written."""
    summary = EmbeddingSummary(nouns=nouns)
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


def fingerprint(model: Any, how: str, reader: str) -> str:
    """SHA-256 of a model's configs and weights, of how vectors are made, and of the text that says how inputs are."""
    configs = [module.config for module in model.modules() if hasattr(module, "config")]
    digest = hashlib.sha256(f"{how} {configs}".encode())
    digest.update(reader.encode())
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()).cast("B"))
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
                expected=f"the same first {count_noun(after.lines, 'text')}, to resume",
                got="other text, or fewer texts",
                do="resume with the same input (`resume=True`), or start again (`overwrite=True`)",
            )
    for line in rest:
        digest.update(line.raw)
        yield line


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
