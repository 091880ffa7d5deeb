"""The finished hypotheses of beam search, and the score that live hypotheses have to beat."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.search.base import Hypothesis


@final
class FinishedHypotheses:
    """The ``best`` hypotheses of each source; finished ones are ranked before those cut at the maximum length.

    ``score_to_beat`` (sources,) is the lowest score of the ``best`` finished ones, -infinity if there are fewer.
    """

    def __init__(self, sources: int, best: int, device: torch.device) -> None:
        self._best = best
        self._hypotheses: list[list[Hypothesis]] = [[] for _ in range(sources)]
        self.score_to_beat = torch.full((sources,), -torch.inf, device=device)

    def add(
        self,
        source: Int[Tensor, " some"],
        ids: Int[Tensor, "some length"],
        score: Float[Tensor, " some"],
        log_probability: Float[Tensor, " some"],
        *,
        finished: bool,
    ) -> None:
        """Add hypotheses of the given sources, and keep the ``best`` of each source."""
        columns = (source.tolist(), ids.tolist(), score.tolist(), log_probability.tolist())
        for number, tokens, worth, total in zip(*columns, strict=True):
            self._hypotheses[number].append(Hypothesis(tuple(tokens), worth, total, finished))
        for number in set(columns[0]):
            self._hypotheses[number].sort(key=lambda one: (not one.finished, -one.score))
            del self._hypotheses[number][self._best :]
        self.score_to_beat = torch.tensor([self._worst(those) for those in self._hypotheses]).to(score)

    def to_lists(self) -> list[list[Hypothesis]]:
        """The hypotheses of each source, the best first."""
        return self._hypotheses

    def _worst(self, those: list[Hypothesis]) -> float:
        return those[-1].score if len(those) == self._best and those[-1].finished else -torch.inf
