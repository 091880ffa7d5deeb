"""Autocast, asked for in a way that every device can answer: "meta" has none."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def disable_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which autocast is not in force on a device."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def is_in_autocast(device: torch.device) -> bool:
    """Whether autocast is in force on a device."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
