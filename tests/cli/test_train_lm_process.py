"""``regard train lm`` as processes: killed at random times, interrupted, and two processes."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from safetensors import safe_open
from torch.distributed import TCPStore

from cli_process import ENVIRONMENT, START_COMMAND, fork_command
from small_language_models import write_documents

SMALL = ["--set", "layers=1", "--set", "width=32", "--warmup", "10", "--batch", "7", "--block", "31",
         "--vocabulary", "290", "--validate-every", "20", "--dtype", "float32"]  # fmt: skip


@pytest.fixture
def data(tmp_path):
    write_documents(tmp_path / "texts", 211)
    return tmp_path


def train(folder, out, *arguments, start=None, environment=None):
    command = [*(start or START_COMMAND), "train", "lm", "--data", "texts", "--out", out, *SMALL]
    options = {"cwd": folder, "env": ENVIRONMENT | (environment or {}), "timeout": 300}
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, encoding="utf-8", **options)


def weights(file):
    with safe_open(file, framework="np") as opened:
        return {name: opened.get_tensor(name).tobytes() for name in opened.keys()}  # noqa: SIM118


def last_weights(folder):
    return weights(max((folder / "checkpoints").iterdir()) / "weights.safetensors")


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]


@pytest.mark.parametrize("more", [["--set", "dropout=0.1"], pytest.param(["--model", "llama"], marks=pytest.mark.slow)])
def test_run_killed_at_random_times_ends_with_the_same_weights(regard_command, data, more):
    """After repeated kill -9, --resume ends with the same weights as an uninterrupted run, bit for bit."""
    bound = ["--steps", "45", "--save-seconds", "0", *more]
    whole = train(data, "whole", *bound, start=regard_command)
    assert whole.returncode == 0, whole.stderr
    chance, checkpoints = random.Random(7), data / "cut.run" / "checkpoints"
    command = [*regard_command, "train", "lm", "--data", "texts", "--out", "cut", *SMALL, *bound]
    for least in (5, 29):
        resume = ["--resume"] if (data / "cut.run" / "run.json").exists() else []
        process = subprocess.Popen([*command, *resume], cwd=data, env=ENVIRONMENT, stderr=subprocess.PIPE)
        while process.poll() is None and not any(
            int(one.name.removeprefix("step-")) >= least for one in checkpoints.glob("step-*")
        ):
            time.sleep(0.01)
        time.sleep(chance.random() * 0.1)
        process.kill()
        process.communicate()  # waits for the fork too, which has the pipe open
    rest = train(data, "cut", *bound, "--resume", start=regard_command)
    assert rest.returncode == 0, rest.stderr
    assert last_weights(data / "cut.run") == last_weights(data / "whole.run")
    assert weights(data / "cut" / "model.safetensors") == weights(data / "whole" / "model.safetensors")


@pytest.mark.slow
def test_ctrl_c_saves_a_checkpoint_and_suggests_resume(regard_command, data):
    command = [*regard_command, "train", "lm", "--data", "texts", "--out", "m", *SMALL, "--epochs", "100000"]
    process = subprocess.Popen(command, cwd=data, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    reported = data / "m.run" / "metrics.jsonl"
    while process.poll() is None and not (reported.exists() and reported.stat().st_size):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "--resume" in said
    assert "Traceback" not in said
    assert list((data / "m.run" / "checkpoints").glob("step-*"))


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(data):
    same = ["--steps", 30, "--rate", 1e-3, "--average", 1]
    one = train(data, "one", *same, start=fork_command())
    assert one.returncode == 0, one.stderr
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
              "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}  # fmt: skip
    with ThreadPoolExecutor(2) as together:
        ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank), **shared} for rank in range(2)]
        runs = [together.submit(train, data, "two", *same, start=fork_command(), environment=rank) for rank in ranks]
        result = [run.result() for run in runs]
    said = "".join(one.stderr for one in result)
    assert [one.returncode for one in result] == [0, 0], said
    assert losses(data / "one.run") == pytest.approx(losses(data / "two.run"), rel=1e-4)
    assert said.count("the model: ") == 1  # only one process prints
