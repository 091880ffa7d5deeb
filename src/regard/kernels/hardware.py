"""``Hardware``: the facts about a device from which an implementation is chosen.

They are a value, so that the choice for a GPU can be asked for on a machine without one: a request whose ``hardware``
is set is chosen for as if its tensors were on such a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import final

import torch


@final
@dataclass(frozen=True)
class Hardware:
    """A kind of device.

    Args:
        type: the type of ``torch.device``: "cpu", "cuda" (also for AMD), "xpu", "mps", "meta", ...
        capability: compute capability of an NVIDIA GPU, such as (9, 0); None for other devices.
        has_triton: whether Triton, which compiles kernels for it, is installed.
    """

    type: str
    capability: tuple[int, int] | None = None
    has_triton: bool = False

    def __str__(self) -> str:
        if self.capability is None:
            return self.type
        return f"{self.type} (sm_{self.capability[0]}{self.capability[1]})"

    def is_at_least(self, major: int, minor: int = 0) -> bool:
        """Whether it is an NVIDIA GPU of at least this compute capability."""
        return self.capability is not None and self.capability >= (major, minor)


@cache
def describe_hardware(device: torch.device) -> Hardware:
    """Return the facts about a device of this machine."""
    capability = None
    if device.type == "cuda" and torch.version.hip is None and torch.cuda.is_available():
        capability = torch.cuda.get_device_capability(device)
    return Hardware(device.type, capability, device.type in ("cuda", "xpu") and find_spec("triton") is not None)
