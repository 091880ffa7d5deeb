"""Let torchvision be imported beside a torch for the CPU, which does not load the operators of its wheel for GPUs.

timm imports torchvision for classes in Python alone.
"""

from __future__ import annotations

import torch

_library: torch.library.Library | None = None  # operators are removed with it


def define_missing_operators() -> None:
    """Declare the operators that the import of torchvision looks for, if nothing else does."""
    global _library
    if _library is None and not hasattr(torch.ops.torchvision, "nms"):
        _library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
