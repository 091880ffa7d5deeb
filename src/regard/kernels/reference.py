"""impl "reference": scaled dot-product attention in plain torch, on any device.

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d)) V            Vaswani et al. 2017, equation 1

It materialises the weights in ``attention`` and takes queries in tiles in ``observe``; it refuses nothing.
"""

from __future__ import annotations

from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.contract import Observation
from regard.kernels import scored, statistics
from regard.kernels.implementation import Implementation
from regard.kernels.request import Request


@final
class Reference(Implementation):
    """Readable, exact, and the one the others are measured against."""

    name: ClassVar[str] = "reference"

    def unavailable(self) -> str | None:
        """None: plain torch runs on every device."""
        return None

    def details(self) -> str:
        """Torch's version, and that operations are not fused."""
        return f"torch {torch.__version__}, one operation after another"

    def refuses(self, request: Request) -> str | None:
        """Nothing."""
        del request
        return None

    def attention(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Equation 1, with all weights in memory."""
        return scored.attend(scored.pose_dot_product(request), dropout=request.dropout, dtype=request.query.dtype)

    def refuses_to_observe(self, request: Request) -> str | None:
        """Nothing."""
        del request
        return None

    def observe(self, request: Request, top: int, rows: Tensor | None) -> Observation:
        """Equation 1 and its statistics, in memory linear in length."""
        return statistics.observe(scored.pose_dot_product(request), top=top, rows=rows, dtype=request.query.dtype)
