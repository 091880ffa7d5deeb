"""A Gato acts: it repeats the beginning of an episode that it learned, and untrained it still acts validly."""

import numpy as np
import pytest
import torch

from regard.control import Episode, collect_episodes, make_environment, step_tokenizer, tokenize_episode
from regard.errors import OptionError
from regard.models import Gato, GatoBatch, GatoConfig
from regard.playing import play_episodes

SIZES = {"width": 16, "layers": 1, "heads": 1, "inner": 23, "patch_channels": 2, "groups": 1, "dropout": 0.0}


def make(**options):
    torch.manual_seed(0)
    return Gato(GatoConfig(**(SIZES | options)))


def test_the_beginning_of_an_episode_is_learned_and_repeated():
    """The same actions lead to the same observations, so the model acts as the expert did from the same seed."""
    name, steps = "CartPole-v1", 11
    model = make(text=0, bins=1024, discrete=2)
    tokenizer = step_tokenizer(make_environment(name), ranges=model.config.ranges)
    (whole,) = collect_episodes(name, [1])
    episode = Episode(whole.observations[:steps], whole.actions[:steps], whole.rewards[:steps])
    batch = GatoBatch.from_sequences([tokenize_episode(episode, tokenizer)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        total, count = model.loss(batch)
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
    assert float(total.detach()) / count < 0.1
    (played,) = play_episodes(model, name, [1])
    assert [int(one) for one in played.actions[:steps]] == [int(one) for one in episode.actions]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["CartPole-v1", pytest.param("Pendulum-v1", marks=pytest.mark.slow)])
def test_untrained_models_act_validly_and_repeatably(name, temperature):
    model = make(text=0, bins=101, discrete=2)
    first, second = (play_episodes(model, name, [3], temperature=temperature)[0] for _ in range(2))
    space = make_environment(name).action_space
    assert all(space.contains(action) for action in np.array(first.actions).astype(space.dtype))
    np.testing.assert_array_equal(first.actions, second.actions)


def test_a_model_of_other_ranges_is_refused():
    with pytest.raises(OptionError, match="more values than there are ids"):
        play_episodes(make(text=0, discrete=1), "CartPole-v1", [0])
    with pytest.raises(OptionError, match="wrong model"):
        play_episodes(torch.nn.Linear(1, 1), "CartPole-v1", [0])
