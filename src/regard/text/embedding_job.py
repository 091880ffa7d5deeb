"""Vectors of an input of any size, in constant memory: lines in chunks, chunks in batches of similar length.

    lines -> chunk of at most 512 lines -> tokens -> batches sorted by length -> vectors in the order of lines -> part

Where a chunk ends depends on the lines alone, so a run that was interrupted and resumed computes the same chunks as
one that was not, and its output is the same to the bit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, final

import torch

from regard.atomic_write import sync_file, sync_folder
from regard.errors import DataError, OutputExistsError
from regard.text.embedding import Embedder
from regard.text.line_reader import Line
from regard.text.resumable_shards import ShardRecord, Shards, SkippedLine
from regard.text.tokenizer import TokenizedText
from regard.text.unknown_words import is_mostly_unknown
from regard.text.vector_files import VectorFormat, Vectors, check_finite

CHUNK_LINES = 512
CHUNK_CHARACTERS = {False: 2**18, True: 2**15}
"""By whether every token's vector is kept; a token is seldom less than a character."""
MAX_NAMED_LINES = 10
"""Line numbers that a summary names; a file has them all."""


@final
@dataclass(frozen=True)
class EmbeddingOptions:
    """How to embed: each token or each text, texts a batch, and what to do with a text that is too long or no text."""

    tokens: bool = False
    batch: int = 32
    truncate: bool = False
    skip_bad: bool = False


@final
@dataclass(frozen=True)
class Chunk:
    """Some rows, and the record of the lines they came from."""

    texts: tuple[TokenizedText, ...]
    vectors: Vectors
    record: ShardRecord


@final
@dataclass
class EmbeddingSummary:
    """What was done: rows and vectors written; lines left out, cut or of unknown words, and the first of each."""

    rows: int = 0
    vectors: int = 0
    skipped: int = 0
    truncated: int = 0
    unknown: int = 0
    first_skipped: list[SkippedLine] = field(default_factory=list)
    first_truncated: list[int] = field(default_factory=list)
    first_unknown: list[int] = field(default_factory=list)

    def add(self, record: ShardRecord) -> None:
        """Count one more part."""
        self.rows += len(record.lengths)
        self.vectors += sum(record.lengths)
        self.skipped += len(record.skipped)
        self.truncated += len(record.truncated)
        self.unknown += len(record.unknown)
        self.first_skipped += record.skipped[: MAX_NAMED_LINES - len(self.first_skipped)]
        self.first_truncated += record.truncated[: MAX_NAMED_LINES - len(self.first_truncated)]
        self.first_unknown += record.unknown[: MAX_NAMED_LINES - len(self.first_unknown)]

    def check(self) -> None:
        """Raise DataError where nothing was written."""
        if not self.rows:
            got = "no line at all"
            if self.first_skipped:
                first = self.first_skipped[0].problem.splitlines()[0]
                got = f"{format_count(self.skipped, 'line')} left out; the first: {first}"
            raise DataError(
                "no line could be used",
                expected="at least one text",
                got=got,
                do="check the file and --field",
            )


