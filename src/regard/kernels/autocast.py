"""Autocast queries that work on every device, including those without autocast such as "meta"."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def disable_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context manager that disables autocast on a device."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def is_in_autocast(device: torch.device) -> bool:
    """Whether autocast is enabled on a device."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def to_autocast_dtype(tokens: Tensor) -> Tensor:
    """Cast float32 tokens as autocast would in each product; unchanged without autocast.

    For tokens that several products read: autocast casts them again for each, and their gradients back one by one.
    """
    if tokens.dtype != torch.float32 or not is_in_autocast(tokens.device):
        return tokens
    return tokens.to(torch.get_autocast_dtype(tokens.device.type))
