"""Files that are read in background threads while the model computes: those of the next batches are asked for early."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar, final

from regard.tasks.sentences import Indices

Content = TypeVar("Content")


@final
class ReadAhead(Generic[Content]):
    """Reads files by their indices with ``read``, in threads."""

    def __init__(self, read: Callable[[int], Content]) -> None:
        self._read, self._pool = read, start_threads()
        self._asked: dict[int, Future[Content]] = {}

    def ask(self, files: Indices) -> None:
        """Begin to read the files with these indices, which ``take`` will want."""
        for index in files.tolist():
            if index not in self._asked:
                self._asked[index] = self._pool.submit(self._read, index)

    def take(self, files: Indices) -> list[Content]:
        """The contents of the files with these indices. Raises what ``read`` raises."""
        self.ask(files)
        found = [self._asked[index].result() for index in files.tolist()]
        for index in set(files.tolist()):
            del self._asked[index]
        return found


def start_threads() -> ThreadPoolExecutor:
    """Threads for decoding, one for each core and at least two."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ThreadPoolExecutor(max(2, cores), thread_name_prefix="decode")
