"""One attention layer of a reading by its steps: queries and keys as NumPy arrays, and the weights computed from them.

    weights = softmax(scale * score + bias) * window

    score   = query . key                                  Vaswani et al. 2017, equation 1; Luong et al. 2015
            = query . (key + relative)                     Shaw et al. 2018, equation 4: by the distance of the two;
                                                           Dai et al. 2019, section 3.3: with a bias by distance too
            = vector . tanh(query + key)                   Bahdanau et al. 2015, A.1.2: W_q q and W_k k are stored
    window  = exp(-(place - centre)^2 / (2 deviation^2))   Luong et al. 2015, equation 10; else 1

Queries, keys and values are stored, so memory is linear in the number of tokens. Weights are computed on request, by
``mechanisms.steps``, and never stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int
from torch import Tensor

from regard import masks
from regard.arguments import explain_arguments
from regard.contract import Frame
from regard.errors import ShapeError
from regard.fields import repr_of_fields
from regard.mechanisms.steps import Gaussian, Steps
from regard.positions.base import distances
from regard.positions.shaw import score_distances
from regard.view.attention_layer import AttentionLayer, check_finite
from regard.view.pack import round_to_fixed


@final
@dataclass(frozen=True, eq=False)
class GaussianWindow:
    """A Gaussian over key positions, counted from 0: ``centre`` (heads, queries), ``deviation`` in positions."""

    __repr__ = repr_of_fields

    centre: Float32[np.ndarray, "_heads _queries"]
    deviation: float

    def to_gaussian(self, heads: slice) -> Gaussian:
        """Convert some heads to the Gaussian of ``mechanisms.steps``, for a batch of one."""
        return Gaussian(_to_tensor(self.centre[heads])[None], self.deviation)


@final
@dataclass(frozen=True, eq=False)
class RelativeVectors:
    """Vectors for the distance from query to key, clipped to -m .. m: Shaw et al. 2018, equations 3 and 4.

    ``key`` (heads, 2 m + 1, head_dim), or with 1 for all heads, is added to keys, ``value`` (2 m + 1, value_dim) to
    values; None adds nothing to values.
    """

    __repr__ = repr_of_fields

    key: Float32[np.ndarray, "_heads_or_one _distances _head_dim"]
    value: Float32[np.ndarray, "_distances _value_dim"] | None = None


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class LayerReading(AttentionLayer):
    """The inputs of one attention layer: query (heads, queries, head_dim), key and value (heads, keys, head_dim).

    ``allowed`` is True where a query may attend to a key; None allows everything. ``vector`` (heads, head_dim) belongs
    to an additive score; None is the dot product. ``bias`` (heads, queries + keys - 1) is indexed by the distance from
    query to key, from the last query and the first key to the first query and the last key.
    Raises ShapeError for incompatible shapes, DataError if a number is not finite.
    """

    __repr__ = repr_of_fields

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
            kinds, distances, _ = self.relative_vectors.key.shape
            shape = (1 if kinds == 1 else heads, distances | 1, head_dim)
            self._check_shape("relative keys", self.relative_vectors.key, shape)
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
        """Number of values in queries, keys, vectors added to keys, and values together."""
        relative = 0 if self.relative_vectors is None else self.relative_vectors.key.size
        return int(self.query.size + self.key.size + self.value.size + relative)

    def weights_of_heads(
        self, heads: range, queries: Sequence[int] | None = None
    ) -> Float64[np.ndarray, "some_heads rows keys"]:
        """Weights of some queries (default: all) of some heads, 0 for a query that may attend to nothing."""
        some = slice(heads.start, heads.stop)
        query, key = _to_tensor(self.query[some])[None], _to_tensor(self.key[some])[None]
        mask = None if self.allowed is None else masks.keep(torch.from_numpy(self.allowed)[None, None])
        vector = None if self.vector is None else _to_tensor(self.vector[some])
        gate = None if self.gaussian_window is None else self.gaussian_window.to_gaussian(some)
        rows = torch.arange(self.queries) if queries is None else torch.tensor(list(queries), dtype=torch.long)
        steps = Steps(query, key, mask, self.scale, vector, gate)
        return np.asarray(steps.weights(rows=rows, bias=self._make_bias(some, rows))[0])

    def round_for_page(self, letters: int) -> LayerReading:
        """Round queries and keys as a page does that stores ``letters`` characters per number."""
        query, key, relative = round_to_fixed(self.query, letters), round_to_fixed(self.key, letters), None
        if self.relative_vectors is not None:
            relative = replace(self.relative_vectors, key=round_to_fixed(self.relative_vectors.key, letters))
        return replace(self, query=query, key=key, relative_vectors=relative)

    def _make_bias(self, heads: slice, rows: Int[Tensor, " rows"]) -> Float[Tensor, "some_heads rows keys"] | None:
        """Compute what is added to the scores by distance: ``bias`` and the products with relative vectors, if any."""
        frame = Frame(self.queries, self.keys)
        terms = []
        if self.relative_vectors is not None:
            query = self.scale * _to_tensor(self.query[heads])[:, rows]
            key = self.relative_vectors.key
            terms.append(score_distances(query[None], _to_tensor(key[heads] if len(key) > 1 else key), frame, rows)[0])
        if self.bias is not None:
            terms.append(_to_tensor(self.bias[heads])[:, distances(frame, rows) + self.keys - 1])
        return torch.stack(terms).sum(0) if terms else None


def _to_tensor(array: Float32[np.ndarray, "..."]) -> Float[Tensor, "..."]:
    """Copy the array to a float64 tensor."""
    return torch.from_numpy(array.astype(np.float64))
