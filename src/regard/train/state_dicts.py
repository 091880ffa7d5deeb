"""Weights, optimizer and random numbers as plain tensors by name, whatever the model is wrapped in.

Of a model that is spread over processes (FSDP) they are gathered, so a checkpoint does not know how many there were.
Names of an optimizer's state are <weight>|<kind>, such as ``output.weight|exp_avg``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as distributed

_SEPARATOR = "|"


def get_weights(model: nn.Module, tied: Mapping[str, str]) -> dict[str, Tensor]:
    """The weights, on the CPU; of tied ones the first. Every process calls, and the main one is answered."""
    whole: dict[str, Any] = distributed.get_model_state_dict(model, options=_full_state_options())
    return {name: tensor for name, tensor in whole.items() if name not in tied}


def set_weights(model: nn.Module, weights: Mapping[str, Tensor], tied: Mapping[str, str]) -> None:
    """Give the model these weights."""
    whole: dict[str, Any] = dict(weights) | {name: weights[origin] for name, origin in tied.items()}
    distributed.set_model_state_dict(model, whole, options=_full_state_options())


def get_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What the optimizer remembers of each weight, on the CPU. Every process calls, and the main one is answered."""
    whole: dict[str, Any] = distributed.get_optimizer_state_dict(model, optimizer, options=_full_state_options())
    return {
        name + _SEPARATOR + kind: torch.as_tensor(value)
        for name, kinds in whole.get("state", {}).items()
        for kind, value in kinds.items()
    }


def set_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give the optimizer its memory back."""
    state: dict[str, dict[str, Tensor]] = {}
    for joined, tensor in tensors.items():
        name, kind = joined.rsplit(_SEPARATOR, 1)
        state.setdefault(name, {})[kind] = tensor
    groups = distributed.get_optimizer_state_dict(model, optimizer)["param_groups"]
    whole: dict[str, Any] = {"state": state, "param_groups": groups}
    distributed.set_optimizer_state_dict(model, optimizer, whole, options=_full_state_options())


def get_rng_states(device: torch.device) -> dict[str, Tensor]:
    """The state of torch's random numbers, which dropout is drawn from."""
    state = {"cpu": torch.get_rng_state()}
    return state if device.type == "cpu" else state | {device.type: torch.get_device_module(device).get_rng_state()}


def set_rng_states(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Draw on from where ``get_rng_states`` was."""
    torch.set_rng_state(state["cpu"])
    if device.type != "cpu" and device.type in state:
        torch.get_device_module(device).set_rng_state(state[device.type])


def _full_state_options() -> distributed.StateDictOptions:
    return distributed.StateDictOptions(full_state_dict=True, cpu_offload=True)
