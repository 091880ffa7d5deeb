"""``regard train gato``: a mixture in a moment, and invalid options and data, which leave no files."""

from __future__ import annotations

import json
import re
import shlex
from functools import partial

import numpy as np
import pytest
from typer.testing import CliRunner

import regard
import shell_command
from picture_files import write_folders
from regard.cli.app import app
from regard.control import Episode, collect_episodes, make_environment, write_episodes
from regard.errors import DataError, OptionError, RefusedError
from regard.playing import play_episodes
from shell_command import shell_message
from small_language_models import write_documents

SMALL = ["--set", "layers=1", "--set", "width=16", "--set", "heads=1", "--set", "inner=11", "--set", "patch_channels=8",
         "--experience", "150", "--batch", "5", "--length", "41", "--dtype", "float32"]  # fmt: skip


run = partial(shell_command.run, "train", "gato")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_mixture_is_trained_and_its_folder_says_what_it_knows(folder):
    write_documents(folder / "texts", 23)
    write_folders(folder / "shapes", count=7)
    result = run("--task", "CartPole-v1", "--text", "texts", "--pictures", "shapes", "--weight", "CartPole-v1=2",
                 "--steps", 4, "--validate-every", 2, "--games", 1, "--out", "m", *SMALL)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "50 % CartPole-v1, 25 % text, 25 % pictures" in result.output
    assert "nothing learned yet" in result.output
    model = regard.load(folder / "m")
    assert list(model.metadata["environments"]) == ["CartPole-v1"]
    assert model.metadata["environments"]["CartPole-v1"]["expert"] == 500.0
    assert model.metadata["environments"]["CartPole-v1"]["spaces"]["action"] == "DiscreteSpace(values=2, shape=())"
    assert model.metadata["labels"] == ["columns", "plain", "rows"]
    assert model.metadata["texts"]
    assert model.tokenizer.vocabulary == model.config.text
    lines = [json.loads(line) for line in (folder / "m.run" / "metrics.jsonl").read_text().splitlines()]
    found = next(line for line in lines if line["kind"] == "validation")
    names = {"CartPole-v1.accuracy", "CartPole-v1.return", "CartPole-v1.share", "text.perplexity", "pictures.accuracy"}
    assert names <= set(found)
    assert np.isclose(found["loss"], (2 * found["CartPole-v1.loss"] + found["text.loss"] + found["pictures.loss"]) / 4)
    (played,) = play_episodes(model, "CartPole-v1", [0])
    assert (
        sum(played.rewards) == next(line for line in lines[::-1] if line["kind"] == "validation")["CartPole-v1.return"]
        or len(lines) > 2
    )  # the model that is kept is that of one of the validations


def test_the_suggested_command_plays(folder):
    """With one episode, so that the test does not take long."""
    result = run("--task", "CartPole-v1", "--steps", 40, "--rate", 1e-2, "--warmup", 4, "--games", 0, "--out", "m",
                 *SMALL)  # fmt: skip
    (command,) = re.findall(r"try: regard (.*)", result.output)
    assert command == "play m CartPole-v1"
    played = CliRunner().invoke(app, [*shlex.split(command), "--episodes", "1", "--no-comparison", "--json"])
    assert played.exit_code == 0, played.output
    assert [one["environment"] for one in json.loads(played.stdout)["environments"]] == ["CartPole-v1"]


