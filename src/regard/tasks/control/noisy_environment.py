"""An environment that does something else now and then: noise while an expert is recorded.

    executed action = expert's action, or in a burst one random action, 1, 2, 4, 8 or 16 times
    recorded action = expert's action

A burst begins with probability p in each time step outside bursts; p is drawn for each episode from 0 to ``noise``, so
that some episodes are nearly clean. An expert alone visits few states, and a model that learned from those cannot come
back from others; with noise the expert shows how to. Bursts lead farther away than single actions, which average out.
Laskey et al. 2017, "DART: Noise injection for robust imitation learning", where the noise is Gaussian.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

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
