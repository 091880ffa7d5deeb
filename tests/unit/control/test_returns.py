"""Returns, their statistics and shares; random agents; animations."""

import statistics

import numpy as np
import pytest
from PIL import Image

from regard.control import RandomAgent, Returns, collect_episodes, expert_share
from regard.control.rendering import MAX_FRAMES, encode_png, write_animation
from regard.errors import DataError, OptionError, OutputError
from regard.playing import measure_play
from small_gatos import small_gato

VALUES = (3.0, 5.0, 11.0, 2.0)


def test_statistics_are_those_of_the_standard_library():
    returns = Returns(VALUES)
    assert returns.mean == pytest.approx(statistics.mean(VALUES))
    assert returns.deviation == pytest.approx(statistics.stdev(VALUES))
    assert Returns((7.0,)).deviation == 0
    with pytest.raises(DataError, match="no returns"):
        Returns(())
    assert expert_share(7.0, expert=11.0, random=3.0) == pytest.approx(0.5)
    assert expert_share(7.0, expert=3.0, random=3.0) is None


def test_a_model_is_compared_on_its_own_seeds():
    counted = []
    played = measure_play(small_gato(), "CartPole-v1", [5, 7], advance=lambda: counted.append(1))
    assert (len(counted), len(played.model.values)) == (6, 2)
    assert played.expert.values == (500.0, 500.0)
    random = [sum(collect_episodes("CartPole-v1", [seed], expert=RandomAgent(seed))[0].rewards) for seed in (5, 7)]
    assert list(played.random.values) == random
    assert played.to_json()["share_of_expert"] == pytest.approx(
        (played.model.mean - np.mean(random)) / (500 - np.mean(random))
    )
    alone = measure_play(small_gato(), "CartPole-v1", [5], compare=False)
    assert (alone.expert, alone.random, alone.share, alone.frames) == (None, None, None, ())


def test_random_agents_depend_on_their_seed_alone():
    first, again, other = (
        collect_episodes("Pendulum-v1", [3], expert=RandomAgent(seed))[0].actions for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def frames(count):
    return [encode_png(np.full((8, 10, 3), number % 200, dtype=np.uint8)) for number in range(count)]


@pytest.mark.parametrize(("suffix", "form"), [(".gif", "GIF"), (".png", "PNG"), (".webp", "WEBP")])
def test_animations_hold_all_frames_at_their_speed(tmp_path, suffix, form):
    path = tmp_path / f"episode{suffix}"
    write_animation(path, frames(7), frames_per_second=20)
    with Image.open(path) as opened:
        assert (opened.format, opened.n_frames, opened.size) == (form, 7, (10, 8))
        durations, greys = [], []
        for at in range(7):
            opened.seek(at)
            opened.load()
            durations.append(opened.info.get("duration"))
            greys.append(opened.convert("RGB").getpixel((5, 5))[0])
    assert greys == list(range(7))
    assert durations[:6] == [50] * 6
    assert durations[6] == 1000
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_long_episodes_are_shortened_and_names_checked(tmp_path):
    one, another = frames(2)
    write_animation(tmp_path / "long.gif", [one, one, another, another] * (MAX_FRAMES // 2), frames_per_second=50)
    with Image.open(tmp_path / "long.gif") as opened:
        assert opened.n_frames <= MAX_FRAMES
    with pytest.raises(OptionError, match="animated picture"):
        write_animation(tmp_path / "a.mp4", [one], frames_per_second=5)
    with pytest.raises(OutputError, match="does not exist"):
        write_animation(tmp_path / "no" / "a.gif", [one], frames_per_second=5)
    with pytest.raises(DataError, match="no frames"):
        write_animation(tmp_path / "a.gif", [], frames_per_second=5)
    (tmp_path / "folder.gif").mkdir()
    with pytest.raises(OutputError):
        write_animation(tmp_path / "folder.gif", [one], frames_per_second=5)
    assert not list(tmp_path.glob(".*"))
