"""In which precision a training step multiplies. Weights, their gradients and the optimizer are float32 in any case."""

from __future__ import annotations

from collections.abc import Callable

import torch

from regard.errors import RefusedError, check_choice
from regard.layers.precision import PRECISIONS, precisions, say_if_slower


def autocast_dtype(precision: str) -> torch.dtype | None:
    """What ``torch.autocast`` is to use for a precision of ``PRECISIONS``; None for float32 throughout."""
    return torch.bfloat16 if precision == "bfloat16" else None


def choose_precision(asked: str, device: torch.device, say: Callable[[str], None], *, layer: str = "linear") -> str:
    """The precision that was asked for; for "auto" the fastest on ``device`` for a model of this kind of ``layer``.

    What was chosen is said, and what is slower than float32.

    Raises OptionError for what is no precision, RefusedError for one that the device does not compute the layer in.
    """
    check_choice("precision", asked, ("auto", *PRECISIONS))
    if asked == "float32":
        return asked
    found = precisions(device, layer)
    if asked == "auto":
        say(f"multiplying in {found.fastest}: {found.reason}")
        return found.fastest
    if asked not in found.supported:
        raise RefusedError(
            f"this model cannot be trained in {asked} here",
            expected=" or ".join(found.supported),
            got=f"{asked}: {found.reason}",
            do="leave out --dtype, which takes the fastest that runs, or take --dtype float32",
        )
    say_if_slower(asked, device, say, layer=layer)
    return asked


def say_if_unsupported(kept: str, device: torch.device, say: Callable[[str], None], *, layer: str = "linear") -> None:
    """Say so where a run goes on in a precision that ``device`` does not compute its ``layer`` in."""
    found = precisions(device, layer) if kept != "float32" else None
    if found is not None and kept not in found.supported:
        say(
            f"the run was begun in {kept}, and {found.reason}: that layer is computed in float32 here, "
            "and weights will differ in their last bits"
        )
