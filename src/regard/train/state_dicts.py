"""State dicts of weights, optimizer and random number generators: plain tensors by name, without wrapper prefixes.

The state of a sharded model (FSDP) is gathered, so a checkpoint does not depend on the number of processes. Names of
optimizer state are <weight>|<kind>, such as ``output.weight|exp_avg``.

Checkpoint averaging: the mean of several states of one model. Vaswani et al. 2017, section 6.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as distributed

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


_SEPARATOR = "|"


def get_weights(model: nn.Module, tied: Mapping[str, str]) -> dict[str, Tensor]:
    """Gather the weights on the CPU, each tied weight once. Call it in every process; the main one gets the result."""
    whole: dict[str, Any] = distributed.get_model_state_dict(model, options=_full_state_options())
    return {name: tensor for name, tensor in whole.items() if name not in tied}


def set_weights(model: nn.Module, weights: Mapping[str, Tensor], tied: Mapping[str, str]) -> None:
    """Load weights from ``get_weights``'s result into the model, and restore the tied ones."""
    whole: dict[str, Any] = dict(weights) | {name: weights[origin] for name, origin in tied.items()}
    distributed.set_model_state_dict(model, whole, options=_full_state_options())


def get_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Gather the optimizer state on the CPU. Call it in every process; the main one gets the result."""
    whole: dict[str, Any] = distributed.get_optimizer_state_dict(model, optimizer, options=_full_state_options())
    return {
        name + _SEPARATOR + kind: torch.as_tensor(value)
        for name, kinds in whole.get("state", {}).items()
        for kind, value in kinds.items()
    }


def set_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load optimizer state from ``get_optimizer_state``'s result.

    A parameter without a gradient in any step has no state, such as the indexer of DSA, which has a loss of its own.
    """
    state: dict[str, dict[str, Tensor]] = {}
    for joined, tensor in tensors.items():
        name, kind = joined.rsplit(_SEPARATOR, 1)
        state.setdefault(name, {})[kind] = tensor
    groups = distributed.get_optimizer_state_dict(model, optimizer)["param_groups"]
    whole: dict[str, Any] = {"state": state, "param_groups": groups}
    distributed.set_optimizer_state_dict(model, optimizer, whole, options=_full_state_options(strict=False))


def get_rng_states(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's random number generators, on the CPU and on ``device``."""
    state = {"cpu": torch.get_rng_state()}
    return state if device.type == "cpu" else state | {device.type: torch.get_device_module(device).get_rng_state()}


def set_rng_states(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore the random number generators from ``get_rng_states``'s result."""
    torch.set_rng_state(state["cpu"])
    if device.type != "cpu" and device.type in state:
        torch.get_device_module(device).set_rng_state(state[device.type])


def _full_state_options(*, strict: bool = True) -> distributed.StateDictOptions:
    return distributed.StateDictOptions(full_state_dict=True, cpu_offload=True, strict=strict)
