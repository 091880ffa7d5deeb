"""One attention layer of a reading by its steps: queries and keys, and the weights computed from them.

    weights = softmax(cap(scale * score) + bias + ln count) * window

    score   = query . key                                  Vaswani et al. 2017, equation 1; Luong et al. 2015
            = query . (key + relative)                     Shaw et al. 2018, equation 4: by the distance of the two;
                                                           Dai et al. 2019, section 3.3: with a bias by distance too
            = vector . tanh(query + key)                   Bahdanau et al. 2015, A.1.2: W_q q and W_k k are stored
    window  = exp(-(place - centre)^2 / (2 deviation^2))   Luong et al. 2015, equation 10; else 1
    count   = how often the two meet in hash rounds        Kitaev et al. 2020, section 2; else 1

A softcap, forget gates, sinks, and a sigmoid in place of the softmax are those of ``mechanisms.steps``.

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

from regard.arguments import explain_arguments
from regard.contract import Frame
from regard.errors import ShapeError
from regard.fields import repr_of_fields
from regard.masks import Mask, causal
from regard.mechanisms.steps import Steps
from regard.positions.base import distances
from regard.positions.shaw import score_distances
from regard.view.attention_layer import AttentionLayer, check_finite
from regard.view.pack import (
    ALPHABET,
    Json,
    pack_float32,
    pack_heads,
    pack_integers,
    pack_mask,
    pack_rows,
    pack_vectors,
    round_to_fixed,
)
from regard.view.pack_own_steps import pack_buckets
from regard.view.projections import Projections


@final
@dataclass(frozen=True, eq=False)
class RelativeVectors:
    """Vectors for the distance from query to key, clipped to -m .. m: Shaw et al. 2018, equations 3 and 4.

    ``key`` (heads, 2 m + 1, head_dim), or with 1 for all heads, is added to keys, ``value`` (2 m + 1, value_dim) to
    values; None adds nothing to values.
    """

    __repr__ = repr_of_fields

    key: Float32[Tensor, "_heads_or_one _distances _head_dim"]
    value: Float32[Tensor, "_distances _value_dim"] | None = None


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class LayerReading(AttentionLayer):
    """The steps of one attention layer, for a batch of one in float32 on the CPU, and its values.

    ``call_mask`` is the mask of the call, where the mechanism hides more (``Steps.hidden_by``). ``value`` is
    (heads, keys, value_dim). ``bias`` (heads, queries + keys - 1) is indexed by the distance from query to key, from
    the last query and the first key to the first query and the last key. ``projections`` say how queries and keys were
    computed, if that is known. Raises ShapeError for incompatible shapes, DataError if a number is not finite.
    """

    __repr__ = repr_of_fields

    name: str
    steps: Steps
    value: Float32[Tensor, "_heads _keys _value_dim"]
    bias: Float32[Tensor, "_heads _distances"] | None = None
    relative_vectors: RelativeVectors | None = None
    projections: Projections | None = None
    call_mask: Mask | None = None

    def __post_init__(self) -> None:
        steps, (heads, queries, keys) = self.steps, (self.heads, self.queries, self.keys)
        self._check_shape("value", self.value, (heads, keys, self.value.shape[2]))
        self._check_shape("bias", self.bias, (heads, queries + keys - 1))
        self._check_shape("centre", None if steps.gate is None else steps.gate.centre, (1, heads, queries))
        if self.relative_vectors is not None:
            kinds, distances, _ = self.relative_vectors.key.shape
            shape = (1 if kinds == 1 else heads, distances | 1, steps.query.shape[3])
            self._check_shape("relative keys", self.relative_vectors.key, shape)
            self._check_shape("relative values", self.relative_vectors.value, (distances, self.value.shape[2]))
        for mask in (steps.mask, self.call_mask):
            if mask is not None:
                mask.check(1, heads, queries, keys)
        check_finite(self.name, *self._arrays, expected="finite queries, keys and values")

    def _check_shape(self, part: str, tensor: Tensor | None, shape: tuple[int, ...]) -> None:
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ShapeError(
                f"the tensors of {self.name} do not fit together",
                expected=f"{part} {shape}, to go with query {self.query.shape} and key {self.key.shape}",
                got=f"{part} {tuple(tensor.shape)}",
                do="repeat grouped key heads to the number of query heads, and cut padding from all alike",
            )

    @property
    def _arrays(self) -> tuple[np.ndarray, ...]:
        relative = self.relative_vectors
        of_relative = (None, None) if relative is None else (relative.key, relative.value)
        steps = self.steps
        centre = None if steps.gate is None else steps.gate.centre
        of_steps = (steps.query, steps.key, steps.vector, steps.log_gates, steps.sinks, steps.sigmoid_bias)
        tensors = (*of_steps, self.value, self.bias, centre, *of_relative)
        return tuple(tensor.numpy() for tensor in tensors if tensor is not None)

    @property
    def query(self) -> Float32[np.ndarray, "heads queries head_dim"]:
        """The queries of the score, (heads, queries, head_dim)."""
        return np.asarray(self.steps.query[0])

    @property
    def key(self) -> Float32[np.ndarray, "heads keys head_dim"]:
        """The keys of the score, (heads, keys, head_dim)."""
        return np.asarray(self.steps.key[0])

    @property
    def allowed(self) -> Bool[np.ndarray, "queries keys"] | None:
        """Whether a query may attend to a key in some head; None allows everything."""
        return self.allowed_of(range(self.queries))

    def allowed_of(self, queries: range, keys: range | None = None) -> Bool[np.ndarray, "rows some_keys"] | None:
        """Whether some queries at even steps may attend to some consecutive keys (default: all), as ``allowed``."""
        keys = range(self.keys) if keys is None else keys
        if self.steps.mask is None:
            return None
        band = self.steps.mask.band(Frame(self.queries, self.keys))
        if band is not None:
            distance = np.arange(keys.start, keys.stop, dtype=np.int32) - np.array(queries, dtype=np.int32)[:, None]
            low, high = (-self.queries if band[0] is None else band[0]), (self.keys if band[1] is None else band[1])
            return np.asarray((low <= distance) & (distance <= high))
        rows = None if len(queries) == self.queries else torch.tensor(queries)
        allowed = self.steps.mask.dense(self.queries, self.keys, rows=rows).any(1)
        return np.asarray(allowed.expand(1, len(queries), self.keys)[0, :, keys.start : keys.stop])

    @property
    def heads(self) -> int:
        """Number of heads."""
        return int(self.steps.query.shape[1])

    @property
    def queries(self) -> int:
        """Number of query tokens."""
        return int(self.steps.query.shape[2])

    @property
    def keys(self) -> int:
        """Number of key tokens."""
        return int(self.steps.key.shape[2])

    @property
    def is_signed(self) -> bool:
        """False: weights come from a softmax or a sigmoid, and a Gaussian window only makes them smaller."""
        return False

    @property
    def size(self) -> int:
        """Number of values in queries, keys, vectors added to keys, values, and what pairs of each head store."""
        relative = 0 if self.relative_vectors is None else self.relative_vectors.key.numel()
        pairs = self.heads * self.queries * self.keys
        masks = pairs // 12 if self._has_masks_per_head else 0  # six bits a character, two characters a value
        counts = 0 if self.steps.counts is None else pairs // 2
        return self.steps.query.numel() + self.steps.key.numel() + self.value.numel() + relative + masks + counts

    def weights_of_heads(
        self, heads: range, queries: Sequence[int] | None = None
    ) -> Float64[np.ndarray, "some_heads rows keys"]:
        """Weights of some queries (default: all) of some heads, 0 for a query that may attend to nothing."""
        some = slice(heads.start, heads.stop)
        rows = torch.arange(self.queries) if queries is None else torch.tensor(list(queries), dtype=torch.long)
        steps = self.steps.of_heads(some, "cpu", torch.float64)
        return np.asarray(steps.weights(rows=rows, bias=self._make_bias(some, rows))[0])

    def weights_of_block(self, head: int, queries: range) -> Float[np.ndarray, "rows first_keys"]:
        """Weights of queries at even steps of one head. See ``AttentionLayer.weights_of_block``."""
        steps, rows = self.steps, slice(queries.start, queries.stop, queries.step)
        is_plain = steps.is_dot_product and self.bias is None and self.relative_vectors is None
        if not is_plain or self._has_masks_per_head:
            return self.weights_of(head, queries)
        last = min(self.keys, queries[-1] + 1) if self._is_causal_by_band else self.keys
        # In a plain decoder every query of the block sees the keys before the block.
        seen = min(last, queries.start) if steps.mask == causal() and self.queries == self.keys else 0
        scores = (steps.query[0, head, rows] * steps.scale) @ steps.key[0, head, :last].T
        allowed = self.allowed_of(queries, range(seen, last))
        if allowed is not None:
            scores[:, seen:].masked_fill_(~torch.from_numpy(allowed), -torch.inf)
        weights = torch.softmax(scores, dim=-1)
        if not weights.sum().isfinite():  # a query without keys, or scores beyond float32
            return self.weights_of(head, queries)
        return np.asarray(weights)

    def round_for_page(self, letters: int) -> LayerReading:
        """Round queries and keys as a page does that stores ``letters`` characters per number."""

        def rounded(part: Float32[Tensor, "_heads _tokens _head_dim"]) -> Tensor:
            return torch.from_numpy(round_to_fixed(part.numpy(), letters))

        steps, relative = self.steps, self.relative_vectors
        return replace(
            self,
            steps=replace(steps, query=rounded(steps.query[0])[None], key=rounded(steps.key[0])[None]),
            relative_vectors=None if relative is None else replace(relative, key=rounded(relative.key)),
        )

    def pack(self, masks: list[str], letters: int) -> Json:
        """Encode the steps. See ``AttentionLayer.pack``."""
        steps, relative, value = self.steps, self.relative_vectors, self.value.numpy()
        packed: Json = {"name": self.name, "scale": steps.scale}
        packed |= pack_vectors(self.query, self.key, value, self._dense(steps.mask), masks, letters)
        if steps.hidden_by is not None:
            packed["hidden_by"] = {"name": steps.hidden_by, "mask": pack_mask(self._dense(self.call_mask), masks)}
        if steps.counts is not None:
            counts = np.asarray(steps.counts[0])
            size = 1 if counts.max(initial=0) < len(ALPHABET) else 2
            packed["counts"] = {"letters": size, "heads": [pack_integers(head, size) for head in counts]}
        if steps.buckets is not None:
            packed["buckets"] = pack_buckets(steps.buckets)
        if steps.vector is not None:
            packed["vector"] = pack_rows(steps.vector)
        if steps.softcap is not None:
            packed["softcap"] = steps.softcap
        for name in ("log_gates", "sinks", "sigmoid_bias"):
            if (numbers := getattr(steps, name)) is not None:
                packed[name] = pack_rows(numbers[0])
        if steps.sinks is not None or steps.sigmoid_bias is not None:
            largest = max(float(weights.max(initial=0.0)) for weights in self.by_head())
            packed |= {"weights_are": steps.weights_are, "largest": largest}
        if self.bias is not None:
            packed["bias"] = pack_rows(self.bias)
        if steps.gate is not None:
            packed["gaussian"] = {"centre": pack_rows(steps.gate.centre[0]), "deviation": steps.gate.deviation}
        if relative is not None:
            packed["relative"] = {
                "key": pack_heads(relative.key.numpy(), letters),
                "value": None if relative.value is None else pack_float32(relative.value.numpy()),
                "most": relative.key.shape[1] // 2,
            }
        return packed

    def without_values(self) -> LayerReading:
        """The layer without values, unless it has relative vectors that belong to values."""
        if self.relative_vectors is not None and self.relative_vectors.value is not None:
            return self
        return replace(self, value=self.value[..., :0])

    def _dense(self, mask: Mask | None) -> Bool[np.ndarray, "*heads queries keys"] | None:
        """A mask (queries, keys), or with an axis of heads if it differs between them; None stays."""
        if mask is None:
            return None
        if mask.heads is None:
            return np.asarray(mask.dense(self.queries, self.keys).expand(1, 1, self.queries, self.keys)[0, 0])
        return np.asarray(mask.dense(self.queries, self.keys).expand(1, -1, self.queries, self.keys)[0])

    @property
    def _has_masks_per_head(self) -> bool:
        return self.steps.mask is not None and self.steps.mask.heads is not None

    @property
    def is_causal(self) -> bool:
        """Whether the mask lets no query attend to a later token."""
        if self._is_causal_by_band:
            return True
        allowed = self.allowed
        return allowed is not None and not np.triu(allowed, 1).any()

    @property
    def _is_causal_by_band(self) -> bool:
        """Whether the mask is a band without later tokens."""
        mask = self.steps.mask
        band = None if mask is None else mask.band(Frame(self.queries, self.keys))
        return band is not None and band[1] is not None and band[1] <= 0

    def _make_bias(self, heads: slice, rows: Int[Tensor, " rows"]) -> Float[Tensor, "some_heads rows keys"] | None:
        """Compute what is added to the scores by distance: ``bias`` and the products with relative vectors, if any."""
        frame = Frame(self.queries, self.keys)
        terms = []
        if self.relative_vectors is not None:
            query = self.steps.scale * self.steps.query[:, heads].double()[:, :, rows]
            key = self.relative_vectors.key.double()
            terms.append(score_distances(query, key[heads] if len(key) > 1 else key, frame, rows)[0])
        if self.bias is not None:
            terms.append(self.bias[heads].double()[:, distances(frame, rows) + self.keys - 1])
        return torch.stack(terms).sum(0) if terms else None
