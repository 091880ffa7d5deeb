"""Files of a medium for training: decoded once and kept, or decoded again in background threads, and their batches.

    kept        what files are decoded to, if that fits into the memory limit
    otherwise   the files of the next batches are decoded while the model computes

Every file is decoded before training begins, so a broken one is found then, and not hours later. The order of batches
depends on (seed, epoch), and a file is augmented by (seed, epoch, batch): an interrupted run resumes with exactly the
next batch, changed in exactly the same way.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, final

import numpy as np
import torch

from regard.errors import DataError
from regard.log import log
from regard.media import MediaFile, Medium
from regard.tasks.labelled_data import hold_out_files, report_bad_files, report_validation
from regard.tasks.numbered_batches import Batches, NumberedBatch, batches_after, start_threads
from regard.tasks.sentences import Indices

_CHUNK = 64
"""Files that a thread decodes at a time."""
_GIGABYTE = 10**9


class Content(Protocol):
    """A decoded file: an array of pixels, or a tensor of features."""

    def __len__(self) -> int: ...

    def __array__(self, dtype: Any = None) -> np.ndarray: ...


Entry = TypeVar("Entry", bound=MediaFile)
Decoded = TypeVar("Decoded", bound=Content)


@final
class DecodedFiles(Generic[Entry, Decoded]):
    """The contents of ``files``, all of which ``decode`` can make. ``kept`` has all contents; None decodes when asked.

    ``digests`` are equal for files of the same content, and ``lengths`` (files,) are the lengths of the contents.
    ``waited`` counts the seconds in which ``take`` waited for files to be decoded.
    """

    def __init__(
        self,
        files: Sequence[Entry],
        decode: Callable[[Entry], Decoded],
        digests: Sequence[str],
        lengths: Sequence[int],
        kept: Sequence[Decoded] | None,
    ) -> None:
        self.files, self.digests, self.kept = list(files), list(digests), kept
        self.lengths, self.waited = np.array(lengths, dtype=np.int64), 0.0
        self._decode, self._pool = decode, start_threads()
        self._asked: dict[int, Future[Decoded]] = {}

    def ask(self, files: Indices) -> None:
        """Begin to decode the files with these indices, which ``take`` will return."""
        for index in files.tolist() if self.kept is None else ():
            if index not in self._asked:
                self._asked[index] = self._pool.submit(self._decode, self.files[index])

    def take(self, files: Indices) -> list[Decoded]:
        """The contents of the files with these indices. Raises DataError for a file that became unreadable."""
        if self.kept is not None:
            return [self.kept[index] for index in files.tolist()]
        begin = time.monotonic()
        self.ask(files)
        found = [self._asked[index].result() for index in files.tolist()]
        for index in set(files.tolist()):
            del self._asked[index]
        self.waited += time.monotonic() - begin
        return found


def decode_files(
    files: Sequence[Entry],
    decode: Callable[[Entry], Decoded],
    medium: Medium,
    *,
    inputs: str,
    memory: float,
    skip_bad: bool,
) -> DecodedFiles[Entry, Decoded]:
    """Decode all files, and keep their contents, called ``inputs``, if they take at most ``memory`` gigabytes.

    Raises DataError with the names of broken files, unless ``skip_bad``, which reports them and leaves them out.
    """
    keep, size = True, 0
    kept, digests, lengths, problems, good = list[Decoded](), list[str](), list[int](), list[DataError](), list[Entry]()

    def decode_chunk(begin: int) -> list[tuple[Entry, Decoded, str] | DataError]:
        return [_decode(file, decode) for file in files[begin : begin + _CHUNK]]

    with start_threads() as pool:
        for chunk in pool.map(decode_chunk, range(0, len(files), _CHUNK)):
            for outcome in chunk:
                if isinstance(outcome, DataError):
                    problems.append(outcome)
                    continue
                file, content, digest = outcome
                good.append(file)
                digests.append(digest)
                lengths.append(len(content))
                size += np.asarray(content).nbytes
                keep = keep and size <= memory * _GIGABYTE
                if keep:
                    kept.append(content)
                else:
                    kept.clear()
    report_bad_files(problems, len(files), medium, skip_bad=skip_bad)
    if not keep:
        log.info(
            f"{size / _GIGABYTE:.1f} GB of {inputs} are more than `memory={memory:g}`: "
            f"{medium.plural} are decoded again in each epoch"
        )
    return DecodedFiles(good, decode, digests, lengths, kept if keep else None)


def _decode(file: Entry, decode: Callable[[Entry], Decoded]) -> tuple[Entry, Decoded, str] | DataError:
    """A file, its content, and a digest of it; the error if it cannot be decoded."""
    try:
        content = decode(file)
    except DataError as error:
        return error
    return file, content, hashlib.blake2b(np.asarray(content).tobytes(), digest_size=16).hexdigest()


def decode_both(
    files: Sequence[Entry], others: Sequence[Entry], decode: Callable[[Entry], Decoded], medium: Medium, **options: Any
) -> tuple[DecodedFiles[Entry, Decoded], DecodedFiles[Entry, Decoded] | None]:
    """Decode the training files and the validation files ``others``, None if there are none: see ``decode_files``.

    Each set has its share of the memory.
    """
    memory = options.pop("memory")
    share = memory * len(files) / (len(files) + len(others))
    decoded = decode_files(files, decode, medium, memory=share, **options)
    return decoded, decode_files(others, decode, medium, memory=memory - share, **options) if others else None


@final
@dataclass(frozen=True, eq=False)
class FileSet(Generic[Entry, Decoded]):
    """Some of ``decoded`` files: those with the indices ``chosen``, one for each example."""

    decoded: DecodedFiles[Entry, Decoded]
    chosen: Indices

    @classmethod
    def whole(cls, decoded: DecodedFiles[Entry, Decoded]) -> FileSet[Entry, Decoded]:
        """All files."""
        return cls(decoded, np.arange(len(decoded.files)))

    @property
    def files(self) -> list[Entry]:
        """The file of each example."""
        return [self.decoded.files[index] for index in self.chosen.tolist()]

    @property
    def digests(self) -> list[str]:
        """The digest of the content of each example."""
        return [self.decoded.digests[index] for index in self.chosen.tolist()]

    def select(self, examples: Indices) -> FileSet[Entry, Decoded]:
        """The set of some examples."""
        return FileSet(self.decoded, self.chosen[examples])

    def take(self, examples: Indices) -> list[Decoded]:
        """The contents of some examples: see ``DecodedFiles.take``."""
        return self.decoded.take(self.chosen[examples])

    def __len__(self) -> int:
        return len(self.chosen)


def split_files(
    whole: FileSet[Entry, Decoded],
    others: FileSet[Entry, Decoded] | None,
    labels: Sequence[Sequence[str]],
    medium: Medium,
    *,
    seed: int,
) -> tuple[FileSet[Entry, Decoded], FileSet[Entry, Decoded]]:
    """The examples for training and for validation.

    Without ``others`` for validation ``seed`` decides which are held out: see ``hold_out_files``.
    """
    if others is not None:
        report_validation(whole.digests, others.digests, medium)
        return whole, others
    training, held = hold_out_files(whole.digests, labels, medium, seed=seed)
    return whole.select(training), whole.select(held)


class FileBatches(Batches, ABC, Generic[Entry, Decoded]):
    """Batches of ``size`` examples of ``examples``. ``augmented`` counts the seconds of augmentation.

    A subclass reads the contents, and adds what is to be learned of each example.
    """

    def __init__(self, examples: FileSet[Entry, Decoded], *, size: int, seed: int) -> None:
        super().__init__(size=size, seed=seed)
        self.examples, self.augmented = examples, 0.0

    @property
    def entries(self) -> list[Entry]:
        """The file of each example."""
        return self.examples.files

    @abstractmethod
    def target_bytes(self) -> bytes:
        """The targets of the examples, in order, for ``digest``."""

    @abstractmethod
    def inputs(self, examples: Indices, device: torch.device) -> Mapping[str, Any]:
        """The arguments of a model for examples as they are, without augmentation."""

    @property
    def digest(self) -> str:
        """SHA-256 of all contents and targets, in order, by which a resumed run recognises its data."""
        digest = hashlib.sha256("".join(self.examples.digests).encode())
        digest.update(self.target_bytes())
        return digest.hexdigest()

    @property
    def waited(self) -> float:
        """The seconds spent waiting for files to be decoded."""
        return self.examples.decoded.waited

    def __len__(self) -> int:
        return len(self.examples)

    def prefetch_following(self, batch: NumberedBatch) -> None:
        """Prefetch the batches that follow a batch in its epoch."""
        for following in batches_after(self.epoch(batch.epoch), batch):
            self.examples.decoded.ask(self.examples.chosen[following.examples])
