"""Sums over keys for attention by feature maps: each key is summed once, for all queries that may attend to it.

    o_i = sum_j w_j s_ij v_j / sum_j w_j s_ij         s_ij = phi(q_i) . phi(k_j) + floor

Katharopoulos et al. 2020, equations 4 to 12 and 16 to 20. The sums run over the keys that query i may attend to: over
all of them for every query, or causally over j <= i; then S = sum_j w_j (phi(k_j) + floor) [v_j, 1]^T is the state of a
recurrent network, the decoding state. Time is n features value_dim; the causal form is a scan
(``implementations.scan``).

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
from jaxtyping import Bool, Float
from torch import Tensor

from regard.kernels.reference.scan import ScanRequest
from regard.kernels.select import select
from regard.kernels.tracing import is_exported_to_onnx
from regard.mechanisms.linear_state import largest_in_text

HIDDEN_LOG_WEIGHT = -(2.0**100)
"""Logarithm of the weight of a key that is not summed: below the logarithm of any other key's weight, and finite, so
that differences are numbers."""


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
    query: Float[Tensor, "batch heads queries features"],
    keys: KeyFeatures,
    before: ScaledSums,
    impl: str,
    starts: Bool[Tensor, "batch keys"] | None = None,
) -> tuple[Float[Tensor, "batch heads queries value_and_one"], ScaledSums]:
    """Sum the keys up to i for query i, after those in ``before``; there are as many keys as queries.

    Returns the products of the queries with their sums, which are divided by the largest weight among the keys of each
    query, and the sums after all keys. ``impl`` is the implementation of the scan. ``starts`` is True for keys with
    which the sums begin again, for several texts in a row.
    """
    value, log_decay, log_scale = keys.value, None, None
    if keys.log_weight is not None and before.log_scale is not None:
        scale = _running_maximum(keys.log_weight, before.log_scale, starts)
        log_decay, log_scale = (scale[..., :-1] - scale[..., 1:])[..., None], scale[..., -1]
        if starts is not None:  # there is no sum before them, and a scale may be larger than that of the text before
            log_decay = log_decay.masked_fill(starts[:, None, :, None], 0.0)
        value = value * (keys.log_weight - scale[..., 1:]).exp()[..., None]
    # Features of a query add up to 1 if there is a floor, so adding it to each feature of a key adds it to s_ij.
    key = keys.key + keys.floor if keys.floor else keys.key
    request = ScanRequest(query, key, value, log_decay, state=before.sums, starts=starts)
    products, sums = select("scan", impl, request).compute(request)
    return products, ScaledSums(sums, log_scale)


def _sum_products(keys: KeyFeatures, value: Tensor) -> Tensor:
    """Compute sum_j (phi(k_j) + floor) v_j^T over the second last dimension."""
    sums = keys.key.mT @ value
    return sums + keys.floor * value.sum(-2, keepdim=True) if keys.floor else sums


def _running_maximum(
    log_weight: Float[Tensor, "batch heads keys"],
    log_scale: Float[Tensor, "batch heads"],
    starts: Bool[Tensor, "batch keys"] | None = None,
) -> Float[Tensor, "batch heads one_and_keys"]:
    """Compute the largest logarithm so far, and then the largest up to each key, from the last of ``starts`` on."""
    logarithms = torch.cat([log_scale[..., None], log_weight.detach()], dim=2)
    if starts is not None:
        return largest_in_text(logarithms, torch.nn.functional.pad(starts, (1, 0)))
    if is_exported_to_onnx():  # which has no running maximum
        places = torch.arange(logarithms.shape[2], device=logarithms.device)
        return logarithms[:, :, None].masked_fill(places > places[:, None], -torch.inf).amax(-1)
    return logarithms.cummax(2).values
