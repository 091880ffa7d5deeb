"""The loss of pairs: each picture of a batch finds its text, and each text its picture; processes may share a batch.

    z = s v t^T                                     v (pairs, size), t (pairs, size) of length 1, s = exp(logit_scale)
    L = sum_i (CE(z[i, :], i) + CE(z[:, i], i)) / 2         a process sums over its own rows i

Radford et al. 2021, section 2.3 and figure 3; as there, s is at most 100. Pairs with the same picture or the same text
are not compared with each other: their logits are left out of both softmaxes, since they are no mistakes.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

MAX_SCALE = 100.0


def pair_loss(
    pictures: Float[Tensor, "pairs size"],
    texts: Float[Tensor, "pairs size"],
    scale: Float[Tensor, ""],
    own: Int[Tensor, " rows"],
    same: Bool[Tensor, "rows pairs"],
) -> Float[Tensor, ""]:
    """The loss summed over the rows ``own``, in float32 or wider; ``same`` are the pairs that are no mistakes."""
    with torch.autocast(pictures.device.type, enabled=False):
        pictures, texts = (one if one.dtype == torch.float64 else one.float() for one in (pictures, texts))
        scale = scale.to(pictures.dtype).clamp(max=MAX_SCALE)
        left_out = same.clone()
        left_out[torch.arange(len(own), device=own.device), own] = False
        logits = [scale * one[own] @ other.T for one, other in ((pictures, texts), (texts, pictures))]
        losses = [
            functional.cross_entropy(one.masked_fill(left_out, -torch.inf), own, reduction="sum") for one in logits
        ]
    return (losses[0] + losses[1]) / 2