def test_recorded_episodes_are_read_again_and_files_of_episodes_need_no_expert(folder):
    options = ["--steps", 1, "--validate-every", 1, "--games", 0, *SMALL]
    assert run("--task", "CartPole-v1", "--out", "m", *options).exit_code == 0
    (kept,) = (folder / "m.episodes").iterdir()
    before = kept.stat().st_mtime_ns
    again = run("--task", "CartPole-v1", "--out", "n", "--episodes", "m.episodes", *options)
    assert "read from m.episodes" in again.output
    assert kept.stat().st_mtime_ns == before
    episodes = collect_episodes("MountainCar-v0", range(2), expert=lambda environment, observation: 2)
    write_episodes(folder / "own.npz", "MountainCar-v0", [Episode(one.observations[:31], one.actions[:31],
                                                                  one.rewards[:31]) for one in episodes])  # fmt: skip
    result = run("--data", "own.npz", "--out", "own", *options)
    assert result.exit_code == 0, result.output
    assert regard.load(folder / "own").metadata["environments"]["MountainCar-v0"]["expert"] == -31.0


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ([], OptionError, "nothing to learn from"),
        (["--task", "NoSuchThing-v3"], OptionError, "cannot be made"),
        (["--task", "MountainCar-v0"], OptionError, "--data FILE"),
        (["--task", "CartPole-v1", "--task", "CartPole-v1"], OptionError, "named twice"),
        (["--task", "CartPole-v1", "--weight", "Pendulum-v1=2"], OptionError, "names no source"),
        (["--task", "CartPole-v1", "--weight", "text"], OptionError, "NAME=NUMBER"),
        (["--task", "CartPole-v1", "--weight", "CartPole-v1=0"], OptionError, "above 0"),
        (["--task", "CartPole-v1", "--length", "5"], OptionError, "shorter than a time step"),
        (["--task", "CartPole-v1", "--set", "depth=3"], OptionError, "depth"),
        (["--task", "CartPole-v1", "--set", "max_length=3"], OptionError, "--length"),
        (["--task", "CartPole-v1", "--size", "huge"], OptionError, "tiny"),
        (["--data", "missing.npz"], DataError, "missing.npz"),
        (["--data", "broken.npz"], DataError, "not a file of episodes"),
        (["--text", "missing.txt"], DataError, "missing.txt"),
        (["--pictures", "missing"], DataError, "missing"),
        (["--pictures", "alike"], DataError, "the training pictures all have the same label"),
        (["--task", "CartPole-v1", "--pictures", "alike"], DataError, "the training pictures all have the same label"),
        (["--pictures", "half"], DataError, "--skip-bad"),
        (["--pictures", "half", "--skip-bad"], DataError, "the training pictures all have the same label"),
        (["--task", "CartPole-v1", "--skip-bad"], OptionError, "without pictures"),
    ],
)
def test_invalid_input_is_refused_and_leaves_no_files(folder, arguments, kind, words):
    (folder / "broken.npz").write_text("no episodes")
    write_folders(folder / "alike", count=3, labels=("rows",))
    write_folders(folder / "half", count=3, labels=("rows", "plain"))
    break_pictures(folder / "half" / "plain")
    small = [] if "--length" in arguments else ["--length", "41"]
    result = run(*arguments, "--steps", 1, "--experience", 20, "--out", "m", *small)
    assert isinstance(result.exception, kind), result.exception
    assert words in shell_message(result.exception)
    assert not {"m", "m.run"} & {one.name for one in folder.iterdir()}
    if "--pictures" in arguments:  # they are checked before anything is recorded
        assert not (folder / "m.episodes").exists()


def break_pictures(folder):
    """Cut each picture behind its header."""
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:40])


def test_broken_pictures_are_left_out_and_lost_labels_reported(folder):
    write_folders(folder / "shapes", count=5)
    break_pictures(folder / "shapes" / "plain")
    options = ["--pictures", "shapes", "--steps", 1, "--validate-every", 1, *SMALL]
    refused = run(*options, "--out", "m")
    assert isinstance(refused.exception, DataError)
    assert "5 of 15 pictures cannot be used" in shell_message(refused.exception)
    result = run(*options, "--skip-bad", "--out", "m")
    assert result.exit_code == 0, result.output
    assert "skipped 5 because a picture cannot be used" in result.output
    assert "the label plain is dropped: all of its 5 pictures are broken" in result.output
    assert regard.load(folder / "m").metadata["labels"] == ["columns", "rows"]


def test_spaces_without_tokens_are_refused(folder, monkeypatch):
    def make_wrapped(name):
        import gymnasium

        environment = make_environment(name)
        environment.action_space = gymnasium.spaces.Discrete(2, start=1)
        return environment

    monkeypatch.setattr("regard.tasks.gato.data.make_environment", make_wrapped)
    result = run("--task", "CartPole-v1", "--steps", 1, "--out", "m")
    assert isinstance(result.exception, RefusedError)
    assert "the action of CartPole-v1 cannot be tokenized: its values do not start at 0" in shell_message(
        result.exception
    )
    assert list(folder.iterdir()) == []
