"""Checkpoint averaging: the mean of several states of one model. Vaswani et al. 2017, section 6.1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from regard.errors import OptionError, ShapeError, check_kind, short_repr
from regard.tensors import check_tensor


def average_states(states: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Average state dicts of one model: the mean of each weight, summed in float64, returned in the weight's dtype.

    ``states`` may be an iterator; only one state is in memory at a time. Raises OptionError for a state that is not a
    mapping and for no states, DtypeError for a weight that is not a tensor, ShapeError for states of different models.
    """
    sums: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    count = 0
    for state in _check_states(states):
        for name, tensor in state.items():
            dtypes[name] = tensor.dtype
            sums[name] = sums[name] + tensor if count else tensor.double()
        count += 1
    return {name: (total / count).to(dtypes[name]) for name, total in sums.items()}


def _check_states(states: Any) -> Iterator[Mapping[str, Tensor]]:
    """Yield each state after checking that it has the weights of the first."""
    kinds: dict[str, tuple[torch.Size, torch.device]] = {}
    count = 0
    for state in states if isinstance(states, Iterable) and not isinstance(states, Tensor) else [states]:
        check_kind("state", state, Mapping, do="pass weights by their names, as [model.state_dict(), ...]")
        for name, tensor in state.items():
            check_tensor(f"the weight {short_repr(name)}", tensor, "a tensor")
        own = {name: (tensor.shape, tensor.device) for name, tensor in state.items()}
        kinds = kinds if count else own
        if own != kinds:
            names = sorted(str(name) for name in own.keys() | kinds.keys() if own.get(name) != kinds.get(name))
            raise ShapeError(
                "the states are of different models",
                expected="the same weights in each, with the same shapes, on one device",
                got=f"differences in {', '.join(names[:5])}",
                do="average states of one run",
            )
        count += 1
        yield state
    if count == 0:
        raise OptionError(
            "there are no states to average", expected="one or more", got="none", do="pass [model.state_dict(), ...]"
        )
