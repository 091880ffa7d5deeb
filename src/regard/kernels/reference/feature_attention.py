"""Features of queries and keys, and attention by them where every query sees all keys, in plain torch.

    o_i = sum_j w_j s_ij v_j / sum_j w_j s_ij         s_ij = phi(q_i) . phi(k_j)

``csrc/scan/feature_attention.h`` has the maps and their sources. Mechanisms sum features in blocks
(``mechanisms.feature_mechanism``); here all are in memory, for derivatives of derivatives of the kernels.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.kernels.results import accumulation_dtype
from regard.tensors import has_values

FeatureKind: TypeAlias = Literal["exponential", "relu", "elu"]
_RELU_FLOOR = 1e-3
MappedKeys: TypeAlias = tuple[Float[Tensor, "batch heads keys features"], Float[Tensor, "batch heads keys"] | None]
"""Features of keys, and the logarithms of their weights; None: all weigh the same."""


@final
class FeatureMap(NamedTuple):
    """A map of tokens to features, for finite tokens in float32 or float64.

    Args:
        kind: "exponential" and "relu", of products with the projection, and "elu", of the tokens.
        projection: (features, head_dim), in the dtype of the features; None for "elu".
        norm_factor: the logarithm of a key's weight is its largest product minus this times |k|^2 ("exponential").
        floor: added to each feature of a key ("exponential"), or their lower bound ("elu").
    """

    kind: FeatureKind
    projection: Float[Tensor, "features head_dim"] | None
    norm_factor: float = 0.0
    floor: float = 0.0

    @property
    def numbers(self) -> tuple[FeatureKind, float, float]:
        """Kind, ``norm_factor`` and ``floor``, in the order in which ``FeatureRequest`` takes them."""
        return self.kind, self.norm_factor, self.floor

    @property
    def weighs_keys(self) -> bool:
        """Whether keys have weights."""
        return self.kind == "exponential"

    @property
    def added_floor(self) -> float:
        """The number to add to each feature of a key, so that no denominator is 0; the features of a query add up to 1
        if it is not 0.
        """
        return self.floor if self.kind == "exponential" else 0.0

    def map_queries(self, query: Float[Tensor, "batch heads queries head_dim"]) -> Tensor:
        """Compute the features of queries, times a factor of each query."""
        products = self._project(query)
        if self.kind == "exponential":
            return products.softmax(-1)
        if self.kind == "relu":
            features = products.relu() + _RELU_FLOOR
            return features / features.detach().amax(-1, keepdim=True)
        logarithms = products.relu().log1p() + products.clamp(max=0.0)
        return (logarithms - logarithms.detach().amax(-1, keepdim=True)).exp()

    def map_keys(self, key: Float[Tensor, "batch heads keys head_dim"]) -> MappedKeys:
        """Compute the features of keys, without the floor of "exponential", and the logarithms of their weights."""
        products = self._project(key)
        if self.kind == "relu":
            return products.relu() + _RELU_FLOOR, None
        if self.kind == "elu":
            return (products.clamp(max=0.0).exp() + products.relu()).clamp(min=self.floor), None
        largest = products.detach().amax(-1, keepdim=True)
        log_weight = largest[..., 0] - key.square().sum(-1) * self.norm_factor
        if products.requires_grad or not has_values(products):  # torch.func differentiates no operation in place
            return (products - largest).exp(), log_weight
        return products.sub_(largest).exp_(), log_weight

    def _project(self, tokens: Float[Tensor, "batch heads length head_dim"]) -> Tensor:
        """Compute the products with the projection."""
        if self.projection is None:
            return tokens
        return (tokens.flatten(0, 2) @ self.projection.mT).unflatten(0, tokens.shape[:3])


@final
class FeatureRequest(NamedTuple):
    """One call of attention by features: tensors and numbers, in the order of the operator's schema.

    Args:
        query: (batch, heads, queries, head_dim).
        key: (batch, key_heads, keys, head_dim).
        value: (batch, key_heads, keys, value_dim).
        projection, kind, norm_factor, floor: of the ``FeatureMap``.
        hidden: (batch, 1 or heads, 1, keys), keys that no query sees; None: none is.
        largest_norm: tokens with a norm from here on are like those with NaN: queries that may see them are NaN.
        causal: query i sees the keys up to i, else all.
    """

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch key_heads keys head_dim"]
    value: Float[Tensor, "batch key_heads keys value_dim"]
    projection: Float[Tensor, "features head_dim"] | None
    hidden: Bool[Tensor, "batch one_or_heads 1 keys"] | None
    kind: FeatureKind
    norm_factor: float
    floor: float
    largest_norm: float
    causal: bool

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All but the kind and numbers."""
        return self[:5]

    @property
    def numbers(self) -> dict[str, Any]:
        """The kind and numbers by name."""
        return dict(zip(self._fields[5:], self[5:], strict=True))


def attend_to_features(request: FeatureRequest) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute the output where every query sees all keys, with any number of derivatives."""
    assert not request.causal
    dtype, group = accumulation_dtype(request.query.dtype), request.query.shape[1] // request.key.shape[1]
    features = FeatureMap(request.kind, request.projection, request.norm_factor, request.floor)
    query, key, value = (side.to(dtype) for side in request[:3])
    key, value = (side.repeat_interleave(group, dim=1) for side in (key, value))
    bad_query, bad_key, bad_value = (
        ~(torch.linalg.vector_norm(side.detach(), dim=-1) < request.largest_norm) for side in (query, key, value)
    )
    bad_key = bad_key | bad_value
    hidden = torch.zeros_like(bad_key) if request.hidden is None else request.hidden[:, :, 0].expand_as(bad_key)
    excluded = hidden | bad_key
    phi, log_weight = features.map_keys(key.masked_fill(excluded[..., None], 0.0))
    phi = phi + features.added_floor
    if log_weight is not None:
        largest = log_weight.detach().masked_fill(excluded, -torch.inf).amax(-1, keepdim=True)
        weight = (log_weight - largest.nan_to_num(neginf=0.0)).masked_fill(excluded, -torch.inf).exp()
    else:
        weight = (~excluded).to(dtype)
    phi = phi * weight[..., None]
    undefined = bad_query | (bad_key & ~hidden).any(-1, keepdim=True) | hidden.all(-1, keepdim=True)
    of_query = features.map_queries(query.masked_fill(bad_query[..., None], 0.0))
    means = of_query @ (phi.mT @ value.masked_fill(excluded[..., None], 0.0))
    total = (of_query @ phi.sum(-2)[..., None]).masked_fill(undefined[..., None], 1.0)
    output = means.masked_fill(undefined[..., None], 0.0) / total
    return output.masked_fill((undefined & ~hidden.all(-1, keepdim=True))[..., None], torch.nan).to(request.query.dtype)
