"""Linear attention: a kernel feature map in place of the softmax, so that keys are summed once for all queries.

    o_i = phi(q_i)^T S_i / phi(q_i)^T z_i        S_i = sum_j phi(k_j) v_j^T, z_i = sum_j phi(k_j), phi(x) = elu(x) + 1

Katharopoulos et al. 2020, "Transformers are RNNs: fast autoregressive Transformers with linear attention", equations 4,
5 and 7. The sums run over the keys that query i may attend to: over all of them for every query, or causally over
j <= i (equations 8 to 12); then S and z are the state of a recurrent network (equations 16 to 20), the decoding state.
Time is n d^2 and memory n d (``feature_sums``). phi is at least 2^-100, in float64 2^-900, so that the quotient exists:
keys whose elements are all below -69, or -623, have equal weights and no gradient.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim), S (batch, heads, head_dim, value_dim).
Other masks, a bias of scores (there are no scores) and dropout of weights are not supported.
"""

from __future__ import annotations

from typing import final

import torch

from regard.arguments import explain_arguments
from regard.kernels.reference.feature_attention import FeatureMap
from regard.mechanisms.feature_mechanism import FeatureMechanism

_MIN_FEATURE = {torch.float32: 2.0**-100, torch.float64: 2.0**-900}
"""Lower bound of phi: if every feature of every key were 0, the quotient would be 0/0. It leaves room for gradients,
which are divided by sums of features.
"""


@final
@explain_arguments
class Linear(FeatureMechanism):
    """Linear attention: phi(q)^T sum phi(k) v^T / phi(q)^T sum phi(k), with phi(x) = elu(x) + 1.

    ``impl`` is the implementation: "auto", "native" or "reference" (``LinearStateMechanism``).
    """

    def __init__(self, *, heads: int, head_dim: int, impl: str = "auto") -> None:
        super().__init__(heads=heads, head_dim=head_dim, impl=impl)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"heads={self.heads}, head_dim={self.head_dim}, impl={self.impl!r}"

    @property
    def num_features(self) -> int:
        """The number of features of a token: head_dim."""
        return self.head_dim

    def feature_map(self, dtype: torch.dtype) -> FeatureMap:
        """Return phi; that of a query is divided by its largest element, which cancels in the quotient."""
        return FeatureMap("elu", None, floor=_MIN_FEATURE[dtype])
