"""``regard play`` in the shell: the table, JSON, recordings, pages, and what it refuses."""

import json
import sys
from functools import partial

import pytest
from PIL import Image

import shell_command
from regard.errors import CheckpointError, MissingPackageError, OptionError, OutputExistsError, RefusedError
from regard.playing import play_episodes
from shell_command import error_message
from small_classifiers import classifier
from small_gatos import DRAWN_TOY, TOY, TOY_STEPS, register_toys, small_gato

CART = "CartPole-v1"


output = partial(shell_command.output, "play")
run = partial(shell_command.run, "play")


@pytest.fixture(scope="module")
def gatos(tmp_path_factory):
    """A folder with a model without metadata, and one that tells its environments and their spaces."""
    register_toys()
    folder = tmp_path_factory.mktemp("gatos")
    model = small_gato(texts=True, channels=1)
    model.save(folder / "plain")
    model.metadata = {"environments": {CART: {"expert": 500.0}, DRAWN_TOY: {"spaces": {"action": "none of these"}}}}
    model.save(folder / "told")
    return folder


@pytest.fixture
def folder(gatos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("plain", "told"):
        (tmp_path / name).symlink_to(gatos / name)
    return tmp_path


def test_table_and_numbers(folder):
    found = json.loads(output("plain", CART, "--episodes", 3, "--seed", 7, "--json", "-o", "returns.json"))
    assert json.loads((folder / "returns.json").read_text()) == found
    (one,) = found["environments"]
    expected = [sum(episode.rewards) for episode in play_episodes(small_gato(texts=True, channels=1), CART, [7, 8, 9])]
    assert one["model"]["returns"] == expected
    assert (one["model"]["least"], one["model"]["largest"]) == (min(expected), max(expected))
    assert one["seeds"] == [7, 8, 9]
    assert one["expert"]["mean"] == 500
    random = one["random"]["mean"]
    assert one["share_of_expert"] == pytest.approx((one["model"]["mean"] - random) / (500 - random))
    shown = output("plain", CART, "--episodes", 3, "--seed", 7)
    assert f"{100 * one['share_of_expert']:.1f} %" in shown
    assert "3 episodes, seeds 7 to 9" in shown
    assert CART in shown


def test_recording_and_page(folder):
    result = run("plain", DRAWN_TOY, "--episodes", 1, "--record", "a.gif", "--view", "a.html", "--no-comparison")
    assert result.exit_code == 0, result.exception
    assert f"{sum(range(TOY_STEPS))}.0" in result.stdout.replace("10.000", "10.0")
    assert "a.gif: written" in result.stderr
    with Image.open(folder / "a.gif") as opened:
        assert (opened.n_frames, opened.size) == (TOY_STEPS + 1, (20, 10))
    page = (folder / "a.html").read_text(encoding="utf-8")
    assert "<title>RegardDrawnToy-v0 · regard</title>" in page
    assert "plain" in page
    assert "already exists" in error_message(OutputExistsError, "play", "plain", DRAWN_TOY, "--record", "a.gif")
    assert "already exists" in error_message(OutputExistsError, "play", "plain", DRAWN_TOY, "--view", "a.html")
    options = ("--episodes", 1, "--no-comparison", "--overwrite")
    output("plain", DRAWN_TOY, "--record", "a.gif", "--view", "a.html", *options)


def test_each_of_several_environments_is_recorded(folder):
    output("plain", DRAWN_TOY, CART, "--episodes", 1, "--record", "a.png", "--no-comparison")
    assert {one.name for one in folder.glob("*.png")} == {f"a-{DRAWN_TOY}.png", f"a-{CART}.png"}


def test_an_environment_without_drawings_has_a_page_but_no_recording(folder):
    output("plain", TOY, "--episodes", 1, "--view", "a.html", "--no-comparison")
    assert "cannot be rendered" in error_message(RefusedError, "play", "plain", CART, TOY, "--record", "a.gif")
    assert not list(folder.glob("*.gif"))


def test_environments_of_the_model(folder):
    assert "does not tell any" in error_message(OptionError, "play", "plain")
    assert "other spaces than in the training" in error_message(OptionError, "play", "told")
    result = run("told", TOY, "--episodes", 1, "--no-comparison")
    assert "was not trained on RegardToy-v0" in result.stderr
    assert "-" in result.stdout


def test_what_is_refused(folder):
    classifier().save("words")
    assert "another kind of model" in error_message(CheckpointError, "play", "words", CART)
    assert "regard train gato" in error_message(CheckpointError, "play", "absent/", CART)
    assert "cannot be made" in error_message(OptionError, "play", "plain", "NoSuchTask-v3")
    message = error_message(OptionError, "play", "plain", "MiniGrid-Empty-5x5-v0")
    assert "cannot play 'MiniGrid-Empty-5x5-v0'" in message
    assert "more values than there are ids" in message
    assert "regard train gato --task MiniGrid-Empty-5x5-v0 --out model/" in message
    assert "TokenRanges" not in message
    assert f"play what it was trained on ({CART}, {DRAWN_TOY})" in error_message(
        OptionError, "play", "told", "MiniGrid-Empty-5x5-v0"
    )
    assert "animated picture" in error_message(OptionError, "play", "plain", CART, "--record", "a.mp4")
    assert "ends in .html" in error_message(OptionError, "play", "plain", CART, "--view", "a.pdf")
    assert run("plain", CART, "--episodes", 0).exit_code == 2
    assert not [one for one in folder.iterdir() if one.suffix in (".gif", ".html", ".partial")]


def test_missing_packages_are_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert "regard[control]" in error_message(MissingPackageError, "play", "plain", CART)


def test_help_has_examples():
    shown = output("--help")
    assert "--record episode.gif" in shown
    assert "Share is (return - random) / (expert - random)" in " ".join(shown.split())
