"""The processes of a training run, by Accelerate: device, gradient synchronisation and collective operations.

In a single process all of this is a no-op.

The rows of a batch from all processes, with gradients: for losses that compare each row with all others.

    forward     rows of each process (own rows, width) -> (batch, width), in the order of the batch, in every process
    backward    the gradients of all processes are summed, and each takes the gradients of its own rows

Process r has the rows r, r + n, .. of n processes, as ``RankShard`` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.device_names import AUTO
from regard.devices import find_accelerator
from regard.errors import MissingPackageError, OptionError, RegardError, short_repr
from regard.kernels.autograd_function import Function
from regard.layers.batch_statistics import share_batch_norms
from regard.mechanisms import Mechanism
from regard.train.sharding import check_shardable, check_sharding, shard_on_cpus
from regard.train.task import RankShard


def gather_rows(rows: Float[Tensor, "own width"], shard: RankShard, batch: int) -> Float[Tensor, "batch width"]:
    """Collect the ``batch`` rows of a batch; ``rows`` are the rows of this process, ``shard.rows`` of the batch."""
    if shard.of == 1:
        return rows
    gathered: Tensor = _GatherRows.apply(rows, shard, batch)
    return gathered


@final
class _GatherRows(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, shard: RankShard, batch: int) -> Tensor:
        ctx.shard, ctx.own = shard, len(rows)
        largest = -(-batch // shard.of)
        padded = rows.new_zeros(largest, rows.shape[1])
        padded[: len(rows)] = rows
        by_rank = [torch.empty_like(padded) for _ in range(shard.of)]
        torch.distributed.all_gather(by_rank, padded)
        return torch.stack(by_rank, dim=1).flatten(0, 1)[:batch]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        summed = gradient.contiguous()
        summed = summed.clone() if summed is gradient else summed
        torch.distributed.all_reduce(summed)
        own: Tensor = ctx.shard.rows(summed)
        return own, None, None


_TIMEOUT = timedelta(days=1)
"""The other processes wait while the main one reads the data and validates; the default of ten minutes may be short."""


@final
class Processes:
    """The processes of a run. The launcher decides their number, their devices, and DDP or FSDP, and nothing else.

    Precision and gradient accumulation come from the run's ``Settings``. ``device`` None or "auto" is Accelerate's
    choice: a GPU if there is one; "cpu" uses no GPU. Raises OptionError for another device, MissingPackageError without
    Accelerate.
    """

    def __init__(self, *, device: str | None = None) -> None:
        try:
            from accelerate import Accelerator
            from accelerate.utils import GradientAccumulationPlugin, InitProcessGroupKwargs
        except ImportError:
            raise MissingPackageError(
                "training needs a package",
                expected="accelerate",
                got="it is not installed",
                do="pip install 'regard[train]'",
            ) from None
        _check_device(device)
        self._accelerator: Any = Accelerator(
            # Explicit: otherwise Accelerate treats several processes without a GPU as independent single ones.
            cpu=device == "cpu" or not torch.accelerator.is_available(),
            mixed_precision="no",
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
            kwargs_handlers=[InitProcessGroupKwargs(timeout=_TIMEOUT)],
        )
        shard_on_cpus(self._accelerator)
        plugin = self._sharding
        if plugin is not None:
            check_sharding(plugin)
            # Each process has built the model. Loading it again from the main process would untie tied weights.
            plugin.cpu_ram_efficient_loading = False
        self.shard = RankShard(self._accelerator.process_index, self._accelerator.num_processes)

    @property
    def device(self) -> torch.device:
        """The device that this process computes on."""
        device: torch.device = self._accelerator.device
        return device

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return self.shard.rank

    @property
    def is_main(self) -> bool:
        """Whether this is the main process, which writes files and reports."""
        return self.rank == 0

    @property
    def is_sharded(self) -> bool:
        """Whether weights are sharded over processes (FSDP)."""
        return str(self._accelerator.distributed_type).endswith("FSDP")

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Wrap the model and the optimizer for this process, by DDP or FSDP where there are several.

        Raises RefusedError for a model that FSDP would train otherwise than one process.
        """
        if self._sharding is not None:
            check_shardable(model, self._sharding)
        if not all(module.traits.uses_all_parameters for module in model.modules() if isinstance(module, Mechanism)):
            from accelerate.utils import DistributedDataParallelKwargs

            # Otherwise DDP waits for the gradients of all parameters, and the next step raises an error.
            self._accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=True)
        share_batch_norms(model)
        model, prepared = self._accelerator.prepare(model, optimizer)
        return model, prepared.optimizer

    def check_on_main(self, model: nn.Module | None) -> None:
        """Raise in every process what ``prepare`` would raise for the ``model`` of the main one; others pass None."""
        if self._sharding is None:
            return
        found: list[Any] = [None]
        if model is not None:
            try:
                check_shardable(model, self._sharding)
            except RegardError as error:
                found = [(type(error), error.what, {"expected": error.expected, "got": error.got, "do": error.do})]
        torch.distributed.broadcast_object_list(found, src=0)
        if found[0] is not None:
            kind, what, others = found[0]
            raise kind(what, **others)

    @property
    def _sharding(self) -> Any:
        """Accelerate's settings of FSDP; None without FSDP."""
        return getattr(self._accelerator.state, "fsdp_plugin", None) if self.is_sharded else None

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Remove the wrapper that ``prepare`` added; a model with sharded weights is returned unchanged."""
        inner: nn.Module = model if self.is_sharded else self._accelerator.unwrap_model(model)
        return inner

    def no_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Skip gradient synchronisation inside the block: for all batches of a step except the last."""
        context: AbstractContextManager[Any] = self._accelerator.no_sync(model)
        return context

    def backward(self, loss: Tensor) -> None:
        """Backpropagate ``loss``, a scalar, and add to the gradients."""
        self._accelerator.backward(loss)

    def clip(self, model: nn.Module, max_norm: float) -> Float[Tensor, ""]:
        """Clip the gradients to a total L2 norm of ``max_norm``, and return their norm before clipping."""
        norm = self._accelerator.clip_grad_norm_(model.parameters(), max_norm)
        whole: Tensor = norm.full_tensor() if self.is_sharded else norm
        return whole

    def main_decides(self, opinion: bool) -> bool:
        """Return the main process's ``opinion`` in every process."""
        return bool(self.broadcast(float(opinion)))

    def broadcast(self, number: float) -> float:
        """Return the main process's ``number`` in every process."""
        return self.broadcast_all(number)[0]

    def broadcast_all(self, *numbers: float) -> tuple[float, ...]:
        """Return the main process's ``numbers`` in every process, by one collective operation."""
        if self.shard.of == 1:
            return numbers
        shared = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        torch.distributed.broadcast(shared, src=0)
        return tuple(shared.tolist())

    def sum(self, number: float) -> float:
        """Return the sum of ``number`` over all processes, in every process."""
        if self.shard.of == 1:
            return number
        shared = torch.tensor([number], dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(shared)
        return float(shared)

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Collect the tensors of all processes, on the CPU, under the names ``<name>|<rank>``."""
        if self.shard.of == 1:
            return {f"{name}|0": tensor for name, tensor in tensors.items()}
        gathered: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            by_rank = [torch.empty_like(tensor, device=self.device) for _ in range(self.shard.of)]
            torch.distributed.all_gather(by_rank, tensor.to(self.device))
            gathered |= {f"{name}|{rank}": choice.cpu() for rank, choice in enumerate(by_rank)}
        return gathered

    def select_own(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Select this process's tensors from ``gather``'s result; the tensors of rank 0 if it has none of this rank."""
        names = {name.rsplit("|", 1)[0] for name in tensors}
        return {name: tensors.get(f"{name}|{self.rank}", tensors[f"{name}|0"]) for name in names}

    def wait(self) -> None:
        """Wait until every process has called this (a barrier)."""
        self._accelerator.wait_for_everyone()


_CHOOSING_VARIABLES = {"cuda": "CUDA_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}
"""Environment variables that choose among several devices of a kind; AMD's GPUs are of the kind "cuda"."""


def _check_device(device: str | None) -> None:
    """Raise OptionError unless it is None, "auto", "cpu", or the kind of accelerator that this machine has."""
    accelerator = find_accelerator()
    kinds = [AUTO, "cpu", *([] if accelerator is None else [accelerator.type])]
    variable = None if accelerator is None else _CHOOSING_VARIABLES.get(accelerator.type)
    if device is not None and not (isinstance(device, str) and device in kinds):
        raise OptionError(
            f"training cannot use the device {short_repr(device)}",
            expected=" or ".join(kinds),
            got=short_repr(device),
            do="leave it out" + (f"; to choose one of several GPUs, set {variable}" if variable else ""),
        )
