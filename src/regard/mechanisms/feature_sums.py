"""Sums over keys for attention by feature maps: each key is summed once, for all queries that may attend to it.

    o_i = sum_j w_j s_ij v_j / sum_j w_j s_ij         s_ij = phi(q_i) . phi(k_j) + floor

Katharopoulos et al. 2020, equations 4 to 12 and 16 to 20. The sums run over the keys that query i may attend to: over
all of them for every query, or causally over j <= i; then S = sum_j w_j (phi(k_j) + floor) [v_j, 1]^T is the state of a
recurrent network, the decoding state. Time is n features value_dim; the causal form processes chunks of queries, with
explicit pairs inside a chunk and the state before the chunk for all earlier keys.

Weights w_j of keys may be far too large or too small for a number, so their logarithms are passed. S is stored divided
by the largest weight in it, and the sums of a causal query by the largest among the keys that it may attend to: the
factor cancels in the quotient, and no later key can change it. In the recurrent form it is a decay,

    S_t = exp(r_(t-1) - r_t) S_(t-1) + exp(ln w_t - r_t) (phi(k_t) + floor) [v_t, 1]^T,    r_t = max(r_(t-1), ln w_t).

Shapes: query features (batch, heads, queries, features), key features (batch, heads, keys, features), S (batch, heads,
features, value_dim + 1).
"""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

CHUNK = 64
"""Queries of a chunk of the causal form."""
HIDDEN_LOG_WEIGHT = -(2.0**100)
"""Logarithm of the weight of a key that is not summed: below that of any other key, and finite, so that differences
are numbers."""


@final
class KeyFeatures(NamedTuple):
    """Features of keys, and values with a 1 appended, all finite; values of keys that are not summed are 0, and so is
    the number appended to them. ``log_weight`` is None if all keys have the same weight. If ``floor`` is not 0, the
    features of each query add up to 1.
    """

    key: Float[Tensor, "batch heads keys features"]
    value: Float[Tensor, "batch heads keys value_and_one"]
    log_weight: Float[Tensor, "batch heads keys"] | None
    floor: float


@final
class ScaledSums(NamedTuple):
    """S, divided by exp(``log_scale``); ``log_scale`` is None if all keys have the same weight."""

    sums: Float[Tensor, "batch heads features value_and_one"]
    log_scale: Float[Tensor, "batch heads"] | None


def add_keys(keys: KeyFeatures, before: ScaledSums) -> ScaledSums:
    """Add keys to the sums."""
    if keys.log_weight is None or before.log_scale is None:
        return ScaledSums(before.sums + _sum_products(keys, keys.value), None)
    log_scale = _running_maximum(keys.log_weight, before.log_scale)[..., -1]
    value = keys.value * (keys.log_weight - log_scale[..., None]).exp()[..., None]
    decay = (before.log_scale - log_scale).exp()[..., None, None]
    return ScaledSums(torch.addcmul(_sum_products(keys, value), before.sums, decay), log_scale)


def sum_prefixes(
    query: Float[Tensor, "batch heads queries features"], keys: KeyFeatures, before: ScaledSums
) -> tuple[Float[Tensor, "batch heads queries value_and_one"], ScaledSums]:
    """Sum the keys up to i for query i, after those in ``before``; there are as many keys as queries.

    Returns the products of the queries with their sums, which are divided by the largest weight among the keys of each
    query, and the sums after all keys.
    """
    queries, query, value = query.shape[2], _split_chunks(query), _split_chunks(keys.value)
    keys = keys._replace(key=_split_chunks(keys.key))
    scores = (query @ keys.key.mT + keys.floor).tril()
    if keys.log_weight is None or before.log_scale is None:
        totals = _sum_products(keys, value).cumsum(2) + before.sums[:, :, None]
        totals = torch.cat([before.sums[:, :, None], totals], dim=2)
        products = scores @ value + query @ totals[:, :, :-1]
        return products.flatten(2, 3)[:, :, :queries], ScaledSums(totals[:, :, -1], None)
    log_weight = _split_chunks(keys.log_weight, HIDDEN_LOG_WEIGHT)
    scale = _running_maximum(log_weight.flatten(2), before.log_scale)[..., 1:].unflatten(2, (-1, CHUNK))
    value = value * (log_weight - scale).exp()[..., None]
    scores = scores * (scale[..., None, :] - scale[..., None]).clamp(max=0.0).exp()
    last = scale[..., -1:]
    totals = _sum_products(keys, value * (scale - last).exp()[..., None])
    scales = torch.cat([before.log_scale[..., None], last[..., 0]], dim=2)  # of the state before each chunk, and after
    decays = (scales[..., :-1] - scales[..., 1:]).exp()[..., None, None]
    states = [before.sums]
    for total, decay in zip(totals.unbind(2), decays.unbind(2), strict=True):
        states.append(torch.addcmul(total, states[-1], decay))
    since = (scales[..., :-1, None] - scale).exp()[..., None]
    earlier = torch.stack(states[:-1], dim=2) if len(states) > 1 else totals
    products = scores @ value + (query @ earlier) * since
    return products.flatten(2, 3)[:, :, :queries], ScaledSums(states[-1], scales[..., -1])


def _split_chunks(side: Tensor, fill: float = 0.0) -> Tensor:
    """Split the tokens into chunks, the last one filled up: (batch, heads, chunks, chunk, ...)."""
    missing = -side.shape[2] % CHUNK
    if missing:
        side = torch.nn.functional.pad(side, (0, 0) * (side.dim() - 3) + (0, missing), value=fill)
    return side.unflatten(2, (-1, CHUNK))


def _sum_products(keys: KeyFeatures, value: Tensor) -> Tensor:
    """Compute sum_j (phi(k_j) + floor) v_j^T over the second last dimension."""
    sums = keys.key.mT @ value
    return sums + keys.floor * value.sum(-2, keepdim=True) if keys.floor else sums


def _running_maximum(
    log_weight: Float[Tensor, "batch heads keys"], log_scale: Float[Tensor, "batch heads"]
) -> Float[Tensor, "batch heads one_and_keys"]:
    """Compute the largest logarithm so far, and then the largest up to each key."""
    return torch.cat([log_scale[..., None], log_weight.detach()], dim=2).cummax(2).values
