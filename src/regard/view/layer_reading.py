"""One attention layer of a reading by its steps: queries and keys as NumPy arrays, and the weights computed from them.

    weights = softmax(scale * score + bias) * window

    score   = query . key                                  Vaswani et al. 2017, equation 1; Luong et al. 2015
            = query . (key + relative)                     Shaw et al. 2018, equation 4: by the distance of the two
            = vector . tanh(query + key)                   Bahdanau et al. 2015, A.1.2: W_q q and W_k k are stored
    window  = exp(-(place - centre)^2 / (2 deviation^2))   Luong et al. 2015, equation 10; else 1

Queries, keys and values are stored, so memory is linear in the number of tokens. Weights are computed on request, and
never stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64

from regard.errors import ShapeError
from regard.mechanisms.steps import Gaussian
from regard.view.attention_layer import AttentionLayer, check_finite
from regard.view.pack import round_to_fixed


@final
@dataclass(frozen=True, eq=False)
class GaussianWindow:
    """A Gaussian over key positions, counted from 0: ``centre`` (heads, queries), ``deviation`` in positions."""

    centre: Float32[np.ndarray, "_heads _queries"]
    deviation: float

    def heights(self, keys: int) -> Float64[np.ndarray, "heads queries keys"]:
        """Height of the Gaussian at every key (heads, queries, keys), 1 at the centre."""
        gaussian = Gaussian(torch.from_numpy(self.centre.astype(np.float64))[None], self.deviation)
        return np.asarray(gaussian.heights(keys)[0])


@final
@dataclass(frozen=True, eq=False)
class RelativeVectors:
    """Vectors for the distance from query to key, clipped to -m .. m, for all heads: Shaw et al. 2018, equations 3, 4.

    ``key`` (2 m + 1, head_dim) is added to keys, ``value`` (2 m + 1, value_dim) to values; None adds nothing to values.
    """

    key: Float32[np.ndarray, "_distances _head_dim"]
    value: Float32[np.ndarray, "_distances _value_dim"] | None = None

    def scores(self, query: Float64[np.ndarray, "heads queries head_dim"], keys: int) -> Float64[np.ndarray, "..."]:
        """Contribution to each score (heads, queries, keys); the last query is aligned with the last key."""
        most, queries = len(self.key) // 2, query.shape[1]
        distance = np.arange(keys)[None, :] - np.arange(queries)[:, None] + queries - keys
        by_distance = query @ self.key.astype(np.float64).T
        places = np.broadcast_to(distance.clip(-most, most) + most, (len(query), queries, keys))
        return np.take_along_axis(by_distance, places, axis=2)


@final
@dataclass(frozen=True, eq=False)
class LayerReading(AttentionLayer):
    """The inputs of one attention layer: query (heads, queries, head_dim), key and value (heads, keys, head_dim).

    ``allowed`` is True where a query may attend to a key; None allows everything. ``vector`` (heads, head_dim) belongs
    to an additive score; None is the dot product. ``bias`` (heads, queries + keys - 1) is indexed by the distance from
    query to key, from the last query and the first key to the first query and the last key.
    Raises ShapeError for incompatible shapes, DataError if a number is not finite.
    """

    name: str
    query: Float32[np.ndarray, "_heads _queries _head_dim"]
    key: Float32[np.ndarray, "_heads _keys _head_dim"]
    value: Float32[np.ndarray, "_heads _keys _value_dim"]
    scale: float
    allowed: Bool[np.ndarray, "_queries _keys"] | None = None
    vector: Float32[np.ndarray, "_heads _head_dim"] | None = None
    bias: Float32[np.ndarray, "_heads _distances"] | None = None
    gaussian_window: GaussianWindow | None = None
    relative_vectors: RelativeVectors | None = None

    def __post_init__(self) -> None:
        heads, queries, head_dim = self.query.shape
        keys = self.key.shape[1]
        self._check_shape("key", self.key, (heads, keys, head_dim))
        self._check_shape("value", self.value, (heads, keys, self.value.shape[2]))
        self._check_shape("allowed", self.allowed, (queries, keys))
        self._check_shape("vector", self.vector, (heads, head_dim))
        self._check_shape("bias", self.bias, (heads, queries + keys - 1))
        self._check_shape(
            "centre", None if self.gaussian_window is None else self.gaussian_window.centre, (heads, queries)
        )
        if self.relative_vectors is not None:
            distances = len(self.relative_vectors.key)
            self._check_shape("relative keys", self.relative_vectors.key, (distances | 1, head_dim))
            self._check_shape("relative values", self.relative_vectors.value, (distances, self.value.shape[2]))
        check_finite(self.name, *self._arrays, expected="finite queries, keys and values")

    def _check_shape(self, part: str, array: np.ndarray | None, shape: tuple[int, ...]) -> None:
        if array is not None and array.shape != shape:
            raise ShapeError(
                f"the arrays of {self.name} do not fit together",
                expected=f"{part} {shape}, to go with query {self.query.shape} and key {self.key.shape}",
                got=f"{part} {array.shape}",
                do="repeat grouped key heads to the number of query heads, and cut padding from all alike",
            )

    @property
    def _arrays(self) -> tuple[np.ndarray, ...]:
        centre = None if self.gaussian_window is None else self.gaussian_window.centre
        relative = (
            (None, None) if self.relative_vectors is None else (self.relative_vectors.key, self.relative_vectors.value)
        )
        arrays = (self.query, self.key, self.value, self.vector, self.bias, centre, *relative)
        return tuple(array for array in arrays if array is not None)

    @property
    def heads(self) -> int:
        """Number of heads."""
        return int(self.query.shape[0])

    @property
    def queries(self) -> int:
        """Number of query tokens."""
        return int(self.query.shape[1])

    @property
    def keys(self) -> int:
        """Number of key tokens."""
        return int(self.key.shape[1])

    @property
    def is_signed(self) -> bool:
        """False: weights come from a softmax, and a Gaussian window only makes them smaller."""
        return False

    @property
    def size(self) -> int:
        """Number of values in queries, keys and values together."""
        return int(self.query.size + self.key.size + self.value.size)

    def weights(self) -> Float64[np.ndarray, "heads queries keys"]:
        """Attention weights in float64; a query that may attend to nothing gets a row of zeros."""
        scores = self._scores()
        if self.allowed is None:
            powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        else:
            highest = np.max(scores, axis=-1, keepdims=True, where=self.allowed, initial=-np.inf)
            highest[np.isneginf(highest)] = 0.0
            powers = np.where(self.allowed, np.exp(np.where(self.allowed, scores - highest, 0.0)), 0.0)
        total = powers.sum(axis=-1, keepdims=True)
        weights = np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)
        return (
            weights
            if self.gaussian_window is None
            else np.asarray(weights * self.gaussian_window.heights(self.key.shape[1]))
        )

    def round_for_page(self, letters: int) -> LayerReading:
        """Round queries and keys as a page does that stores ``letters`` characters per number."""
        query, key = round_to_fixed(self.query, letters), round_to_fixed(self.key, letters)
        return replace(self, query=query, key=key)

    def _scores(self) -> Float64[np.ndarray, "heads queries keys"]:
        """Compute scale * score + bias."""
        query, key = self.query.astype(np.float64), self.key.astype(np.float64)
        scores = query @ key.swapaxes(1, 2) if self.vector is None else _additive_scores(query, key, self.vector)
        if self.relative_vectors is not None:
            scores = scores + self.relative_vectors.scores(query, key.shape[1])
        scores = self.scale * scores
        return scores if self.bias is None else np.asarray(scores + self._expand_bias(self.bias))

    def _expand_bias(self, bias: Float32[np.ndarray, "_heads _distances"]) -> Float64[np.ndarray, "heads queries keys"]:
        queries, keys = self.query.shape[1], self.key.shape[1]
        distance = np.arange(keys)[None, :] - np.arange(queries)[:, None] + queries - 1
        return np.asarray(bias[:, distance], dtype=np.float64)


def _additive_scores(
    query: Float64[np.ndarray, "heads queries inner"],
    key: Float64[np.ndarray, "heads keys inner"],
    vector: Float32[np.ndarray, "heads inner"],
) -> Float64[np.ndarray, "heads queries keys"]:
    """Compute vector . tanh(query + key), one query at a time: all at once would be queries x keys x inner numbers."""
    scores = np.empty((*query.shape[:2], key.shape[1]))
    for head, row in np.ndindex(*query.shape[:2]):
        scores[head, row] = np.tanh(query[head, row] + key[head]) @ vector[head]
    return scores
