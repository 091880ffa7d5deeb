"""Batch norm of the channels of a map, in training by the pictures of all processes.

    y = (x - mean) / sqrt(variance + epsilon) * weight + bias           mean, variance of each channel

In training these are of all pictures and places of the batch, and running averages of them are kept; in evaluation they
are the running averages. Ioffe and Szegedy 2015, algorithms 1 and 2; the running variance divides by n - 1.
(batch, channels, height, width) -> the same shape. It computes what ``torch.nn.BatchNorm2d`` does, and differs where
activations are computed again, which counts no batch twice, and where processes share a batch.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.arguments import explain_arguments
from regard.errors import check_flag, check_size
from regard.layers.batch_statistics import BatchNorm

_EPSILON, _MOMENTUM = 1e-5, 0.1


@final
@explain_arguments
class BatchNorm2d(BatchNorm):
    """Batch norm of channels.

    ``counted`` adds the buffer ``num_batches_tracked`` that torch's module has, for files that hold it.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor | None

    def __init__(self, channels: int, *, counted: bool = False) -> None:
        super().__init__()
        check_size("channels", channels)
        check_flag("counted", counted)
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0) if counted else None)

    def forward(self, features: Float[Tensor, "batch channels height width"]) -> Tensor:
        """Normalise a map to the same shape."""
        running = (self.running_mean, self.running_var)
        if self.is_averaging and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        if self.training and self.shared:
            return self._normalise_together(features)
        if self.training and not self.is_averaging:
            running = (self.running_mean.clone(), self.running_var.clone())  # autograd stores the same as before
        return functional.batch_norm(
            features, *running, self.weight, self.bias, training=self.training, momentum=_MOMENTUM, eps=_EPSILON
        )

    def _normalise_together(self, features: Tensor) -> Tensor:
        wide = features.to(self.running_mean)
        dims = (0, 2, 3)
        count = self.total(wide.new_tensor(float(wide.numel() // wide.shape[1])))
        mean = self.total(wide.sum(dims)) / count
        centred = wide - mean[:, None, None]
        variance = self.total(centred.square().sum(dims)) / count
        if self.is_averaging:
            with torch.no_grad():
                self.running_mean.lerp_(mean, _MOMENTUM)
                self.running_var.lerp_(variance * count / (count - 1).clamp_min(1), _MOMENTUM)
        scale = self.weight * (variance + _EPSILON).rsqrt()
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(features.dtype)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return str(self.weight.shape[0])
