"""Run a plan on a Ray cluster from the command's own process: start the driver, follow it, and join what is complete.

The driver is a process of its own, for two reasons. Ray's processes write to its standard error whatever the options;
here that goes to a log. And a pipeline that waits for a machine which is gone can only be ended with its process.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from regard.errors import ClusterError, MissingPackageError, OptionError
from regard.language import count_noun
from regard.ray_embedding.driver import MACHINE_LOST
from regard.ray_embedding.messages import Message, Plan, PlannedFile, restore_error
from regard.text.embedding_job import EmbeddingSummary, join_output
from regard.text.resumable_shards import Shards
from regard.text.vector_files import VectorFormat

LOCAL = "local"
"""Address of a cluster of this machine alone, started for the command."""
_MAX_FRUITLESS_RUNS = 3


@final
@dataclass
class _FileState:
    """Chunks of one file that are on the disk, and how many it has, once a reader has read to its end."""

    shards: Shards
    chunks: set[int] = field(default_factory=set)
    end: int | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all chunks are on the disk."""
        return self.end is not None and self.chunks.issuperset(range(self.end))


def check_ray(address: str) -> str:
    """Return the address to use, for the one that was given: empty is RAY_ADDRESS, or else ``local``.

    Raises MissingPackageError without Ray, OptionError for an address of Ray Client.
    """
    missing = [name for name in ("ray", "pandas", "pyarrow") if find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            f"`ray` needs {' and '.join(missing)}",
            expected="Ray with Ray Data",
            got="not installed",
            do="pip install 'regard[ray]', on every machine of the cluster",
        )
    address = address or os.environ.get("RAY_ADDRESS", "") or LOCAL
    if "://" in address:
        raise OptionError(
            f"{address} is an address of Ray Client, which Ray Data does not support",
            expected="HOST:PORT, auto or local",
            got=address,
            do="run the command on a machine of the cluster, with `ray='auto'`",
        )
    return address


def run_plan(
    plan: Plan,
    settings: Mapping[str, object],
    form: VectorFormat,
    *,
    log: Path,
    report: Callable[[str], object],
    progress: Callable[[int, int], object],
) -> Iterator[tuple[int, EmbeddingSummary]]:
    """Embed all files of the plan; yield the number and the summary of each one whose output is complete.

    Each file has a started run of ``settings``. ``report`` is called with sentences for the user, ``progress`` with
    numbers of bytes and lines. Raises the first error of a worker, and ClusterError if the cluster fails.
    """
    files = [_FileState(Shards(Path(file.out))) for file in plan.files]
    left = set(range(len(files)))
    fruitless = 0
    while left:
        before = _count_chunks(files)
        for number in left:
            files[number] = _FileState(Shards(Path(plan.files[number].out)))
            files[number].shards.forget_attempts()
            files[number].chunks.update(files[number].shards.complete())
        numbers = sorted(left)
        rest = replace(plan, files=tuple(_plan_rest(plan.files[number], files[number]) for number in numbers))
        with _start_driver(rest, log) as driver:
            for message in _read_messages(driver):
                found = _note(message, numbers, files, report, progress)
                if found in left and files[found].is_complete:
                    left.remove(found)
                    files[found].shards.resume(settings)
                    yield found, join_output(files[found].shards, form)
            code = driver.wait()
        if not left:
            return
        fruitless = 0 if _count_chunks(files) > before else fruitless + 1
        if code not in (0, MACHINE_LOST) or fruitless == _MAX_FRUITLESS_RUNS:
            raise _ended_early_error(log)
        if code == MACHINE_LOST:
            report("ray: a machine left the cluster; going on with the others")


def _count_chunks(files: Sequence[_FileState]) -> int:
    return sum(len(file.chunks) for file in files)


def _plan_rest(file: PlannedFile, state: _FileState) -> PlannedFile:
    first = next(part for part in range(len(state.chunks) + 1) if part not in state.chunks)
    return replace(file, complete=first, others=tuple(sorted(part for part in state.chunks if part > first)))


@contextmanager
def _start_driver(plan: Plan, log: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the driver on a plan; on leaving, end it and wait for that."""
    with log.open("a", encoding="utf-8") as errors:
        driver = subprocess.Popen(
            [sys.executable, "-m", "regard.ray_embedding.driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
            env=_driver_environment(plan.address),
            start_new_session=True,  # an interrupt of the command is for the command, which then ends the driver
        )
    assert driver.stdin is not None
    assert driver.stdout is not None
    try:
        driver.stdin.write(plan.to_json() + "\n")
        driver.stdin.flush()
        yield driver
    finally:
        driver.terminate()
        try:
            driver.wait(timeout=20)
        except subprocess.TimeoutExpired:
            driver.kill()
            driver.wait()
        driver.stdin.close()
        driver.stdout.close()


def _driver_environment(address: str) -> dict[str, str]:
    """Environment of the driver, and of a cluster that it starts: no usage reports, and only loopback addresses."""
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "PYTHONUTF8": "1"}
    # Ray's switch for systems where it has no clusters of several machines: there all addresses are loopback.
    alone = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    # Other users of this machine reach loopback addresses too. Without a token, Ray writes one into the home folder.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return {**os.environ, **quiet, **({**alone, **token} if address == LOCAL else {})}


def _read_messages(driver: subprocess.Popen[str]) -> Iterator[Message]:
    assert driver.stdout is not None
    for line in driver.stdout:
        yield json.loads(line)


def _note(
    message: Message,
    numbers: Sequence[int],
    files: Sequence[_FileState],
    report: Callable[[str], object],
    progress: Callable[[int, int], object],
) -> int:
    """Note one message of the driver, whose files are ``numbers``; return the number of its file, -1 if none."""
    if "error" in message:
        raise restore_error(message["error"])
    if "workers" in message:
        report("ray: " + _describe_workers(message))
        return -1
    number = numbers[message["file"]]
    state = files[number]
    if "end" in message:
        state.end = message["end"]
        progress(message["bytes"], 0)
    elif message["chunk"] not in state.chunks:
        state.chunks.add(message["chunk"])
        progress(message["bytes"], message["lines"])
    return number


def _describe_workers(message: Message) -> str:
    workers, machines = count_noun(message["workers"], "worker"), count_noun(message["machines"], "machine")
    return f"{workers} on {machines}, each with a model and {count_noun(message['threads'], 'thread')}"


def _ended_early_error(log: Path) -> ClusterError:
    lines: list[Any] = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return ClusterError(
        "the Ray pipeline ended early",
        expected="a cluster that runs until all files are embedded",
        got=lines[-1][:300] if lines else "no message",
        do=f"see {log}, and continue with `resume=True`",
    )
