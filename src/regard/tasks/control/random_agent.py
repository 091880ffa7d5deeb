"""A random agent: actions drawn uniformly from the space of actions, with a seed of its own."""

from __future__ import annotations

from typing import Any, final

from regard.errors import check_count


@final
class RandomAgent:
    """An expert that knows nothing: equal seeds give equal actions."""

    def __init__(self, seed: int) -> None:
        check_count("seed", seed, least=0)
        self._seed: int | None = int(seed)

    def __call__(self, environment: Any, observation: Any) -> Any:
        """Draw an action."""
        if self._seed is not None:  # the first step: the environment keeps the state of the generator from here
            environment.action_space.seed(self._seed)
            self._seed = None
        return environment.action_space.sample()
