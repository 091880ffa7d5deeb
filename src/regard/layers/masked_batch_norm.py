"""Batch norm of sequences of different lengths: tokens that are padding do not count.

    y = (x - mean) / sqrt(variance + epsilon) * weight + bias           mean, variance of each channel

In training these are of the visible tokens of the joint batch of all processes, and running averages of them are kept;
in evaluation they are the running averages. Ioffe and Szegedy 2015, algorithm 1; the running variance is the sample
variance (n - 1), as in torch. Without hidden tokens it equals ``torch.nn.BatchNorm1d``. (batch, length, width) -> the
same shape; hidden tokens become 0.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import check_number, check_size
from regard.layers.batch_statistics import BatchNorm
from regard.layers.input_checks import check_visible_tokens


@final
@explain_arguments
class MaskedBatchNorm(BatchNorm):
    """Batch norm of the visible tokens.

    ``epsilon`` is added to the variance; ``momentum`` is the weight of a batch in the running averages.
    """

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, width: int, *, epsilon: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        check_size("width", width)
        check_number("epsilon", epsilon, minimum=0.0)
        check_number("momentum", momentum, minimum=0.0, maximum=1.0)
        self.epsilon, self.momentum = float(epsilon), float(momentum)
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_variance", torch.ones(width))

    def forward(
        self, tokens: Float[Tensor, "batch length width"], visible: Bool[Tensor, "batch length"] | None = None
    ) -> Float[Tensor, "batch length width"]:
        """Normalise tokens; ``visible`` says which are not padding, None is all.

        Raises ShapeError, DtypeError or DeviceError for tokens that do not fit.
        """
        check_visible_tokens(tokens, visible, self.weight.shape[0], self.weight)
        if visible is None:
            visible = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        is_visible = visible[..., None]
        tokens = tokens.masked_fill(~is_visible, 0.0)
        mean, variance = self.running_mean, self.running_variance
        if self.training:
            mean, variance = self._statistics(tokens.to(mean), is_visible)
        scale = self.weight * (variance + self.epsilon).rsqrt()
        return ((tokens - mean) * scale + self.bias).masked_fill(~is_visible, 0.0).to(tokens.dtype)

    def _statistics(
        self, tokens: Float[Tensor, "batch length width"], is_visible: Bool[Tensor, "batch length 1"]
    ) -> tuple[Float[Tensor, " width"], Float[Tensor, " width"]]:
        """Compute mean and variance of the visible tokens, and add them to the running averages."""
        count = self.total(is_visible.sum())
        divisor = count.clamp_min(1)
        mean = self.total(tokens.sum(dim=(0, 1))) / divisor
        variance = self.total((tokens - mean).masked_fill(~is_visible, 0.0).square().sum(dim=(0, 1))) / divisor
        if not self.is_averaging:
            return mean, variance
        with torch.no_grad():
            share = self.momentum * (count > 0).to(mean)  # a batch without tokens says nothing
            of_sample = variance * divisor / (count - 1).clamp_min(1)
            self.running_mean.lerp_(mean.detach(), share)
            self.running_variance.lerp_(of_sample.detach(), share)
        return mean, variance

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"{self.weight.shape[0]}, epsilon={self.epsilon}, momentum={self.momentum}"
