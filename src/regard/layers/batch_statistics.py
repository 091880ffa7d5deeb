"""Statistics of a batch that several processes share, for batch norms.

    total = sum over the processes of x_p,      dL/dx_p = sum over the processes of dL_q/dtotal

So mean and variance are taken over the whole batch, and processes learn what one process learns. torch's SyncBatchNorm
does the same, on GPUs only. Ioffe and Szegedy 2015, "Batch normalization", algorithm 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, final

import torch
from torch import Tensor, distributed, nn

from regard.kernels.autograd_function import Function
from regard.layers.activation_checkpoint import is_recomputing


class BatchNorm(nn.Module, ABC):
    """A norm by mean and variance of the batch, with running averages of them.

    Where ``shared`` is True, the batch is the joint batch of all processes. Each of them must then call the module
    equally often, forward and backward.
    """

    shared: bool = False

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Normalise tokens or a map."""

    def total(self, part: Tensor) -> Tensor:
        """The sum of ``part`` over the processes that share the batch; ``part`` itself for one process."""
        if not self.shared:
            return part
        summed: Tensor = _Total.apply(part)
        return summed

    @property
    def is_averaging(self) -> bool:
        """Whether running averages are updated: in training, and once where activations are computed again."""
        return self.training and not is_recomputing()


def share_batch_norms(model: nn.Module) -> None:
    """Have every batch norm of ``model`` take the batch of all processes, if there are several."""
    several = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.shared = several


@final
class _Total(Function):
    @staticmethod
    def forward(context: Any, part: Tensor) -> Tensor:
        return _sum_over_processes(part)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return _sum_over_processes(gradient)


def _sum_over_processes(part: Tensor) -> Tensor:
    summed = part.detach().clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(summed)
    return summed
