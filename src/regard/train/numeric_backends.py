"""The numeric backends of a run, which follow from the machine and its environment: saved with the run, restored on
resume.

The last bits of the weights depend on them: a run that goes on with another version of regard, on another machine or
with other environment variables may have others.

    isa       the instruction set of the attention kernels
    linear    the library of float32 matrix products in linear layers, "+own" if it is beside regard's own kernels

The precision of the products in a training step. Weights, gradients and optimizer state are always float32.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from regard.errors import RefusedError, check_choice
from regard.kernels import extension, support
from regard.layers import projection
from regard.layers.precision import note_if_slower, precisions
from regard.log import log
from regard.number_formats import PRECISIONS


def autocast_dtype(precision: str) -> torch.dtype | None:
    """The dtype for ``torch.autocast`` with a precision of ``PRECISIONS``; None means float32 without autocast."""
    return torch.bfloat16 if precision == "bfloat16" else None


def choose_precision(precision: str, device: torch.device, *, layer: str = "linear") -> str:
    """Return the requested precision; for "auto", the fastest one on ``device`` for this kind of ``layer``.

    Notes what "auto" chose, and a requested precision that is slower than float32. Raises OptionError for
    an unknown precision, RefusedError for one in which the device cannot compute the layer.
    """
    check_choice("numeric precision", precision, ("auto", *PRECISIONS))
    if precision == "float32":
        return precision
    available = precisions(device, layer)
    if precision == "auto":
        log.info(f"multiplying in {available.fastest}: {available.reason}")
        return available.fastest
    if precision not in available.supported:
        raise RefusedError(
            f"this model cannot be trained in {precision} here",
            expected=" or ".join(available.supported),
            got=f"{precision}: {available.reason}",
            do='use `precision="auto"`, the fastest supported, or `precision="float32"`',
        )
    note_if_slower(precision, device, layer=layer)
    return precision


def note_if_unsupported(kept: str, device: torch.device, *, layer: str = "linear") -> None:
    """Note it if a run is resumed in a precision in which ``device`` cannot compute its ``layer``."""
    available = precisions(device, layer) if kept != "float32" else None
    if available is not None and kept not in available.supported:
        log.info(
            f"the run was started in {kept}, but {available.reason}: that layer is computed in float32 here, "
            "and the weights will differ in their last bits"
        )


_ENVIRONMENT_VARIABLES = {"isa": "REGARD_ISA", "linear": "REGARD_LINEAR"}


def current_backends() -> dict[str, str]:
    """Return the backends that this process uses on its CPU. Raises OptionError for variables with unknown values."""
    if not extension.missing_reason:
        support.check_isa()
    return {
        "isa": "none" if extension.missing_reason else extension.native.isa(),
        "linear": projection.linear_backend(),
    }


def restore_backends(kept: Mapping[str, str]) -> None:
    """Select the backends that the run was started with, or report a difference as notes.

    Sets this process's environment variables unless they are set already. Call it before the first matrix product: a
    process chooses its backends only once.
    """
    available = {
        "isa": () if extension.missing_reason else extension.native.isas(),
        "linear": projection.linear_backends(),
    }
    for name, variable in _ENVIRONMENT_VARIABLES.items():
        if kept.get(name) in available[name] and not os.environ.get(variable):
            os.environ[variable] = kept[name]
    present = current_backends()
    if present != dict(kept):
        log.info(
            f"the run was started with {_format_backends(kept)}; this process uses {_format_backends(present)}: "
            "the weights will differ in their last bits"
        )


def _format_backends(used: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in used.items()) or "no CPU kernels"
