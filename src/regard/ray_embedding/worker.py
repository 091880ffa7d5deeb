"""The stages of the pipeline, as they run on any machine of the cluster: read a file in chunks, and embed a chunk.

Both take and give tables with one column of messages (``messages.py``). An error is a message as well: raised, it would
reach the user as tracebacks of several processes, and Ray would log each of them.

An embedder writes its shard under a name of its own, then renames it. So a chunk may be embedded again, or twice at
the same time: after a kill Ray repeats what the killed worker had not answered, and the same bytes get the same name.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from regard.errors import (
    CheckpointError,
    ClusterError,
    DataError,
    OutputError,
    OutputExistsError,
    RegardError,
    write_error,
)
from regard.ray_embedding.messages import Message, Plan, PlannedFile, describe_error, restore_error
from regard.text.embedding_job import LineChunk, TextLines, cut_chunks, embed_chunk
from regard.text.line import Line
from regard.text.line_reader import LineReader
from regard.text.resumable_shards import Shards

if TYPE_CHECKING:
    from regard.text.vector_files import VectorFormat

MAX_ATTEMPTS = 4
"""Number of workers that may die over a chunk, before the chunk is taken for the cause."""


def read_files(table: Any, *, plan: str) -> Iterator[Any]:
    """Read the files whose numbers are in the column "file"; yield each chunk that is not complete as a table."""
    planned = Plan.from_json(plan)
    for number in table["file"].to_pylist():
        for message in _answer(partial(_read_file, planned, number)):
            yield _to_table(message)


@final
class ChunkEmbedder:
    """Embeds chunks and writes their shards. It loads its model with the first chunk, on ``threads`` threads."""

    def __init__(self, plan: str, threads: int) -> None:
        self._plan, self._threads = Plan.from_json(plan), threads
        self._embedder: TextLines | None = None

    def __call__(self, table: Any) -> Any:
        """Answer each message: embed a chunk, and pass on any other message."""
        answers = []
        for text in table["message"].to_pylist():
            message = json.loads(text)
            if "texts" in message:
                (message,) = _answer(partial(self._answers, message))
            answers.append(message)
        return _to_table(*answers)

    def _answers(self, message: Message) -> Iterator[Message]:
        yield self._embed(message)

    def _embed(self, message: Message) -> Message:
        file, part = self._plan.files[message["file"]], message["chunk"]
        lines = _restore_lines(message, file.name)
        shards = _open_shards(file)
        answer = {"file": message["file"], "chunk": part, "lines": len(lines), "bytes": message["bytes"]}
        if shards.has(part) or not shards.has_earlier_run:  # Ray repeats work whose answer it has lost
            return answer
        if shards.count_attempt(part) >= MAX_ATTEMPTS:
            raise ClusterError(
                f"{MAX_ATTEMPTS} workers died while they embedded lines {lines[0].number:,} to "
                f"{lines[-1].number:,} of {file.name}",
                expected="enough memory for a model and a batch on each worker",
                got=f"the last one on {platform.node()}; a worker without memory is killed by its system",
                do="give each worker more memory or lower `batch`, and continue with `resume=True`",
            )
        embedder, form = self._load()
        chunk = embed_chunk(LineChunk(lines, message["stop"], message["digest"]), embedder)
        try:
            shards.add_at(part, chunk.record, partial(form.write, texts=chunk.texts, vectors=chunk.vectors))
        except OSError as error:
            raise write_error("the output cannot be written", error, then="continue with `resume=True`") from error
        return answer

    def _load(self) -> tuple[TextLines, VectorFormat]:
        """Load the model once. Raises CheckpointError if it is another one than on the machine of the command."""
        import torch

        from regard.models import Encoder
        from regard.text.embedding import Embedder
        from regard.text.vector_files import find_format

        plan = self._plan
        if self._embedder is None:
            torch.set_num_threads(self._threads)
            find_format(plan.form).check_installed()
            formats = {"dtype": getattr(torch, plan.dtype), "weights": plan.weights}
            model = Encoder.load(plan.model, device=plan.device, **formats)
            embedder = TextLines(Embedder(model), plan.options)
            if embedder.fingerprint() != plan.fingerprint:
                raise CheckpointError(
                    f"the model {plan.model} differs between machines",
                    expected="the weights, configuration and tokenizer of the machine that runs the command",
                    got="others",
                    do="put the model into a folder that all machines share, and name it: `model=...`",
                )
            self._embedder = embedder
        return self._embedder, find_format(plan.form)(tokens=plan.options.tokens, width=self._embedder.width)


def _read_file(plan: Plan, number: int) -> Iterator[Message]:
    """Read one file; yield its chunks, then their number. Raises OutputExistsError if complete ones had other text."""
    file = plan.files[number]
    shards, others = _open_shards(file), frozenset(file.others)
    if not shards.has_earlier_run:  # the output is complete, and Ray repeats this file
        return
    reader = LineReader(file.source, field=plan.field, name=file.name)
    reported, part = 0, -1
    try:
        reader.choose_field()
        for part, chunk in enumerate(cut_chunks(reader, plan.options)):
            if part < file.complete or part in others:
                _check_same_lines(shards, part, chunk, file)
                continue
            position = reader.position
            yield {
                "file": number,
                "chunk": part,
                "numbers": [line.number for line in chunk.lines],
                "stop": chunk.stop,
                "texts": [line.text for line in chunk.lines],
                "problems": {
                    str(index): describe_error(line.problem) for index, line in enumerate(chunk.lines) if line.problem
                },
                "digest": chunk.digest,
                "bytes": position - reported,
            }
            reported = position
            if chunk.lines[-1].problem is not None and not plan.options.skip_bad:
                return  # the embedder reports it, and the run ends
        yield {"file": number, "end": part + 1, "bytes": reader.position - reported}
    finally:
        reader.close()


def _restore_lines(message: Message, name: str) -> tuple[Line, ...]:
    lines = []
    for index, text in enumerate(message["texts"]):
        number, problem = message["numbers"][index], message["problems"].get(str(index))
        error = restore_error(problem) if problem else None
        assert error is None or isinstance(error, DataError)
        lines.append(Line(number, f"line {number} of {name}", b"", text, error))
    return tuple(lines)


def _check_same_lines(shards: Shards, part: int, chunk: LineChunk, file: PlannedFile) -> None:
    if shards.record(part).digest != chunk.digest:
        raise OutputExistsError(
            "the input differs from that of the interrupted run",
            expected=f"the same first {chunk.stop:,} texts of {file.name}, to resume",
            got="other text, or fewer texts",
            do="resume with the same input (`resume=True`), or start again (`overwrite=True`)",
        )


def _open_shards(file: PlannedFile) -> Shards:
    """Open the output's shards. Raises OutputError if this machine sees neither their folder nor the output."""
    shards = Shards(Path(file.out))
    if not shards.has_earlier_run and not shards.out.exists():
        raise OutputError(
            f"a worker does not see the folder {shards.folder}",
            expected="input and output on a disk that all machines of the cluster share, under the same path",
            got=f"no such folder on {platform.node()}",
            do="use a shared folder",
        )
    return shards


def _answer(work: Callable[[], Iterator[Message]]) -> Iterator[Message]:
    """Do the work; an error of it becomes its last message."""
    try:
        yield from work()
    except RegardError as error:
        yield {"error": describe_error(error)}
    except Exception as error:
        yield {"error": describe_error(_explain(error))}


def _explain(error: Exception) -> ClusterError:
    """Explain an error that is not regard's: no memory, or anything unexpected."""
    text = " ".join(str(error).split())[:300]
    if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text:
        return ClusterError(
            "a worker has not enough memory",
            expected="enough memory for a model and a batch on each worker",
            got=f"on {platform.node()}: {text or 'no memory'}",
            do="lower `batch`, or give each worker more memory, and continue with `resume=True`",
        )
    return ClusterError(
        "a worker failed",
        expected="regard and its packages in the same versions on all machines, and a shared disk",
        got=f"on {platform.node()}: {type(error).__name__}: {text}",
        do="correct that, and continue with `resume=True`",
    )


def _to_table(*messages: Message) -> Any:
    import pyarrow as pa

    return pa.table({"message": [json.dumps(message) for message in messages]})
