"""What is learnt: where batches come from, what their loss is, and how good the model is. The loop knows no more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from torch import Tensor, nn


@final
@dataclass(frozen=True)
class Share:
    """The part of a batch that one of several processes takes: rows ``rank``, ``rank + of``, .."""

    rank: int = 0
    of: int = 1


@final
@dataclass(frozen=True)
class Validation:
    """How good a model is: ``score`` (higher is better) decides which is kept.

    ``metrics`` are numbers by name; ``samples`` are lines of text, to be looked at.
    """

    score: float
    metrics: dict[str, float] = field(default_factory=dict)
    samples: tuple[str, ...] = ()


class Task(ABC):
    """Something to learn."""

    model: nn.Module

    @property
    @abstractmethod
    def digest(self) -> str:
        """A hash of the data: a run goes on only with the data that it began with."""

    @abstractmethod
    def epoch(self, number: int) -> Sequence[Any]:
        """The batches of an epoch, in order: a function of the number alone."""

    @abstractmethod
    def tokens(self, batch: Any) -> int:
        """How many predictions a batch makes, in all processes: what the sum of losses is divided by."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, share: Share) -> Tensor:
        """The sum of the losses of a share of a batch. ``model`` is ``self.model``, wrapped perhaps."""

    @abstractmethod
    def validate(self, model: nn.Module) -> Validation:
        """How good the model is on data that it does not learn from."""

    @abstractmethod
    def save(self, model: nn.Module, folder: Path, about: dict[str, Any]) -> None:
        """Write the folder of a model that can be used, in place of one that is there."""
