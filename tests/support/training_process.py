"""Training commands as processes: killed at random times, interrupted, and with two processes."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from torch.distributed import TCPStore

from cli_process import ENVIRONMENT, START_COMMAND, fork_command


def train(
    folder: Path,
    out: str,
    options: Sequence[object],
    *,
    start: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``regard train`` with ``options``, the first of which is the task, and wait for its end."""
    return subprocess.run(
        command(out, options, start),
        cwd=folder,
        env=ENVIRONMENT | dict(environment or {}),
        timeout=300,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


def command(out: str, options: Sequence[object], start: Sequence[str] | None = None) -> list[str]:
    """Return the command line of ``regard train``."""
    return [*(start or START_COMMAND), "train", *map(str, options), "--out", out]


def read_weights(file: Path) -> dict[str, bytes]:
    """The bytes of all tensors of a safetensors file, by name."""
    with safe_open(file, framework="np") as opened:
        return {name: opened.get_tensor(name).tobytes() for name in opened.keys()}  # noqa: SIM118


def last_weights(run: Path) -> dict[str, bytes]:
    """The weights of the last checkpoint of a run."""
    return read_weights(max((run / "checkpoints").iterdir()) / "weights.safetensors")


def metrics(run: Path, kind: str = "train") -> list[dict[str, Any]]:
    """The lines of this kind that a run has reported."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def losses(run: Path) -> list[float]:
    """The training losses that a run has reported."""
    return [line["loss"] for line in metrics(run)]


def assert_killed_run_ends_with_the_same_weights(folder: Path, options: Sequence[object], start: Sequence[str]) -> None:
    """After repeated kill -9, --resume ends with the same weights as an uninterrupted run, bit for bit."""
    options = [*options, "--steps", 45, "--save-seconds", 0]
    whole = train(folder, "whole", options, start=start)
    assert whole.returncode == 0, whole.stderr
    chance, checkpoints = random.Random(7), folder / "cut.run" / "checkpoints"
    for least in (5, 17, 29):
        resume = ["--resume"] if (folder / "cut.run" / "run.json").exists() else []
        process = subprocess.Popen(
            command("cut", [*options, *resume], start), cwd=folder, env=ENVIRONMENT, stderr=subprocess.PIPE
        )
        while process.poll() is None and not any(
            int(one.name.removeprefix("step-")) >= least for one in checkpoints.glob("step-*")
        ):
            time.sleep(0.01)
        time.sleep(chance.random() * 0.1)
        process.kill()
        process.communicate()  # waits for the fork too, which has the pipe open
    rest = train(folder, "cut", [*options, "--resume"], start=start)
    assert rest.returncode == 0, rest.stderr
    assert last_weights(folder / "cut.run") == last_weights(folder / "whole.run")
    assert read_weights(folder / "cut" / "model.safetensors") == read_weights(folder / "whole" / "model.safetensors")
    reported = [line["step"] for line in metrics(folder / "cut.run")]
    assert reported == sorted(set(reported)) == [line["step"] for line in metrics(folder / "whole.run")]


def assert_ctrl_c_saves_a_checkpoint(folder: Path, options: Sequence[object], start: Sequence[str]) -> None:
    """An interrupted run writes a checkpoint, suggests --resume and exits with 130."""
    process = subprocess.Popen(
        command("m", options, start), cwd=folder, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    reported = folder / "m.run" / "metrics.jsonl"
    while process.poll() is None and not (reported.exists() and reported.stat().st_size):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "--resume" in said
    assert "Traceback" not in said
    assert list((folder / "m.run" / "checkpoints").glob("step-*"))


@contextmanager
def two_ranks(launcher: Mapping[str, str] | None = None) -> Iterator[list[dict[str, str]]]:
    """Yield the environment variables of two processes that find each other, with those of the ``launcher``."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
              "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}  # fmt: skip
    yield [{"RANK": str(rank), "LOCAL_RANK": str(rank), **shared, **(launcher or {})} for rank in range(2)]
    del store  # the processes need it until they end


def train_in_two(
    folder: Path,
    out: str,
    options: Sequence[object],
    launcher: Mapping[str, str] | None = None,
    *,
    start: Sequence[str] | None = None,
) -> list[subprocess.CompletedProcess[str]]:
    """Run ``regard train`` in two processes, by default two forks, and wait for both."""
    with two_ranks(launcher) as ranks, ThreadPoolExecutor(2) as together:
        start = start or fork_command()
        runs = [together.submit(train, folder, out, options, start=start, environment=rank) for rank in ranks]
        return [run.result() for run in runs]


def assert_two_processes_have_the_losses_of_one(
    folder: Path, options: Sequence[object], launcher: Mapping[str, str] | None = None
) -> None:
    """Two processes, by DDP or what ``launcher`` asks for, have the losses of one, and only one of them prints."""
    one = train(folder, "one", options, start=fork_command())
    assert one.returncode == 0, one.stderr
    result = train_in_two(folder, "two", options, launcher)
    said = "".join(one.stderr for one in result)
    assert [one.returncode for one in result] == [0, 0], said
    assert losses(folder / "one.run") == pytest.approx(losses(folder / "two.run"), rel=1e-4)
    assert said.count("the model: ") == 1
