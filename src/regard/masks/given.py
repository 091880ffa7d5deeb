"""What a caller gives to a mask, as a tensor: tensors, arrays, and lists of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.arrays import tensor_of_numpy
from regard.errors import DtypeError


def as_tensor(given: Any, name: str, expected: str) -> Tensor:
    """``given`` as a tensor. Raises DtypeError, with ``name`` and what was ``expected``, where it cannot be one."""
    try:
        return tensor_of_numpy(given) if isinstance(given, np.ndarray) else torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise DtypeError(
            f"{name} cannot be made a tensor",
            expected=expected,
            got=f"{type(given).__name__}: {str(given)[:60]}",
            do="give a tensor, an array, or a list of rows of one length",
        ) from error
