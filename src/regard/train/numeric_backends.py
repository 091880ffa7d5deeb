"""What a run multiplies with, where a machine is measured to tell: kept with the run, and taken again when it goes on.

The last bits of the weights depend on it. A machine that is busy, or whose two ways are about as fast as each other,
may be measured otherwise the next time.

    isa       the instruction set of the attention kernels
    linear    the library of float32 products in linear layers
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from regard.kernels import extension, support
from regard.layers import projection

_ENVIRONMENT_VARIABLES = {"isa": "REGARD_ISA", "linear": "REGARD_LINEAR"}


def current_backends() -> dict[str, str]:
    """What this process multiplies with on its CPU. Raises OptionError for variables that name what there is not."""
    if not extension.missing_reason:
        support.check_isa()
    return {
        "isa": "none" if extension.missing_reason else extension.native.isa(),
        "linear": projection.matmul_library(),
    }


def restore_backends(kept: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Multiply with what a run was begun with, before anything is multiplied; where that cannot be, say so.

    The variables of the process are set, unless they have been: what is chosen is chosen once in a process.
    """
    here = {"isa": () if extension.missing_reason else extension.native.isas(), "linear": projection.matmul_libraries()}
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
    return ", ".join(f"{name} {one}" for name, one in used.items()) or "no kernels of a CPU"
