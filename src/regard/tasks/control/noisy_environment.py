"""An environment that does something else now and then: noise while an expert is recorded.

    executed action = expert's action with probability 1 - p, else a random one;   recorded action = expert's action

An expert alone visits few states, and a model that learned from those cannot come back from others. With noise the
expert shows how to. p is drawn for each episode from 0 to ``noise``, so that some episodes are nearly clean.
Laskey et al. 2017, "DART: Noise injection for robust imitation learning", where the noise is Gaussian.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np


@final
class NoisyEnvironment:
    """``environment``, with random actions in place of some. Equal seeds of ``reset`` give equal episodes."""

    def __init__(self, environment: Any, noise: float) -> None:
        self._environment, self._noise = environment, noise
        self._generator = np.random.default_rng(0)
        self._probability = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def reset(self, *, seed: int) -> Any:
        """Reset the environment, and draw the probability of a random action."""
        self._generator = np.random.default_rng([int(seed), 1])
        self._probability = float(self._generator.uniform(0.0, self._noise))
        self._environment.action_space.seed(int(seed))
        return self._environment.reset(seed=int(seed))

    def step(self, action: Any) -> Any:
        """Make a step with ``action``, or with a random one."""
        is_random = self._generator.random() < self._probability
        return self._environment.step(self._environment.action_space.sample() if is_random else action)
