"""Performer: softmax attention by random features, FAVOR+, so that keys are summed once for all queries.

    o_i = sum_j phi(q_i) . phi(k_j) v_j / sum_j phi(q_i) . phi(k_j)

    phi_r(x) = exp(w_r . x' - |x'|^2 / 2) / sqrt(features),    x' = x / head_dim^(1/4),    w_r ~ N(0, 1)

Choromanski et al. 2021, "Rethinking attention with Performers": the expectation of phi(q) . phi(k) over w is
exp(q . k / sqrt(head_dim)) (lemma 1, positive features); its error falls as 1 / sqrt(features), and faster while the w
of a block of head_dim features are orthogonal (section 2.3). ``features`` is d log d by default (theorem 4). Time is
n features d, memory n features; sums, the causal form and the decoding state are the same as in linear attention
(``feature_sums``).

No exponential can overflow, and nothing is added to make them safe. Factors that cancel in the quotient are left out:
the features of a query are divided by their sum, the features of a key by their largest, whose logarithm is the
logarithm of the key's weight. What remains at most 1 may underflow, so ``floor`` is added to each feature of a key:
2^-60 of its largest (2^-500 in float64), 10^13 times less than the 10^-4 to 10^-6 that implementations add. It decides
only where all keys of a query are that far from it, and then gives their weighted mean instead of 0/0.

kernel="relu" is the paper's generalised attention, phi_r(x) = max(w_r . x', 0) + 10^-3 (section 4.1, appendix B.2): a
kernel of its own, which approximates no other. The 10^-3 keeps a query with negative products only from 0/0.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim). Causal masks, masks that hide keys from
every query, and both; no bias of scores, since there are no scores, and no dropout of weights.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import check_choice, check_count, check_size, check_weights
from regard.kernels.reference.feature_attention import FeatureMap
from regard.mechanisms.feature_mechanism import FeatureMechanism

_FLOOR = {torch.float32: 2.0**-60, torch.float64: 2.0**-500}
_MAX_SEED = 2**63 - 1


@final
@explain_arguments
class Performer(FeatureMechanism):
    """Performer: attention by positive orthogonal random features of the softmax kernel, or by features of ReLU.

    Args:
        heads, head_dim: of the queries.
        features: their number; None is head_dim * ln(head_dim), rounded down.
        kernel: "softmax", or "relu" for generalised attention, which has a kernel of its own.
        seed: of the random features; None draws them from torch's generator, as weights are.
        impl: implementation: "auto", "native" or "reference" (``LinearStateMechanism``).

    The features are a buffer, ``projection`` (features, head_dim), shared by the heads and saved with the weights.
    """

    traits = replace(FeatureMechanism.traits, approximates="dot_product")  # by the softmax kernel

    projection: Float[Tensor, "features head_dim"]

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        features: int | None = None,
        kernel: Literal["softmax", "relu"] = "softmax",
        seed: int | None = None,
        impl: str = "auto",
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, impl=impl)
        features = max(1, int(head_dim * math.log(head_dim))) if features is None else features
        check_size("features", features)
        check_weights(features=features, head_dim=head_dim)
        check_choice("kernel", kernel, ("softmax", "relu"))
        self.kernel = kernel
        if kernel == "relu":
            self.traits = FeatureMechanism.traits
        self.register_buffer("projection", torch.empty(features, head_dim))
        self.redraw(seed)

    @property
    def num_features(self) -> int:
        """The number of features of a token."""
        return self.projection.shape[0]

    def redraw(self, seed: int | None = None) -> None:
        """Draw other features, from ``seed`` or from torch's generator: in training, between two steps.

        A forward pass never redraws, since a backward pass that recomputes it would see other features.
        """
        if seed is not None:
            check_count("seed", seed, minimum=0, maximum=_MAX_SEED)
        generator = None if seed is None else torch.Generator().manual_seed(int(seed))
        drawn = draw_features(self.num_features, self.head_dim, generator)
        # A new tensor, since a backward pass may still need the old one.
        self.projection = torch.empty_like(self.projection).copy_(drawn)

    def feature_map(self, dtype: torch.dtype) -> FeatureMap:
        """Return the features: exponentials, or ReLU, of w . x for x = tokens / head_dim^(1/4)."""
        projection, scale = self.projection.to(dtype) * self.head_dim**-0.25, self.head_dim**-0.5
        if self.kernel == "relu":
            return FeatureMap("relu", projection)
        return FeatureMap("exponential", projection, norm_factor=0.5 * scale, floor=_FLOOR[dtype])

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        sizes = f"heads={self.heads}, head_dim={self.head_dim}, features={self.num_features}"
        return f"{sizes}, kernel={self.kernel!r}, impl={self.impl!r}"


def draw_features(
    features: int, head_dim: int, generator: torch.Generator | None
) -> Float[Tensor, "features head_dim"]:
    """Draw vectors that are each normal with unit variance, and orthogonal within blocks of ``head_dim``, in float64.

    The directions of a block are the columns of a random rotation: Q of a Gaussian matrix, with the signs for which R
    has a positive diagonal, is uniformly distributed (Mezzadri 2007, section 4). The lengths are drawn apart.
    """
    blocks = -(-features // head_dim)
    rotation, upper = torch.linalg.qr(_draw_normal(generator, blocks, head_dim, head_dim))
    rotation = rotation * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    lengths = torch.linalg.vector_norm(_draw_normal(generator, features, head_dim), dim=-1)
    return rotation.mT.flatten(0, 1)[:features] * lengths[:, None]


def _draw_normal(generator: torch.Generator | None, *sizes: int) -> Tensor:
    """Draw normal numbers on the CPU, so that a seed has the same ones for every device."""
    return torch.randn(sizes, dtype=torch.float64, device="cpu", generator=generator)
