"""Several backward passes in one: ``torch.func.vmap`` around ``torch.autograd.grad``.

torch then calls a backward operator under vmap. The kernels take no further dimension, so it is called for one gradient
after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.kernels.library import LIBRARY


def batch_by_turns(name: str) -> None:
    """Let the operator regard::``name``, whose results are one tensor or several, be called under vmap."""
    operator = getattr(torch.ops.regard, name).default

    def in_turns(info: Any, dims: Sequence[int | None], *given: Any) -> tuple[Any, Any]:
        calls = [
            operator(*(part if dim is None else part.select(dim, turn) for part, dim in zip(given, dims, strict=True)))
            for turn in range(info.batch_size)
        ]
        if isinstance(calls[0], Tensor):
            return torch.stack(calls), 0
        return tuple(torch.stack(parts) for parts in zip(*calls, strict=True)), (0,) * len(calls[0])

    torch.library.register_vmap(f"regard::{name}", in_turns, lib=LIBRARY)
