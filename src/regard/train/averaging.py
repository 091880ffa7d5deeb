"""The mean of several states of one model: Vaswani et al. 2017, section 6.1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


def averaged(states: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each weight, summed in float64, in the weights' own dtype. One state is held at a time."""
    sums: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    count = 0
    for state in states:
        count += 1
        for name, tensor in state.items():
            dtypes[name] = tensor.dtype
            sums[name] = sums[name] + tensor if name in sums else tensor.double()
    return {name: (total / count).to(dtypes[name]) for name, total in sums.items()}
