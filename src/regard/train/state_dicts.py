"""State dicts of weights, optimizer and random number generators: plain tensors by name, without wrapper prefixes.

The state of a sharded model (FSDP) is gathered, so a checkpoint does not depend on the number of processes. Names of
optimizer state are <weight>|<kind>, such as ``output.weight|exp_avg``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as distributed

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
    """Load optimizer state from ``get_optimizer_state``'s result."""
    state: dict[str, dict[str, Tensor]] = {}
    for joined, tensor in tensors.items():
        name, kind = joined.rsplit(_SEPARATOR, 1)
        state.setdefault(name, {})[kind] = tensor
    groups = distributed.get_optimizer_state_dict(model, optimizer)["param_groups"]
    whole: dict[str, Any] = {"state": state, "param_groups": groups}
    distributed.set_optimizer_state_dict(model, optimizer, whole, options=_full_state_options())


def get_rng_states(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's random number generators, on the CPU and on ``device``."""
    state = {"cpu": torch.get_rng_state()}
    return state if device.type == "cpu" else state | {device.type: torch.get_device_module(device).get_rng_state()}


def set_rng_states(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore the random number generators from ``get_rng_states``'s result."""
    torch.set_rng_state(state["cpu"])
    if device.type != "cpu" and device.type in state:
        torch.get_device_module(device).set_rng_state(state[device.type])


def _full_state_options() -> distributed.StateDictOptions:
    return distributed.StateDictOptions(full_state_dict=True, cpu_offload=True)
