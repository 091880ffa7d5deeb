"""Episodes of an expert, one for each seed: the same seeds give the same episodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from regard.control import Episode
from regard.errors import check_count, check_number
from regard.tasks.control.environments import flatten_observation, make_environment
from regard.tasks.control.experts import Expert, find_expert
from regard.tasks.control.noisy_environment import NoisyEnvironment


def collect_episodes(
    name: str, seeds: Iterable[int], *, expert: Expert | None = None, noise: float = 0.0
) -> list[Episode]:
    """Let an expert act in the environment ``name``, once for each seed, until the episode ends.

    ``expert`` is a function of environment and observation; None is the scripted one. ``noise`` above 0 executes random
    actions in place of some and records the expert's: see ``noisy_environment.py``. Raises OptionError if there is no
    expert, for a noise beyond 1, and as ``make_environment``.
    """
    check_number("noise", noise, least=0.0, most=1.0)
    environment = make_environment(name)
    if noise:
        environment = NoisyEnvironment(environment, noise)
    act = find_expert(name) if expert is None else expert
    try:
        return [run_episode(environment, seed, act) for seed in seeds]
    finally:
        environment.close()


def run_episode(environment: Any, seed: int, act: Expert) -> Episode:
    """Let ``act`` choose the actions from one reset of ``environment`` to the end of the episode."""
    check_count("seed", seed, least=0)
    observation, _ = environment.reset(seed=seed)
    observations, actions, rewards = [], [], []
    is_over = False
    while not is_over:
        action = act(environment, observation)
        flat = flatten_observation(environment.observation_space, observation)
        # Copied, since an environment may write into the arrays that it returned.
        observations.append({key: one if isinstance(one, str) else np.array(one) for key, one in flat.items()})
        observation, reward, has_ended, was_cut, _ = environment.step(action)
        actions.append(np.array(action))
        rewards.append(float(reward))
        is_over = bool(has_ended or was_cut)
    return Episode(observations, actions, rewards)
