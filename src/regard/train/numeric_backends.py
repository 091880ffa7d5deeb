"""The numeric backends of a run, which follow from the machine and its environment: saved with the run, restored on
resume.

The last bits of the weights depend on them: a run that goes on with another version of regard, on another machine or
with other environment variables may have others.

    isa       the instruction set of the attention kernels
    linear    the library of float32 matrix products in linear layers, "+own" if it is beside regard's own kernels
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from regard.kernels import extension, support
from regard.layers import projection

_ENVIRONMENT_VARIABLES = {"isa": "REGARD_ISA", "linear": "REGARD_LINEAR"}


def current_backends() -> dict[str, str]:
    """Return the backends that this process uses on its CPU. Raises OptionError for variables with unknown values."""
    if not extension.missing_reason:
        support.check_isa()
    return {
        "isa": "none" if extension.missing_reason else extension.native.isa(),
        "linear": projection.linear_backend(),
    }


def restore_backends(kept: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Select the backends that the run was started with, or report a difference to ``say``.

    Sets this process's environment variables unless they are set already. Call it before the first matrix product: a
    process chooses its backends only once.
    """
    here = {"isa": () if extension.missing_reason else extension.native.isas(), "linear": projection.linear_backends()}
    for name, variable in _ENVIRONMENT_VARIABLES.items():
        if kept.get(name) in here[name] and not os.environ.get(variable):
            os.environ[variable] = kept[name]
    now = current_backends()
    if now != dict(kept):
        say(
            f"the run was started with {_format_backends(kept)}; this process uses {_format_backends(now)}: "
            "the weights will differ in their last bits"
        )


def _format_backends(used: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {one}" for name, one in used.items()) or "no CPU kernels"
