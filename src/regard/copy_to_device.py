"""Copies of tensors from the CPU to a GPU that let both go on computing."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.tensors import has_values

_PINNED = ("cuda", "xpu")
"""Kinds of devices that copy from pinned memory while they compute."""


def copy_to(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on ``device``. From a CPU to a GPU it is copied from pinned memory, while both go on computing.

    Later operations of the device wait for the copy; the CPU does not, and may make the next batch meanwhile. Torch's
    ``to`` from other memory waits until the device has done all that it was asked before.
    """
    if device.type not in _PINNED or tensor.device.type != "cpu" or not has_values(tensor):
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
