"""``regard train classify`` with sounds as processes: broken files, kill -9 and --resume, two processes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import soundfile

from cli_process import fork_command
from sound_files import sound_bytes, tone
from training_process import (
    assert_killed_run_ends_with_the_same_weights,
    assert_two_processes_have_the_losses_of_one,
    train,
)

NUMBERS = {"layers": 1, "width": 8, "heads": 2, "inner": 13, "kernel": 5}
SET = [part for name, value in NUMBERS.items() for part in ("--set", f"{name}={value}")]
SMALL = ["classify", "--data", "tones", *SET, "--warmup", "10", "--batch", "16", "--validate-every", "20",
         "--dtype", "float32"]  # fmt: skip
BROKEN = ("cut.wav", "empty.wav", "silent.wav", "text.wav")


@pytest.fixture
def data(tmp_path):
    """Tones of two frequencies and of different lengths in noise, 23 of each."""
    numbers = np.random.default_rng(3)
    for label, hertz in (("high", 1500), ("low", 300)):
        (tmp_path / "tones" / label).mkdir(parents=True)
        for index in range(23):
            samples = tone(float(numbers.uniform(0.2, 0.4)), hertz=hertz * float(numbers.uniform(0.8, 1.2)))
            samples = samples + 0.1 * numbers.normal(size=len(samples))
            soundfile.write(tmp_path / "tones" / label / f"{index:03d}.wav", samples, 8000)
    return tmp_path


def test_broken_files_are_named_or_skipped(data):
    """Truncated, empty, without samples, of another format; stereo, another rate and FLAC are read."""
    whole = sound_bytes(tone())
    lying = bytearray(sound_bytes(tone(), kind="FLAC"))[:200]
    for label, name, content in (
        ("low", "cut.wav", whole[: len(whole) // 2]),
        ("low", "empty.wav", b""),
        ("high", "silent.wav", sound_bytes(np.zeros(0))),
        ("high", "lying.flac", bytes(lying)),
        ("high", "text.wav", b"no sound at all"),
        ("high", "notes.txt", b"x"),
        ("low", "stereo.wav", sound_bytes(np.stack([tone(hertz=300), tone(hertz=310)], axis=1))),
        ("low", "rate.wav", sound_bytes(tone(rate=11025, hertz=300), 11025)),
        ("low", "lossless.flac", sound_bytes(tone(hertz=290), kind="FLAC")),
    ):
        (data / "tones" / label / name).write_bytes(content)
    refused = train(data, "m", [*SMALL, "--steps", 3], start=fork_command())
    assert refused.returncode == 3
    assert all(f"{name} " in refused.stderr for name in BROKEN)
    assert "--skip-bad" in refused.stderr
    assert not (data / "m").exists()
    assert not (data / "m.run").exists()
    skipped = train(data, "m", [*SMALL, "--steps", 20, "--rate", 1e-2, "--skip-bad"], start=fork_command())
    assert skipped.returncode == 0, skipped.stderr
    assert "skipped 4 because a sound cannot be used" in skipped.stderr
    assert "lying.flac is broken or truncated" in skipped.stderr
    assert "a file is not named like a sound" in skipped.stderr
    about = json.loads((data / "m" / "about.json").read_text())
    assert about["sounds"] + about["held_out"] == 49
    processor = json.loads((data / "m" / "preprocessor_config.json").read_text())
    assert (processor["rate"], processor["mels"]) == (8000, 64)


@pytest.mark.slow
def test_run_killed_at_random_times_ends_with_the_same_weights(regard_command, data):
    """With augmentation by random numbers, and with sounds that are decoded in threads."""
    more = ["--augment", "strong", "--memory", "0"]
    assert_killed_run_ends_with_the_same_weights(data, [*SMALL, *more], regard_command)


@pytest.mark.slow  # tests/unit/train/test_every_model.py has a Conformer, too
def test_two_processes_have_the_losses_of_one(data):
    """Each process computes some rows of the same augmented batch, and both share the statistics of the batch norm.

    There are 42 training sounds, so the last batch of an epoch has 10.
    """
    options = [*SMALL, "--augment", "strong", "--set", "dropout=0", "--steps", 30, "--rate", 1e-3, "--average", 1]
    assert_two_processes_have_the_losses_of_one(data, options)


def test_train_then_classify_evaluate_embed_and_fine_tune(data):
    run = train(data, "m", [*SMALL, "--steps", 20, "--rate", 1e-2], start=fork_command())
    assert run.returncode == 0, run.stderr
    assert "Conformer tiny, 8,000 samples a second, 64 bands" in run.stderr
    # On some machines 20 steps are too few to learn anything.
    assert ("regard classify --model m SOUND.wav" in run.stderr) != ("nothing learned yet" in run.stderr)
    tuned = train(data, "tuned", ["classify", "--data", "tones", "--from", "m", "--steps", 3], start=fork_command())
    assert tuned.returncode == 0, tuned.stderr
    assert json.loads((data / "tuned" / "about.json").read_text())["start"] == "m"
    rows = ["path,label", "tones/high/000.wav,middle", "tones/low/000.wav,low", "tones/low/001.wav,low"]
    (data / "list.csv").write_text("\n".join(rows))
    options = ["classify", "--data", "list.csv", "--valid", "list.csv", "--from", "m", "--steps", 3]
    others = train(data, "others", options, start=fork_command())
    assert others.returncode == 0, others.stderr
    assert "recognised: paths of sounds and labels in list.csv" in others.stderr
    assert json.loads((data / "others" / "config.json").read_text())["id2label"] == {"0": "low", "1": "middle"}


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda folder: (folder / "none").mkdir(), "none has no sounds"),
        (
            lambda folder: [one.unlink() for one in (folder / "low").iterdir()] and (folder / "low").rmdir(),
            "same label",
        ),
    ],
)
def test_folders_that_cannot_be_used(run_here, data, change, facts):
    change(data / "tones")
    refused = run_here("train", *SMALL, "--steps", 3, "--out", "m")
    assert refused.returncode == 3
    assert facts in refused.stderr
    assert not (data / "m").exists()


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (["--flip"], "options of pictures have no effect on sounds"),
        (["--pooling", "cls"], "options of texts have no effect on sounds"),
        (["--tempo", "1"], "tempo"),
        (["--model", "vit"], "unknown model 'vit'"),
        (["--set", "bands=3"], "bands is determined by the data"),
        (["--from", "nowhere", "--sample-rate", "8000"], "fine-tuning cannot change"),
        (["--sample-rate", "3"], "sample_rate"),
    ],
)
def test_options_that_do_not_fit(run_here, data, options, facts):
    refused = run_here("train", "classify", "--data", "tones", "--steps", 3, *options, "--out", "m")
    assert refused.returncode == 2, refused.stderr
    assert facts in refused.stderr
    assert not (data / "m").exists()
