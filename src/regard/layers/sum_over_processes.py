"""The sum of a tensor over all processes of torch.distributed, differentiable.

y = sum_p x_p in every process          dL/dx_p = sum_q dL_q/dy         L_q: the loss of process q
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed


def sum_over_processes(tensor: Tensor) -> Tensor:
    """Sum ``tensor`` over all processes, each of which must call this; without others it is the tensor itself."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return tensor
    summed: Tensor = _AllReduce.apply(tensor)
    return summed


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        summed = tensor.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        summed = gradients[0].clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(summed)
        return summed