def format_count(number: int, thing: str) -> str:
    """A number of things: "1 line", "1,000 lines"."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def embed_chunks(
    lines: Iterable[Line], embedder: Embedder, options: EmbeddingOptions, after: ShardRecord | None = None
) -> Iterator[Chunk]:
    """The vectors of the lines, chunk by chunk, from the line after the record ``after``.

    Raises DataError for a line that cannot be used unless ``skip_bad``, OutputExistsError where the lines before are
    not those of the record.
    """
    digest = hashlib.sha256()
    taken: list[Line] = []
    size = 0
    for line in _skip_finished_lines(lines, digest, after):
        taken.append(line)
        size += len(line.text)
        ends_here = line.problem is not None and not options.skip_bad  # nothing behind it need be read
        if ends_here or len(taken) == CHUNK_LINES or size >= CHUNK_CHARACTERS[options.tokens]:
            yield _embed_chunk(taken, digest.hexdigest(), embedder, options)
            taken, size = [], 0
    if taken:
        yield _embed_chunk(taken, digest.hexdigest(), embedder, options)


def write_output(
    parts: Shards, found: Iterable[Chunk], form: VectorFormat, progress: Callable[[int], None]
) -> EmbeddingSummary:
    """Write chunks as parts, then join all parts into the output.

    ``progress`` is called with the number of lines done.
    """
    for chunk in found:
        parts.add(chunk.record, partial(form.write, texts=chunk.texts, vectors=chunk.vectors))
        progress(chunk.record.lines)
    summary = EmbeddingSummary()
    for record in parts.records():
        summary.add(record)
    if summary.rows:
        _join_shards(parts, form)
    parts.remove()
    summary.check()
    return summary


def skipped_path(out: Path) -> Path:
    """Where the lines that were left out are listed."""
    return out.with_name(f"{out.name}.skipped.jsonl")


def fingerprint(embedder: Embedder) -> str:
    """A hash of all that decides the vectors: weights, tokenizer and pooling."""
    digest = hashlib.sha256(f"{embedder.pooling} {embedder.model.config}".encode())
    digest.update(embedder.tokenizer.to_json().encode())
    for name, tensor in embedder.model.state_dict().items():
        digest.update(name.encode())
        digest.update(memoryview(tensor.detach().cpu().contiguous().view(torch.uint8).numpy()).cast("B"))
    return digest.hexdigest()


def _skip_finished_lines(lines: Iterable[Line], digest: Any, after: ShardRecord | None) -> Iterator[Line]:
    """The lines behind the record ``after``, once those before prove to be the same; all go into the hash."""
    rest = iter(lines)
    if after is not None:
        for line in islice(rest, after.lines):
            digest.update(line.raw)
        if digest.hexdigest() != after.digest:
            raise OutputExistsError(
                "the input is not the one that the earlier run read",
                expected=f"the same first {format_count(after.lines, 'line')}, to resume",
                got="other text, or fewer lines",
                do="give the same input with --resume, or start again with --overwrite",
            )
    for line in rest:
        digest.update(line.raw)
        yield line


def _embed_chunk(lines: list[Line], digest: str, embedder: Embedder, options: EmbeddingOptions) -> Chunk:
    good, skipped = _tokenize_lines(lines, embedder, options)
    texts = tuple(text for _, text in good)
    vectors = _compute_vectors(texts, embedder, options)
    check_finite(vectors)
    record = ShardRecord(
        lines=lines[-1].number,
        digest=digest,
        lengths=tuple(len(text) if options.tokens else 1 for text in texts),
        skipped=tuple(skipped),
        truncated=tuple(line.number for line, text in good if text.dropped),
        unknown=tuple(line.number for line, text in good if is_mostly_unknown(text)),
    )
    return Chunk(texts, vectors, record)


def _tokenize_lines(
    lines: list[Line], embedder: Embedder, options: EmbeddingOptions
) -> tuple[list[tuple[Line, TokenizedText]], list[SkippedLine]]:
    """The lines that can be read, as tokens, and those left out. Raises the first problem unless ``skip_bad``."""
    tokenizer = embedder.tokenizer
    read = iter(tokenizer.tokenize([line.text for line in lines if not line.problem], truncate=options.truncate))
    good, skipped = [], []
    for line in lines:
        try:
            if line.problem is not None:
                raise line.problem
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
    """Parts to output, aside and then renamed; the output itself last, since with it the run is done."""
    out, data = parts.out, parts.data_files()
    aside = parts.folder / f"joined{out.suffix}"
    form.join(data, lambda: (length for record in parts.records() for length in record.lengths), aside)
    listed = skipped_path(aside)
    with listed.open("w", encoding="utf-8") as file:
        for record in parts.records():
            for skipped in record.skipped:
                file.write(json.dumps({"line": skipped.line, "problem": skipped.problem}, ensure_ascii=False) + "\n")
    if listed.stat().st_size == 0:
        listed.unlink()
        skipped_path(out).unlink(missing_ok=True)
    ours = [*form.companions(aside), *([listed] if listed.exists() else []), aside]
    for path in ours:
        sync_file(path)
    for path in ours:
        path.replace(out.with_name(out.name + path.name.removeprefix(aside.name)))
    sync_folder(out.absolute().parent)
