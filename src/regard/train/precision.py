"""The precision of the products in a training step. Weights, gradients and optimizer state are always float32."""

from __future__ import annotations

from collections.abc import Callable

import torch

from regard.errors import RefusedError, check_choice
from regard.layers.precision import PRECISIONS, precisions, say_if_slower


def autocast_dtype(precision: str) -> torch.dtype | None:
    """The dtype for ``torch.autocast`` with a precision of ``PRECISIONS``; None means float32 without autocast."""
    return torch.bfloat16 if precision == "bfloat16" else None


def choose_precision(asked: str, device: torch.device, say: Callable[[str], None], *, layer: str = "linear") -> str:
    """Return the requested precision; for "auto", the fastest one on ``device`` for this kind of ``layer``.

    Reports to ``say`` what "auto" chose, and a requested precision that is slower than float32. Raises OptionError for
    an unknown precision, RefusedError for one in which the device cannot compute the layer.
    """
    check_choice("precision", asked, ("auto", *PRECISIONS))
    if asked == "float32":
        return asked
    available = precisions(device, layer)
    if asked == "auto":
        say(f"multiplying in {available.fastest}: {available.reason}")
        return available.fastest
    if asked not in available.supported:
        raise RefusedError(
            f"this model cannot be trained in {asked} here",
            expected=" or ".join(available.supported),
            got=f"{asked}: {available.reason}",
            do='use precision="auto" (--dtype auto), the fastest supported, or precision="float32" (--dtype float32)',
        )
    say_if_slower(asked, device, say, layer=layer)
    return asked


def say_if_unsupported(kept: str, device: torch.device, say: Callable[[str], None], *, layer: str = "linear") -> None:
    """Warn through ``say`` if a run is resumed in a precision in which ``device`` cannot compute its ``layer``."""
    available = precisions(device, layer) if kept != "float32" else None
    if available is not None and kept not in available.supported:
        say(
            f"the run was started in {kept}, but {available.reason}: that layer is computed in float32 here, "
            "and the weights will differ in their last bits"
        )
