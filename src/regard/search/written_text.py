"""A text while it is being written token by token, and the hypotheses that a prompt's texts become."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

from regard.search.base import Hypothesis


@final
@dataclass(eq=False)
class WrittenText:
    """A text that is being written, of at most ``limit`` tokens, its end token included.

    ``has_ended`` says that its end token was written; ``is_stopped``, that it shall not go on without one.
    """

    limit: int
    ids: list[int] = field(default_factory=list)
    log_probability: float = 0.0
    has_ended: bool = False
    is_stopped: bool = False

    def add(self, token: int, log_probability: float, *, is_end: bool) -> None:
        """Add a token and its log-probability; the end token is not among ``ids``."""
        self.log_probability += log_probability
        self.has_ended = is_end
        if not is_end:
            self.ids.append(token)

    @property
    def goes_on(self) -> bool:
        """Whether another token is to be written."""
        return not self.has_ended and not self.is_stopped and len(self.ids) < self.limit


def make_hypotheses(texts: Iterable[WrittenText]) -> list[Hypothesis]:
    """Make the hypotheses of one prompt, the most probable first; skip texts with a non-finite log-probability."""
    found = [
        Hypothesis(tuple(text.ids), text.log_probability, text.log_probability, text.has_ended)
        for text in texts
        if math.isfinite(text.log_probability)
    ]
    return sorted(found, key=lambda written: -written.score)
