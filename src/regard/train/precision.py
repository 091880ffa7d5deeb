"""In which numbers a step multiplies. Weights, their gradients and the optimizer are float32 in any case."""

from __future__ import annotations

import torch


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """What ``torch.autocast`` is to use; None for float32 throughout. ``precision`` is one of ``PRECISIONS``."""
    if precision == "float32" or (precision == "auto" and not _gains(device)):
        return None
    return torch.bfloat16


def _gains(device: torch.device) -> bool:
    """Whether the processor multiplies bfloat16 itself; else it is emulated, and slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and _has_bf16_arithmetic()


def _has_bf16_arithmetic() -> bool:
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_arm_bf16_supported")
    return any(bool(getattr(torch.cpu, probe)()) for probe in probes if hasattr(torch.cpu, probe))
