"""Retention: linear attention whose state decays by a constant factor for each head.

    S_t = gamma S_(t-1) + k_t v_t^T,    o_t = scale S_t^T q_t        gamma_h = 1 - 2^(-5 - h)
    o_i = scale sum_{j <= i} gamma^(i - j) (q_i . k_j) v_j

Sun et al. 2023, "Retentive network: a successor to Transformer for large language models", equations 5 and 6, and the
decays of its heads h = 0, 1, ... from equation 8. Lightning attention (Qin et al. 2024) is the same with other decays.
The rotation of queries and keys by their positions (equation 3) is a position of the layer, ``positions.Rotary``, and
the norm of each head and the gate around it belong to the layer as well. Distances count visible tokens.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim).

Time is n * head_dim * value_dim and memory n * (head_dim + value_dim); decoding
carries head_dim * value_dim numbers for each head, however long the text. A state has no scores, so it cannot take a
bias or dropout of weights, nor a mask that shows other keys to other queries, beside the causal one
(``LinearStateMechanism``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_number, short_repr
from regard.kernels.reference.scan import ScanRequest
from regard.mechanisms.scan_mechanism import ScanMechanism


@final
@explain_arguments
class Retention(ScanMechanism):
    """Retention: scale * sum_{j <= i} gamma^(i - j) (q_i . k_j) v_j, with a constant gamma for each head.

    Args:
        heads, head_dim: of the queries.
        decays: gamma of each head, above 0 and at most 1; None is 1 - 2^(-5 - h).
        scale: factor of the queries; None is 1/sqrt(head_dim).
        impl: "auto", "native" or "reference" (``LinearStateMechanism``).
    """

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        decays: Sequence[float] | None = None,
        scale: float | None = None,
        impl: str = "auto",
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, scale=scale, impl=impl)
        decays = tuple(1.0 - 2.0 ** (-5 - head) for head in range(heads)) if decays is None else decays
        self.decays = _check_decays(decays, heads)

    def make_scan(
        self,
        query: Float[Tensor, "batch heads keys head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys value_dim"],
        inputs: Mapping[str, Tensor],
    ) -> ScanRequest:
        """Return the tokens with the logarithm of gamma at each."""
        logarithms = [math.log(decay) for decay in self.decays]
        log_decay = torch.tensor(logarithms, dtype=key.dtype, device=key.device)
        return ScanRequest(query, key, value, log_decay[:, None, None].expand(*key.shape[:3], 1))

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"{super().extra_repr()}, decays=({', '.join(f'{decay:.6g}' for decay in self.decays)})"


def _check_decays(decays: Sequence[float], heads: int) -> tuple[float, ...]:
    """Return the decays as numbers. Raises OptionError unless there is one above 0 and at most 1 for each head."""
    if not isinstance(decays, Sequence) or len(decays) != heads:
        raise OptionError(
            "decays do not fit the heads",
            expected=f"a sequence of {heads} numbers, one for each head",
            got=short_repr(decays),
            do="leave decays out for those of the paper",
        )
    for decay in decays:
        check_number("decays", decay, above=0.0, maximum=1.0)
    return tuple(float(decay) for decay in decays)
