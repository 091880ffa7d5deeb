"""Episodes of an expert, one for each seed: the same seeds give the same episodes.

An environment that does something else now and then: noise while an expert is recorded.

    executed action = expert's action, or in a burst one random action, 1, 2, 4, 8 or 16 times
    recorded action = expert's action

A burst begins with probability p in each time step outside bursts; p is drawn for each episode from 0 to ``noise``, so
that some episodes are nearly clean. An expert alone visits few states, and a model that learned from those cannot come
back from others; with noise the expert shows how to. Bursts lead farther away than single actions, which average out.
Laskey et al. 2017, "DART: Noise injection for robust imitation learning", where the noise is Gaussian.

A random agent: actions drawn uniformly from the space of actions, with a seed of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

import numpy as np

from regard.arguments import explain_arguments
from regard.control import Episode
from regard.control.environments import flatten_observation, make_environment
from regard.control.experts import Expert, find_expert
from regard.errors import check_count, check_number


@final
@explain_arguments
class RandomAgent:
    """An expert that knows nothing: equal seeds give equal actions."""

    def __init__(self, seed: int) -> None:
        check_count("seed", seed, minimum=0)
        self._seed: int | None = int(seed)

    def __call__(self, environment: Any, observation: Any) -> Any:
        """Draw an action."""
        if self._seed is not None:  # the first step: the environment keeps the state of the generator from here
            environment.action_space.seed(self._seed)
            self._seed = None
        return environment.action_space.sample()


_BURSTS = (1, 2, 4, 8, 16)


@final
class NoisyEnvironment:
    """``environment``, with random actions in place of some. Equal seeds of ``reset`` give equal episodes."""

    def __init__(self, environment: Any, noise: float) -> None:
        self._environment, self._noise = environment, noise
        self._generator = np.random.default_rng(0)
        self._probability, self._left, self._action = 0.0, 0, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def reset(self, *, seed: int) -> Any:
        """Reset the environment, and draw the probability of a burst."""
        self._generator = np.random.default_rng([int(seed), 1])
        self._probability, self._left = float(self._generator.uniform(0.0, self._noise)), 0
        self._environment.action_space.seed(int(seed))
        return self._environment.reset(seed=int(seed))

    def step(self, action: Any) -> Any:
        """Make a step with ``action``, or with the random one of a burst."""
        if self._left == 0 and self._generator.random() < self._probability:
            self._left = int(self._generator.choice(_BURSTS))
            self._action = self._environment.action_space.sample()
        if self._left == 0:
            return self._environment.step(action)
        self._left -= 1
        return self._environment.step(self._action)


@explain_arguments
def collect_episodes(
    name: str, seeds: Iterable[int], *, expert: Expert | None = None, noise: float = 0.0
) -> list[Episode]:
    """Let an expert act in the environment ``name``, once for each seed, until the episode ends.

    ``expert`` is a function of environment and observation; None is the scripted one. ``noise`` above 0 executes random
    actions in place of some and records the expert's: see ``noisy_environment.py``. Raises OptionError if there is no
    expert, for a noise beyond 1, and as ``make_environment``.
    """
    check_number("noise", noise, minimum=0.0, maximum=1.0)
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
    check_count("seed", seed, minimum=0)
    observation, _ = environment.reset(seed=seed)
    observations, actions, rewards = [], [], []
    is_over = False
    while not is_over:
        action = act(environment, observation)
        flat = flatten_observation(environment.observation_space, observation)
        # Copied, since an environment may write into the arrays that it returned.
        observations.append({key: part if isinstance(part, str) else np.array(part) for key, part in flat.items()})
        observation, reward, has_ended, was_cut, _ = environment.step(action)
        actions.append(np.array(action))
        rewards.append(float(reward))
        is_over = bool(has_ended or was_cut)
    return Episode(observations, actions, rewards)
