"""Environments, their spaces, scripted experts, plans against a search over the real environment, and files."""

import copy
import re
from collections import deque
from contextlib import nullcontext

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from regard.control import (
    EXPERTS,
    ContinuousSpace,
    DiscreteSpace,
    PictureSpace,
    TextSpace,
    TokenRanges,
    collect_episodes,
    find_expert,
    flatten_observation,
    make_environment,
    read_episodes,
    step_tokenizer,
    to_space,
    tokenize_episode,
    write_episodes,
)
from regard.control.environments import observation_parts
from regard.control.experts import plan
from regard.errors import DataError, OptionError, OutputError, RefusedError
from regard.text import byte_tokenizer
from small_gatos import TOY, ToyEnvironment, register_toys

BYTES = TokenRanges(text=byte_tokenizer().vocabulary)


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("CartPole-v1", 475),  # gymnasium's threshold
        ("Pendulum-v1", -400),  # a torque of 0 gives about -1,200
        ("MountainCarContinuous-v0", 85),  # the goal gives 100, each step costs 0.1
        ("Acrobot-v1", -200),  # 500 steps without the goal give -500
        ("MiniGrid-Empty-6x6-v0", 0.9),  # 1 - 0.9 * steps / most steps
        ("MiniGrid-FourRooms-v0", 0.5),
        ("MiniGrid-DoorKey-5x5-v0", 0.9),
    ],
)
def test_experts_solve_their_tasks(name, least):
    rewards = [sum(one.rewards) for one in collect_episodes(name, range(3, 5))]
    assert min(rewards) > least


def test_every_expert_is_found_by_its_family():
    for beginning, expert in EXPERTS.items():
        assert find_expert(beginning + "v7") is expert
    with pytest.raises(OptionError, match="no scripted expert"):
        find_expert("Blackjack-v1")


def shortest(environment):
    """The number of steps to a reward, by trying all actions in copies of the environment itself."""

    def describe(one):
        grid = one.unwrapped
        carried = None if grid.carrying is None else grid.carrying.type
        return tuple(grid.agent_pos), int(grid.agent_dir), carried, grid.grid.encode().tobytes()

    waiting, seen = deque([(environment, 0)]), {describe(environment)}
    while waiting:
        known, steps = waiting.popleft()
        for action in (0, 1, 2, 3, 5):
            following = copy.deepcopy(known)
            _, reward, *_ = following.step(action)
            if reward > 0:
                return steps + 1
            if describe(following) not in seen:
                seen.add(describe(following))
                waiting.append((following, steps + 1))
    return None


@pytest.mark.parametrize("name", ["MiniGrid-Empty-Random-5x5-v0", "MiniGrid-DoorKey-5x5-v0"])
def test_plans_are_as_short_as_any(name):
    environment = make_environment(name).unwrapped
    for seed in range(3):
        environment.reset(seed=seed)
        assert len(plan(environment)) == shortest(environment)


def test_a_grid_without_a_way_to_the_goal_is_refused():
    environment = make_environment("MiniGrid-DoorKey-5x5-v0")
    environment.reset(seed=0)
    grid = environment.unwrapped.grid
    for column in range(grid.width):
        for row in range(grid.height):
            cell = grid.get(column, row)
            if cell is not None and cell.type == "key":
                grid.set(column, row, None)
    with pytest.raises(DataError, match="no plan reaches"):
        plan(environment)


def test_spaces_become_spaces_of_tokens():
    assert to_space(spaces.Discrete(5)) == DiscreteSpace(5)
    assert to_space(spaces.MultiBinary(3)) == DiscreteSpace(2, (3,))
    assert to_space(spaces.MultiDiscrete([3, 5])) == DiscreteSpace(5, (2,))
    assert to_space(spaces.Box(0, 255, (32, 48, 3), np.uint8)) == PictureSpace(32, 48, 3)
    assert to_space(spaces.Box(0, 255, (7, 7, 3), np.uint8)) == DiscreteSpace(256, (7, 7, 3))
    assert to_space(spaces.Box(-np.inf, np.inf, (2,))) == ContinuousSpace((2,))
    assert to_space(spaces.Box(-2.0, 3.0, (2,)), is_action=True) == ContinuousSpace((2,), -2.0, 3.0)
    assert to_space(spaces.Text(9)) == TextSpace()
    nested = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Discrete(3), spaces.Discrete(4)])})
    parts = {key: to_space(one) for key, one in observation_parts(nested).items()}
    assert parts == {"a": DiscreteSpace(2), "b/0": DiscreteSpace(3), "b/1": DiscreteSpace(4)}
    assert flatten_observation(nested, {"a": 1, "b": (2, 3)}) == {"a": 1, "b/0": 2, "b/1": 3}
    assert flatten_observation(spaces.Discrete(2), 1) == {"observation": 1}


