"""The sums of the steps since the last report, on the device: a step adds to them without waiting for its results.

loss, tokens        of the steps whose gradient was finite; the others are skipped
nonfinite steps     how many steps without a finite gradient the last ones were
"""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.devices import has_float64


@final
class Totals(NamedTuple):
    """Sums of steps, and the norm of the gradient in the last one, which may be NaN or infinite."""

    loss: float
    tokens: int
    nonfinite_steps: int
    norm: float


@final
class StepTotals:
    """The sums of steps on ``device``, in float64 where the device has it."""

    def __init__(self, device: torch.device) -> None:
        self._dtype = torch.float64 if has_float64(device) else torch.float32
        self._loss, self._tokens, self._nonfinite_steps, self._norm = torch.zeros(4, dtype=self._dtype, device=device)

    def add(self, loss: Float[Tensor, ""], tokens: int, norm: Float[Tensor, ""]) -> None:
        """Add a step: the sum of its losses, its tokens, and the norm of its gradient."""
        is_finite = norm.isfinite()
        self._loss = torch.where(is_finite, self._loss + loss, self._loss)
        self._tokens = torch.where(is_finite, self._tokens + tokens, self._tokens)
        self._nonfinite_steps = torch.where(is_finite, 0.0, self._nonfinite_steps + 1.0)
        self._norm = norm.to(self._dtype)

    def widened(self, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """The loss of a batch in the precision of the sums, without its graph."""
        return loss.detach().to(self._dtype)

    def read(self) -> Totals:
        """Wait for the steps so far, and return their sums."""
        sums = torch.stack([self._loss, self._tokens, self._nonfinite_steps, self._norm])
        loss, tokens, nonfinite_steps, norm = sums.tolist()
        return Totals(loss, int(tokens), int(nonfinite_steps), norm)

    def reset(self) -> None:
        """Begin the sums of loss and tokens again, after a report."""
        self._loss, self._tokens = torch.zeros_like(self._loss), torch.zeros_like(self._tokens)
