"""``regard train classify`` with pictures as processes: broken files, kill -9 and --resume, two processes."""

from __future__ import annotations

import json

import pytest

from cli_process import fork_command
from picture_files import write_folders
from training_process import (
    assert_killed_run_ends_with_the_same_weights,
    assert_two_processes_have_the_losses_of_one,
    last_weights,
    losses,
    train,
    train_in_two,
)

SMALL = ["classify", "--data", "shapes", "--set", "layers=1", "--set", "width=32", "--set", "heads=2", "--warmup", "10",
         "--batch", "16", "--validate-every", "20", "--dtype", "float32"]  # fmt: skip


@pytest.fixture
def data(tmp_path):
    write_folders(tmp_path / "shapes", count=23)
    return tmp_path


def test_broken_files_are_named_or_skipped(data):
    whole = (data / "shapes" / "rows" / "000.png").read_bytes()
    (data / "shapes" / "rows" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (data / "shapes" / "plain" / "empty.jpg").write_bytes(b"")
    (data / "shapes" / "plain" / "notes.txt").write_text("x")
    refused = train(data, "m", [*SMALL, "--steps", 3], start=fork_command())
    assert refused.returncode == 3
    assert "cut.png" in refused.stderr or "empty.jpg" in refused.stderr
    assert "--skip-bad" in refused.stderr
    assert not (data / "m").exists()
    skipped = train(data, "m", [*SMALL, "--steps", 20, "--rate", 3e-3, "--no-flip", "--skip-bad"], start=fork_command())
    assert skipped.returncode == 0, skipped.stderr
    assert "empty.jpg" in skipped.stderr
    assert "cut.png" in skipped.stderr
    assert "skipped 1 because a file is not named like a picture" in skipped.stderr
    assert json.loads((data / "m" / "about.json").read_text())["pictures"] == 63
    assert {"model.safetensors", "config.json", "preprocessor_config.json"} <= {
        one.name for one in (data / "m").iterdir()
    }
    last = (data / "m.run" / "metrics.jsonl").read_text().splitlines()
    reported = [json.loads(line) for line in last if '"train"' in line]
    assert all(0 <= line["waiting_for_data"] <= 1 for line in reported)


@pytest.mark.slow  # a killed run of texts and a run of pictures that is resumed, below, are fast tests
@pytest.mark.parametrize(
    "more",
    [
        ["--augment", "strong"],
        ["--memory", "0", "--mixup", "1"],
        ["--model", "perceiver", "--set", "latents=5"],
    ],
)
def test_run_killed_at_random_times_ends_with_the_same_weights(regard_command, data, more):
    """With augmentation by random numbers, and with pictures that are decoded in threads."""
    assert_killed_run_ends_with_the_same_weights(data, [*SMALL, *more], regard_command)


def test_pictures_in_memory_and_decoded_in_threads_give_the_same_losses(data):
    for out, memory in (("kept", 1), ("decoded", 0)):
        run = train(data, out, [*SMALL, "--steps", 20, "--memory", memory], start=fork_command())
        assert run.returncode == 0, run.stderr
    assert "decoded again in each epoch" in run.stderr
    assert losses(data / "kept.run") == losses(data / "decoded.run")


@pytest.mark.slow  # the same test of sounds, whose batches are augmented in the same way, is a fast one
@pytest.mark.parametrize(
    "more",
    [
        ["--augment", "strong"],
        ["--class-weights", "balanced"],
        ["--model", "perceiver", "--set", "latents=5"],
    ],
)
def test_two_processes_have_the_losses_of_one(data, more):
    """Each process computes some rows of the same augmented and mixed batch; the last batch of an epoch has 15 rows."""
    options = [*SMALL, *more, "--steps", 30, "--rate", 1e-3, "--average", 1]
    assert_two_processes_have_the_losses_of_one(data, options)


SHARDED = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
           "FSDP_RESHARD_AFTER_FORWARD": "true"}  # fmt: skip
SIZED = ["classify", "--data", "shapes", "--warmup", "10", "--batch", "16", "--validate-every", "20", "--dtype",
         "float32", "--steps", 20, "--rate", 1e-3, "--average", 1]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "block"),
    [
        pytest.param("vit-tiny", "EncoderBlock", marks=pytest.mark.slow),
        pytest.param("deit-tiny", "EncoderBlock", marks=pytest.mark.slow),
        pytest.param("swin-tiny", "SwinBlock", marks=pytest.mark.slow),
        pytest.param("cct-tiny", "CctBlock", marks=pytest.mark.slow),
    ],
)
def test_two_processes_with_sharded_weights_and_checkpointed_activations_have_the_losses_of_one(data, model, block):
    """FSDP, against one process that stores its activations."""
    none = {"deit-tiny": [], "vit-tiny": [], "swin-tiny": ["stochastic_depth"], "cct-tiny": ["stochastic_depth"]}
    still = [word for name in [*none[model], "dropout", "attention_dropout"] for word in ("--set", f"{name}=0")]
    options = [*SIZED, "--model", model, *still]
    alone = train(data, "one", options, start=fork_command())
    assert alone.returncode == 0, alone.stderr
    launcher = SHARDED | {"FSDP_TRANSFORMER_CLS_TO_WRAP": block}
    both = train_in_two(data, "two", [*options, "--checkpoint-activations"], launcher)
    assert [one.returncode for one in both] == [0, 0], both[0].stderr
    assert losses(data / "one.run") == pytest.approx(losses(data / "two.run"), rel=1e-4)


def test_a_run_may_be_resumed_with_checkpointed_activations(data):
    options = [*SMALL, "--augment", "strong", "--rate", 1e-3, "--average", 1]
    for out, *runs in (("plain", (20, [])), ("turned", (10, []), (20, ["--checkpoint-activations", "--resume"]))):
        for steps, more in runs:
            done = train(data, out, [*options, "--steps", steps, *more], start=fork_command())
            assert done.returncode == 0, done.stderr
    assert last_weights(data / "plain.run") == last_weights(data / "turned.run")


@pytest.mark.slow
def test_distillation_and_fine_tuning(data):
    teacher = train(data, "teacher", [*SMALL, "--steps", 20], start=fork_command())
    assert teacher.returncode == 0, teacher.stderr
    for distill in ("hard", "soft"):
        options = [*SMALL, "--teacher", "teacher", "--distill", distill, "--steps", 10]
        student = train(data, distill, options, start=fork_command())
        assert student.returncode == 0, student.stderr
        assert "Deit tiny" in student.stderr
    tuned = train(data, "tuned", ["classify", "--data", "shapes", "--from", "hard", "--steps", 3], start=fork_command())
    assert tuned.returncode == 0, tuned.stderr
    assert json.loads((data / "tuned" / "about.json").read_text())["start"] == "hard"
