"""One process or many, by Accelerate; what they agree on, and what each takes.

In one process there is nothing to agree on, and nothing here costs anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, final

import torch
from torch import Tensor, nn

from regard.errors import MissingPackageError, OptionError, short_repr
from regard.train.task import RankShard

_TIMEOUT = timedelta(days=1)
"""One process reads the data and measures the model while the others wait; the usual ten minutes may be too short."""


@final
class Processes:
    """The processes of a run, as the launcher made them: how many, where, DDP or FSDP, and nothing else of its options.

    Precision and accumulation are those of the run's own settings. ``device`` None is Accelerate's choice: a GPU where
    there is one; "cpu" is none. Raises OptionError for another device, MissingPackageError without Accelerate.
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
            # Said outright: several processes without a GPU are taken for several single ones otherwise.
            cpu=device == "cpu" or not torch.accelerator.is_available(),
            mixed_precision="no",
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
            kwargs_handlers=[InitProcessGroupKwargs(timeout=_TIMEOUT)],
        )
        plugin = getattr(self._accelerator.state, "fsdp_plugin", None)
        if plugin is not None:
            # Each process has made the model. To load it once more from the first parts weights that are tied.
            plugin.cpu_ram_efficient_loading = False
        self.shard = RankShard(self._accelerator.process_index, self._accelerator.num_processes)

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        device: torch.device = self._accelerator.device
        return device

    @property
    def rank(self) -> int:
        """The number of this process."""
        return self.shard.rank

    @property
    def is_main(self) -> bool:
        """Whether this process writes and reports."""
        return self.rank == 0

    @property
    def is_sharded(self) -> bool:
        """Whether weights are spread over processes."""
        return str(self._accelerator.distributed_type).endswith("FSDP")

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The model as this process runs it, and the optimizer of its weights."""
        model, prepared = self._accelerator.prepare(model, optimizer)
        return model, prepared.optimizer

    def unwrap(self, model: nn.Module) -> nn.Module:
        """What ``prepare`` gave, without what was put around it; where weights are spread, as it is."""
        inner: nn.Module = model if self.is_sharded else self._accelerator.unwrap_model(model)
        return inner

    def no_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Inside, gradients stay in their process: of all batches of a step but the last."""
        context: AbstractContextManager[Any] = self._accelerator.no_sync(model)
        return context

    def backward(self, loss: Tensor) -> None:
        """Add to the gradients."""
        self._accelerator.backward(loss)

    def clip(self, model: nn.Module, most: float) -> float:
        """The norm of all gradients, which are made no longer than ``most``."""
        return float(self._accelerator.clip_grad_norm_(model.parameters(), most))

    def main_decides(self, opinion: bool) -> bool:
        """The main process's opinion, in all of them."""
        return bool(self.broadcast(float(opinion)))

    def broadcast(self, number: float) -> float:
        """The main process's number, in all of them."""
        if self.shard.of == 1:
            return number
        shared = torch.tensor([number], dtype=torch.float64, device=self.device)
        torch.distributed.broadcast(shared, src=0)
        return float(shared)

    def sum(self, number: float) -> float:
        """The sum over all processes."""
        if self.shard.of == 1:
            return number
        shared = torch.tensor([number], dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(shared)
        return float(shared)

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of all processes, by name and rank."""
        if self.shard.of == 1:
            return {f"{name}|0": tensor for name, tensor in tensors.items()}
        found: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            all_of = [torch.empty_like(tensor, device=self.device) for _ in range(self.shard.of)]
            torch.distributed.all_gather(all_of, tensor.to(self.device))
            found |= {f"{name}|{rank}": one.cpu() for rank, one in enumerate(all_of)}
        return found

    def select_own(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of what ``gather`` gave, this process's; the first one's where there were fewer processes."""
        names = {name.rsplit("|", 1)[0] for name in tensors}
        return {name: tensors.get(f"{name}|{self.rank}", tensors[f"{name}|0"]) for name in names}

    def wait(self) -> None:
        """Until all are here."""
        self._accelerator.wait_for_everyone()


def _check_device(device: str | None) -> None:
    """Raise OptionError unless it is None, "cpu", or the kind of accelerator that this machine has."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kinds = ["cpu", *([] if found is None else [found.type])]
    if device is not None and not (isinstance(device, str) and device in kinds):
        raise OptionError(
            f"training cannot take the device {short_repr(device)}",
            expected=" or ".join(kinds),
            got=short_repr(device),
            do="leave it out; to choose one of several GPUs set CUDA_VISIBLE_DEVICES",
        )
