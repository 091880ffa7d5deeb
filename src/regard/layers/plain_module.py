"""Whether a module computes what its class says, so that a kernel may compute it instead of calling it."""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as global_hooks

NAMES_OF_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
"""The attributes of a module that hold the hooks of its calls."""


def is_unmodified(module: nn.Module) -> bool:
    """Whether calling a module runs the ``forward`` of its class and nothing else: no hooks, nothing replaced."""
    own = module.__dict__  # a decoding step asks this of every module
    return not (
        own["_forward_pre_hooks"]
        or own["_forward_hooks"]
        or own["_backward_pre_hooks"]
        or own["_backward_hooks"]
        or "forward" in own
    )


def has_global_hooks() -> bool:
    """Whether hooks are registered for all modules."""
    return bool(
        global_hooks._global_forward_pre_hooks
        or global_hooks._global_forward_hooks
        or global_hooks._global_backward_pre_hooks
        or global_hooks._global_backward_hooks
    )
