"""What an implementation is: it says what it refuses, and computes what it does not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from regard.contract import Observation
from regard.kernels.request import Request


class Implementation(ABC):
    """Code that computes exact attention. It never hands a request to another implementation."""

    name: ClassVar[str]

    @abstractmethod
    def unavailable(self) -> str | None:
        """Why it can compute nothing on this machine, whatever the request; None if it is there."""

    @abstractmethod
    def details(self) -> str:
        """What it computes with on this machine, for people; of one that is there."""

    @abstractmethod
    def refuses(self, request: Request) -> str | None:
        """Why it cannot compute this request's attention; None if it can."""

    @abstractmethod
    def attention(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """The attention of a request it does not refuse."""

    def refuses_to_observe(self, request: Request) -> str | None:
        """Why it cannot report what was attended to; None if it can."""
        del request
        return f"{self.name} keeps the weights to itself and reports no statistics of them"

    def observe(self, request: Request, top: int, rows: Tensor | None) -> Observation:
        """Output and statistics of a request it does not refuse to observe; ``rows`` are query indices."""
        raise AssertionError(f"{self.name} was asked to observe, which it refuses: {request}")
