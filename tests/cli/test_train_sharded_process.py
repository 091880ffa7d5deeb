"""``regard train`` with FSDP in two processes: the losses of one, whole checkpoints, kill and resume, refusals."""

from __future__ import annotations

import json
import subprocess
import time

import pytest
from safetensors.torch import load_file

from cli_process import ENVIRONMENT, START_COMMAND, fork_command
from small_language_models import write_documents
from training_process import (
    assert_two_processes_have_the_losses_of_one,
    command,
    last_weights,
    losses,
    read_weights,
    train,
    train_in_two,
    two_ranks,
)

FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "NO_WRAP",
        "FSDP_RESHARD_AFTER_FORWARD": "true"}  # fmt: skip
"""What `accelerate launch` sets."""
BY_LAYER = FSDP | {"FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP"}
DECODER = BY_LAYER | {"FSDP_TRANSFORMER_CLS_TO_WRAP": "DecoderBlock"}
ENCODER = BY_LAYER | {"FSDP_TRANSFORMER_CLS_TO_WRAP": "EncoderBlock"}
SMALL = ["--data", "texts", "--set", "layers=2", "--set", "width=32", "--warmup", "10", "--batch", "7", "--block", "31",
         "--vocabulary", "290", "--validate-every", "10", "--dtype", "float32", "--rate", "1e-3",
         "--average", "1"]  # fmt: skip
LM, MLM = ["lm", *SMALL], ["mlm", *SMALL]
SAME = ["--set", "dropout=0", "--steps", 20]


@pytest.fixture
def data(tmp_path):
    write_documents(tmp_path / "texts", 211)
    return tmp_path


def test_two_processes_have_the_losses_of_one_and_save_whole_checkpoints(data):
    """Of one process too: the gradient's norm, which is of all shards, and the names and shapes in its files."""
    assert_two_processes_have_the_losses_of_one(data, [*LM, *SAME], DECODER)
    norms = []
    for out in ("one", "two"):
        lines = map(json.loads, (data / f"{out}.run" / "metrics.jsonl").read_text().splitlines())
        norms.append([line["gradient_norm"] for line in lines if line["kind"] == "train"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    checkpoint = max((data / "one.run" / "checkpoints").iterdir()).relative_to(data / "one.run")
    for file in ("weights.safetensors", "optimizer.safetensors"):
        one, two = (load_file(data / f"{out}.run" / checkpoint / file) for out in ("one", "two"))
        assert {name: weight.shape for name, weight in one.items()} == {
            name: weight.shape for name, weight in two.items()
        }
    # The model is that of the last validation, which is the best.
    assert (data / "two" / "model.safetensors").stat().st_size == (data / "one" / "model.safetensors").stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "launcher"),
    [
        ([*LM, *SAME], FSDP),
        ([*LM, *SAME, "--accumulate", 3], DECODER),
        ([*LM, *SAME, "--optimizer", "muon"], DECODER),
        ([*LM, *SAME, "--batch", 1], DECODER),  # the second process has no rows
        ([*LM, *SAME], DECODER | {"FSDP_ACTIVATION_CHECKPOINTING": "true"}),
        ([*LM, "--model", "llama", "--steps", 20], DECODER),
        ([*MLM, *SAME, "--set", "attention_dropout=0"], ENCODER),
    ],
)
def test_two_processes_have_the_losses_of_one(data, options, launcher):
    assert_two_processes_have_the_losses_of_one(data, options, launcher)


@pytest.mark.slow
def test_two_processes_train_the_adapters_of_one(data):
    assert train(data, "start", [*LM, *SAME], start=fork_command()).returncode == 0
    options = [
        "lm",
        "--data",
        "texts",
        "--from",
        "start",
        "--lora",
        3,
        "--batch",
        7,
        "--validate-every",
        10,
        "--steps",
        20,
    ]
    assert_two_processes_have_the_losses_of_one(data, [*options, "--dtype", "float32"], DECODER)


def kill_at_step(data, least, options, ranks):
    """Run ``cut`` in a process for each rank, and kill them once there is a checkpoint of step ``least`` or later."""
    checkpoints = data / "cut.run" / "checkpoints"
    processes = [
        subprocess.Popen(command("cut", options), cwd=data, env=ENVIRONMENT | rank, stderr=subprocess.DEVNULL)
        for rank in ranks
    ]
    while all(process.poll() is None for process in processes) and last_step(checkpoints) < least:
        time.sleep(0.01)
    for process in processes:
        process.kill()
        process.wait()
    assert last_step(checkpoints) >= least


def last_step(checkpoints):
    return max((int(one.name.removeprefix("step-")) for one in checkpoints.glob("step-*")), default=0)


@pytest.mark.slow
def test_killed_run_ends_with_the_same_weights(data):
    """With dropout: after kill -9 of both processes, --resume ends with the bits of an uninterrupted run."""
    options = [*LM, "--set", "dropout=0.1", "--steps", 45, "--save-seconds", 0]
    whole = train_in_two(data, "whole", options, DECODER, start=START_COMMAND)
    assert [one.returncode for one in whole] == [0, 0], whole[0].stderr
    for least, resume in ((5, []), (29, ["--resume"])):
        with two_ranks(DECODER) as ranks:
            kill_at_step(data, least, [*options, *resume], ranks)
    assert last_step(data / "cut.run" / "checkpoints") < 45
    rest = train_in_two(data, "cut", [*options, "--resume"], DECODER, start=START_COMMAND)
    assert [one.returncode for one in rest] == [0, 0], rest[0].stderr
    assert last_weights(data / "cut.run") == last_weights(data / "whole.run")
    assert read_weights(data / "cut" / "model.safetensors") == read_weights(data / "whole" / "model.safetensors")


@pytest.mark.slow
def test_run_is_resumed_by_another_number_of_processes(data):
    """A checkpoint does not depend on how weights were sharded: two processes, then one, then two with other shards."""
    start = fork_command()
    options = [*LM, "--set", "dropout=0", "--steps", 60, "--save-seconds", 0]
    assert train(data, "one", options, start=start).returncode == 0
    with two_ranks(DECODER) as ranks:
        kill_at_step(data, 5, options, ranks)
    kill_at_step(data, 25, [*options, "--resume"], [{}])
    assert last_step(data / "cut.run" / "checkpoints") < 60
    rest = train_in_two(data, "cut", [*options, "--resume"], FSDP)
    assert [one.returncode for one in rest] == [0, 0], rest[0].stderr
    assert losses(data / "cut.run")[-1] == pytest.approx(losses(data / "one.run")[-1], rel=1e-4)


def test_unknown_layers_are_refused(data):
    """Before the folder of the run is made, which would replace an earlier run with --overwrite."""
    launcher = BY_LAYER | {"FSDP_TRANSFORMER_CLS_TO_WRAP": "GPT2Block"}
    for one in train_in_two(data, "m", [*LM, *SAME], launcher):
        assert one.returncode == 2, one.stderr
        assert "the model has no layers of the class 'GPT2Block'" in one.stderr
        assert "expected: DecoderBlock" in one.stderr
        assert "Traceback" not in one.stderr
    assert not (data / "m.run").exists()
