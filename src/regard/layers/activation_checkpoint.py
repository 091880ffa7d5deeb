"""Activation checkpointing: a block's activations are not stored for the backward pass but computed again in it.

Without it, a stack of L blocks stores what each of them needs for its gradients: some dozen tensors of the size of its
tokens. With it, only the tokens between blocks are stored, and the forward pass of each block is computed once more in
the backward pass, which costs about a third more time. Both passes draw the same random numbers, so the gradients are
the same, bit for bit where the layers' results are.
Chen et al. 2016, "Training deep nets with sublinear memory cost", section 4, computed by ``torch.utils.checkpoint``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.arguments import explain_arguments
from regard.errors import RefusedError, check_flag, check_kind


class CheckpointedBlock(nn.Module, ABC):
    """A block whose activations can be checkpointed: it calls ``run_checkpointed`` in its forward pass."""

    checkpointed: bool = False
    """Whether the activations are computed again in the backward pass: see ``checkpoint_activations``."""

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Transform tokens (batch, length, width) to the same shape."""

    def run_checkpointed(self, function: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
        """Compute ``function(tokens)``, without storing its activations if the block is ``checkpointed``."""
        if not self.checkpointed or not torch.is_grad_enabled():
            return function(tokens)
        output: Tensor = checkpoint(function, tokens, use_reentrant=False)
        return output


@explain_arguments
def checkpoint_activations(model: nn.Module, *, enabled: bool = True) -> int:
    """Switch activation checkpointing of every block of ``model`` on, or off, and return the number of blocks.

    It covers the blocks of all models of ``regard.models`` but the recurrent ones, and any ``EncoderBlock``,
    ``DecoderBlock``, ``CrossAttentionBlock`` or ``ConformerBlock`` in a model of yours. Only training changes: without
    gradients, and in decoding with a cache, nothing is computed again.

    Raises RefusedError for a model without such blocks, OptionError if ``model`` is not a module.
    """
    check_kind("model", model, nn.Module, do="pass the model to be trained")
    check_flag("enabled", enabled)
    blocks = [module for module in model.modules() if isinstance(module, CheckpointedBlock)]
    if not blocks:
        raise RefusedError(
            f"{type(model).__name__} has no blocks whose activations can be checkpointed",
            expected="a model with an EncoderBlock or a DecoderBlock",
            got="none among its modules",
            do="leave it out (`checkpoint_activations=...`), or build your own model from regard.layers",
        )
    for block in blocks:
        block.checkpointed = bool(enabled)
    return len(blocks)


def is_recomputing() -> bool:
    """Whether this thread is in a backward pass, in which what was computed before is computed again.

    A compiler computes again on its own, and the code that it traces once is not in a backward pass.
    """
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() >= 0
