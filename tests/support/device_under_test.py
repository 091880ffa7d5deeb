"""The device of tests that are marked gpu: the one that REGARD_GPU_DEVICE names, or else a CUDA device.

``REGARD_GPU_DEVICE=cpu`` has the CPU stand in, for tests that are written for any device.
"""

from __future__ import annotations

import os

import torch


def find_device_under_test() -> str | None:
    """The name of the device; None if there is none."""
    return os.environ.get("REGARD_GPU_DEVICE") or ("cuda" if torch.cuda.is_available() else None)