@pytest.mark.parametrize(
    ("space", "is_action", "reason"),
    [
        (spaces.Discrete(3, start=1), False, "do not start at 0"),
        (spaces.MultiDiscrete([3, 3], start=[0, 1]), False, "do not start at 0"),
        (spaces.MultiDiscrete([3, 5]), True, "different numbers of values"),
        (spaces.Box(-3, 3, (2,), np.int64), False, "negative"),
        (spaces.Box(np.array([0, 0]), np.array([1, 2]), dtype=np.int64), True, "different numbers of values"),
        (spaces.Box(np.float32([0.0, -1.0]), np.float32([1.0, 1.0])), True, "different bounds"),
        (spaces.Box(-np.inf, np.inf, (2,)), True, "no finite bounds"),
        (spaces.Text(9), True, "no tokens"),
        (spaces.Graph(spaces.Discrete(2), None), False, "no tokens"),
        (spaces.Sequence(spaces.Discrete(2)), False, "no tokens"),
    ],
)
def test_spaces_without_tokens_are_refused_with_the_reason(space, is_action, reason):
    with pytest.raises(RefusedError, match=reason):
        to_space(space, is_action=is_action)


@pytest.mark.parametrize(
    ("observation", "part"),
    [
        (spaces.Sequence(spaces.Discrete(2)), "the observation of CartPole-v1"),
        (spaces.Dict(a=spaces.Dict(b=spaces.Discrete(3, start=1))), "the observation 'a/b' of CartPole-v1"),
    ],
)
def test_a_refused_part_of_an_environment_is_named(observation, part):
    environment = make_environment("CartPole-v1")
    environment.observation_space = observation
    with pytest.raises(RefusedError, match=re.escape(f"{part} cannot be tokenized")):
        step_tokenizer(environment)


def test_episodes_depend_on_their_seeds_alone():
    first, again = (collect_episodes("Pendulum-v1", [5, 3])[1] for _ in range(2))
    alone = collect_episodes("Pendulum-v1", [3])[0]
    for other in (again, alone):
        assert first.rewards == other.rewards
        np.testing.assert_array_equal(first.actions, other.actions)
        np.testing.assert_array_equal(
            [one["observation"] for one in first.observations], [one["observation"] for one in other.observations]
        )


@pytest.mark.parametrize("fails", [False, True])
def test_environments_are_closed(monkeypatch, fails):
    register_toys()
    closed = []
    monkeypatch.setattr(ToyEnvironment, "close", lambda self: closed.append(self))

    def act(environment, observation):
        if fails:
            raise KeyError("the expert fails")
        return environment.action_space.sample()

    with pytest.raises(KeyError) if fails else nullcontext():
        collect_episodes(TOY, [1, 2], expert=act)
    assert len(closed) == 1


def test_tokens_of_an_episode_are_read_again():
    environment = make_environment("Pendulum-v1")
    tokenizer = step_tokenizer(environment)
    episode = collect_episodes("Pendulum-v1", [1])[0]
    ids = tokenize_episode(episode, tokenizer).ids.reshape(200, 5)
    observed = np.array([one["observation"] for one in episode.observations])
    read = np.array([tokenizer.ids_to_values("observation", row[:3]) for row in ids])
    # Half a bin of 2 / 1,024 on the companded axis.
    companded = [np.log1p(100 * np.abs(one)) / np.log(25601) * np.sign(one) for one in (read, observed)]
    assert np.abs(companded[0] - companded[1]).max() <= 1 / 1024 + 1e-12
    actions = np.array([tokenizer.ids_to_action(row[4:]) for row in ids])
    assert np.abs(actions - np.array(episode.actions)).max() <= 4 / 1024 / 2 + 1e-6


def test_files_keep_episodes_and_equal_episodes_give_equal_bytes(tmp_path):
    name = "MiniGrid-DoorKey-5x5-v0"
    episodes = collect_episodes(name, range(2))
    for path in ("a.npz", "b.npz"):
        write_episodes(tmp_path / path, name, episodes)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    read_name, read = read_episodes(tmp_path / "a.npz")
    assert read_name == name
    assert len(read) == 2
    tokenizer = step_tokenizer(make_environment(name), ranges=BYTES, tokenizer=byte_tokenizer())
    for before, after in zip(episodes, read, strict=True):
        assert before.rewards == after.rewards
        assert before.observations[0]["mission"] == after.observations[0]["mission"]
        tokens = [tokenize_episode(one, tokenizer).ids for one in (before, after)]
        np.testing.assert_array_equal(*tokens)


def test_files_of_another_kind_are_refused(tmp_path):
    with pytest.raises(DataError, match="not a file of episodes"):
        read_episodes(tmp_path / "absent.npz")
    (tmp_path / "text.npz").write_text("text", encoding="utf-8")
    with pytest.raises(DataError, match="not a file of episodes"):
        read_episodes(tmp_path / "text.npz")
    np.savez(tmp_path / "objects.npz", actions=np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="not a file of episodes"):
        read_episodes(tmp_path / "objects.npz")
    wrong = {"environment": np.array("a"), "actions": np.zeros(3), "rewards": np.zeros(3)}
    np.savez(tmp_path / "short.npz", **wrong, lengths=np.array([2]))
    with pytest.raises(DataError, match="not a file of episodes"):
        read_episodes(tmp_path / "short.npz")
    episodes = collect_episodes("Pendulum-v1", [1])
    with pytest.raises(OutputError):
        write_episodes(tmp_path / "no" / "folder.npz", "Pendulum-v1", episodes)
    with pytest.raises(OptionError, match="no episodes"):
        write_episodes(tmp_path / "a.npz", "Pendulum-v1", [])


def test_unknown_environments_are_refused():
    with pytest.raises(OptionError, match="cannot be made"):
        make_environment("NoSuchTask-v3")
    with pytest.raises(OptionError, match="wrong name"):
        make_environment(gymnasium)
