"""The check that an input is on the device of a weight, and has its dtype.

Layers that replace ``nn.Linear``, such as the layers of torch's ``quantize_dynamic``, may have no tensor as ``weight``:
they check their inputs themselves.
"""

from __future__ import annotations

from torch import Tensor

from regard.errors import DeviceError, DtypeError
from regard.kernels.autocast import is_in_autocast


def check_same_device(name: str, tensor: Tensor, weight: Tensor, *, owner: str) -> None:
    """Raise DeviceError unless the tensor, called ``name``, is on the device of a ``weight`` of ``owner``."""
    if isinstance(weight, Tensor) and tensor.device != weight.device:
        raise DeviceError(
            f"{name} and {owner} are on different devices",
            expected=str(weight.device),
            got=str(tensor.device),
            do=f"move the {name.split()[-1]}, or {owner}, with .to(device)",
        )


def check_same_dtype(name: str, tensor: Tensor, weight: Tensor, *, owner: str) -> None:
    """Raise DtypeError unless the tensor, called ``name``, has the dtype of a ``weight`` of ``owner``, or autocast is
    on, which converts both.
    """
    if isinstance(weight, Tensor) and tensor.dtype != weight.dtype and not is_in_autocast(tensor.device):
        raise DtypeError(
            f"{name} and {owner} have different dtypes",
            expected=str(weight.dtype),
            got=str(tensor.dtype),
            do=f"convert the {name.split()[-1]}, or {owner} with .to(dtype)",
        )
