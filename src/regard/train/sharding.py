"""FSDP: weights, gradients and optimizer state sharded over the processes, by Accelerate on torch's ``fully_shard``.

A launcher asks for it in environment variables (``accelerate launch`` with ``distributed_type: FSDP``). Accelerate
shards on accelerators only: among processes on CPUs it ignores the request and uses DDP. ``shard_on_cpus`` has it
shard there too.

Paper: Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel".
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from regard.errors import OptionError, RefusedError
from regard.mechanisms import Mechanism

_VERSION = 2


def shard_on_cpus(accelerator: Any) -> None:
    """Have ``accelerator`` shard among processes on CPUs if the launcher asked for FSDP."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    is_sharded = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    if not is_sharded or accelerator.distributed_type != DistributedType.MULTI_CPU:
        return
    if torch.accelerator.is_available():
        raise RefusedError(
            "FSDP on CPUs is refused where there is an accelerator, since torch would move the shards to it",
            expected="FSDP on the accelerators, or DDP on the CPUs",
            got="FSDP and the device cpu",
            do='leave out `device="cpu"`, or distributed_type: MULTI_CPU in Accelerate\'s configuration',
        )
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin()
    # In both, as Accelerate itself does it: each new AcceleratorState copies the type from PartialState.
    accelerator.state.distributed_type = PartialState().distributed_type = DistributedType.FSDP


def check_sharding(plugin: Any) -> None:
    """Raise OptionError for settings of Accelerate's FSDP ``plugin`` that training does not support."""
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

    if plugin.fsdp_version != _VERSION:
        raise OptionError(
            f"training does not support version {plugin.fsdp_version} of FSDP",
            expected=f"version {_VERSION}",
            got=f"version {plugin.fsdp_version}, which is Accelerate's default",
            do=f"accelerate launch --fsdp_version {_VERSION}, or fsdp_version: {_VERSION} in its configuration",
        )
    if plugin.auto_wrap_policy is size_based_auto_wrap_policy and plugin.min_num_params > 0:
        raise OptionError(
            "training does not support FSDP's choice of modules by size, since it divides layers that share weights",
            expected="NO_WRAP or TRANSFORMER_BASED_WRAP",
            got="SIZE_BASED_WRAP",
            do="change --fsdp_auto_wrap_policy of accelerate launch, or fsdp_auto_wrap_policy in its configuration",
        )


def check_shardable(model: nn.Module, plugin: Any) -> None:
    """Raise RefusedError for a model that FSDP trains otherwise than one process, OptionError for unknown layers."""
    for module in model.modules():
        if isinstance(module, Mechanism) and not module.traits.uses_all_parameters:
            raise RefusedError(
                f"FSDP is refused for {type(module).__name__}, which leaves parameters without gradients",
                expected="a gradient of each parameter in each step, which the processes sum",
                got=f"{type(module).__name__} in the model",
                do="train with DDP: distributed_type: MULTI_GPU in Accelerate's configuration, or torchrun",
            )
    scalars = [name for name, weight in model.named_parameters() if weight.dim() == 0]
    if scalars:
        raise RefusedError(
            f"FSDP is refused for {type(model).__name__}, which has a parameter that is a single number",
            expected="parameters with dimensions, which can be divided",
            got=", ".join(scalars),
            do="train with DDP: distributed_type: MULTI_GPU in Accelerate's configuration, or torchrun",
        )
    classes = plugin.transformer_cls_names_to_wrap or []
    found = {type(module).__name__ for module in model.modules()}
    unknown = [name for name in classes if name not in found]
    if unknown:
        lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
        blocks = sorted({type(block).__name__ for blocks in lists for block in blocks if len(list(block.children()))})
        raise OptionError(
            f"the model has no layers of the class {unknown[0]!r}, which FSDP is to shard one by one",
            expected=" or ".join(blocks) or "no class",
            got=", ".join(classes),
            do="change --fsdp_transformer_layer_cls_to_wrap of accelerate launch, or that line of its configuration",
        )
