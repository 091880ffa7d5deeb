"""One attention layer of a reading: the interface that all views use.

LayerReading    weights are computed from queries and keys, step by step; memory is linear in the number of tokens
WindowReading   the same for a layer within windows of a picture, whose queries have keys of their own
LayerWeights    weights alone, for a mechanism without such steps; memory is quadratic
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import numpy as np
from jaxtyping import Float64

from regard.errors import DataError


class AttentionLayer(ABC):
    """One layer: its ``name`` in the model, and the weights of its heads."""

    name: str

    @property
    @abstractmethod
    def heads(self) -> int:
        """Number of heads."""

    @property
    @abstractmethod
    def queries(self) -> int:
        """Number of query tokens."""

    @property
    @abstractmethod
    def keys(self) -> int:
        """Number of key tokens."""

    @property
    @abstractmethod
    def is_signed(self) -> bool:
        """Whether weights may be below 0."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of values that a page stores for the layer, without a few small extras such as biases."""

    @abstractmethod
    def weights_of(self, head: int, queries: Sequence[int] | None = None) -> Float64[np.ndarray, "rows keys"]:
        """Weights of some queries (default: all) of one head in float64.

        A query that may attend to nothing has a row of zeros. Views of long texts take one head at a time: the weights
        of all heads of a layer may need more memory than a machine has.
        """

    @final
    def weights(self) -> Float64[np.ndarray, "heads queries keys"]:
        """Weights of all heads, as ``weights_of``."""
        every = np.zeros((self.heads, self.queries, self.keys))
        for head in range(self.heads):
            every[head] = self.weights_of(head)
        return every

    @final
    def mean_weights(self) -> Float64[np.ndarray, "queries keys"]:
        """The mean of the weights over all heads, of which one is in memory at a time."""
        total = np.zeros((self.queries, self.keys))
        for head in range(self.heads):
            total += self.weights_of(head)
        return total / self.heads

    @abstractmethod
    def round_for_page(self, letters: int) -> AttentionLayer:
        """Round the layer as a page does that stores ``letters`` characters per number."""


def check_finite(name: str, *arrays: np.ndarray, expected: str) -> None:
    """Raise DataError unless all numbers of a layer are finite."""
    if not all(np.isfinite(array).all() for array in arrays):
        raise DataError(
            f"{name} contains numbers that are not finite",
            expected=expected,
            got="NaN or Inf",
            do="check the model's weights",
        )
