"""One attention layer of a reading: the interface that all views use.

LayerReading    weights are computed from queries and keys, step by step; memory is linear in the number of tokens
WindowReading   the same for a layer within windows of a picture, whose queries have keys of their own
LayerWeights    weights alone, for a mechanism without such steps; memory is quadratic
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import final

import numpy as np
from jaxtyping import Float, Float64

from regard.errors import DataError
from regard.view.pack import FLOAT32, Json, choose_letters

MAX_WEIGHT_ERROR = 0.01
"""The largest error of a weight for which two letters per number are enough."""
_MAX_HELD = 2**20
"""Weights that ``by_head`` computes at once, about: 8 MiB. A head of a longer text is computed alone."""


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
    def weights_of_heads(
        self, heads: range, queries: Sequence[int] | None = None
    ) -> Float64[np.ndarray, "some_heads rows keys"]:
        """Weights of some queries (default: all) of consecutive heads in float64, computed in one call.

        A query that may attend to nothing has a row of zeros.
        """

    @final
    def weights_of(self, head: int, queries: Sequence[int] | None = None) -> Float64[np.ndarray, "rows keys"]:
        """Weights of one head, as ``weights_of_heads``."""
        return np.asarray(self.weights_of_heads(range(head, head + 1), queries)[0])

    def weights_of_block(self, head: int, queries: range) -> Float[np.ndarray, "rows first_keys"]:
        """Weights of queries at even steps of one head, for sums over a long text: in float32 if that is faster.

        Columns of the last keys are left out if all of these weights are 0, as in a decoder.
        """
        return self.weights_of(head, queries)

    @final
    def by_head(self) -> Iterator[Float64[np.ndarray, "queries keys"]]:
        """Weights of each head in turn, for views that read all of them.

        Heads are computed in groups of about ``_MAX_HELD`` weights: one call for a layer of a short text, and of a long
        text one head at a time, since the weights of all its heads may need more memory than a machine has.
        """
        group = max(1, _MAX_HELD // max(1, self.queries * self.keys))
        for first in range(0, self.heads, group):
            yield from self.weights_of_heads(range(first, min(first + group, self.heads)))

    @final
    def weights(self) -> Float64[np.ndarray, "heads queries keys"]:
        """Weights of all heads, as ``weights_of``."""
        every = np.zeros((self.heads, self.queries, self.keys))
        for head, weights in enumerate(self.by_head()):
            every[head] = weights
        return every

    @final
    def mean_weights(self) -> Float64[np.ndarray, "queries keys"]:
        """The mean of the weights over all heads."""
        total = np.zeros((self.queries, self.keys))
        for weights in self.by_head():
            total += weights
        return total / self.heads

    @property
    def is_causal(self) -> bool:
        """Whether no query attends to a later token, as in a decoder."""
        return not any(np.triu(weights, 1).any() for weights in self.by_head())

    @abstractmethod
    def round_for_page(self, letters: int) -> AttentionLayer:
        """Round the layer as a page does that stores ``letters`` characters per number."""

    @abstractmethod
    def pack(self, masks: list[str], letters: int) -> Json:
        """Encode the layer for a page. ``masks`` are the earlier layers' masks; its own is appended if it is new."""

    def without_values(self) -> AttentionLayer:
        """The layer without values, if it has some and can be shown without."""
        return self


def check_finite(name: str, *arrays: np.ndarray, expected: str) -> None:
    """Raise DataError unless all numbers of a layer are finite."""
    if not all(np.isfinite(array).all() for array in arrays):
        raise DataError(
            f"{name} contains numbers that are not finite",
            expected=expected,
            got="NaN or Inf",
            do="check the model's weights",
        )


def choose_encoding(layers: Sequence[AttentionLayer], room: int) -> tuple[int, float]:
    """Choose the letters per number, and return them with the largest error of a weight.

    Float32 if it fits into ``room`` characters, else three letters. If three letters do not fit, two, unless a weight
    would then be off by more than ``MAX_WEIGHT_ERROR``, as with very large scores.
    """
    letters = choose_letters(sum(layer.size for layer in layers), room)
    if letters == FLOAT32:
        return FLOAT32, 0.0
    error = _largest_error(layers, 2) if letters == 2 else np.inf
    return (2, error) if error <= MAX_WEIGHT_ERROR else (3, _largest_error(layers, 3))


def _largest_error(layers: Sequence[AttentionLayer], letters: int) -> float:
    """Largest change of any weight through rounding."""
    largest = 0.0
    for layer in layers:
        rounded = layer.round_for_page(letters)
        for change, weights in zip(rounded.by_head(), layer.by_head(), strict=True):
            change -= weights
            largest = max(largest, float(change.max(initial=0.0)), -float(change.min(initial=0.0)))
    return largest
