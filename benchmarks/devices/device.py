"""The device that is tested and measured: the accelerator that torch finds, or the one that REGARD_GPU_DEVICE names.

``REGARD_GPU_DEVICE=cpu`` stands in where there is none: pieces are small then, and prove that they run.
"""

from __future__ import annotations

import os
import re

import torch

from regard.devices import describe_device, find_accelerator, has_float64
from regard.layers.precision import precisions

VARIABLE = "REGARD_GPU_DEVICE"
"""The environment variable that names another device."""


def find_device() -> torch.device | None:
    """The device that is named, or else the accelerator; None without one."""
    named = os.environ.get(VARIABLE)
    return torch.device(named) if named else find_accelerator()


def name_device(device: torch.device) -> str:
    """The name of a device in reports."""
    return "CPU, as a stand-in" if device.type == "cpu" else describe_device(device)


def file_name(device: torch.device) -> str:
    """The name of a device as a folder."""
    return re.sub(r"[^a-z0-9]+", "-", name_device(device).lower()).strip("-")


def is_stand_in(device: torch.device) -> bool:
    """Whether a CPU stands in for a device."""
    return device.type == "cpu"


def fastest_dtype(device: torch.device) -> torch.dtype:
    """The dtype of measurements: bfloat16 where the device multiplies it, else float32."""
    is_bf16 = not is_stand_in(device) and precisions(device).fastest == "bfloat16"
    return torch.bfloat16 if is_bf16 else torch.float32


def exact_dtype(device: torch.device) -> torch.dtype:
    """The dtype of what results are compared with."""
    return torch.float64 if has_float64(device) else torch.float32
