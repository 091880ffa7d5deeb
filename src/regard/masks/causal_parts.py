"""A mask taken apart: up to which key each query sees, and which keys are hidden from every query.

    query i may see key j where   j - i <= high   and   keys allows j

Mechanisms that sum over keys once, and not for each query, have a form for such masks and for no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.contract import Frame
from regard.masks.base import Mask
from regard.masks.compose import And


@final
@dataclass(frozen=True)
class CausalParts:
    """``high`` is None where every query sees up to the last key; ``keys`` None where no key is hidden from all."""

    high: int | None
    keys: Mask | None

    def visible_keys(self, frame: Frame, device: torch.device) -> Bool[Tensor, "#batch #heads keys"] | None:
        """True for the keys that are not hidden from every query; None where none is."""
        if self.keys is None:
            return None
        allowed = self.keys.dense(1, frame.keys, device=device)[:, :, 0]
        return allowed.expand(*allowed.shape[:2], frame.keys)


def causal_parts(mask: Mask | None, frame: Frame) -> CausalParts | None:
    """The parts of a mask; None where it is anything else, such as a window that is closed on the left."""
    parts = () if mask is None else mask.parts if isinstance(mask, And) else (mask,)
    of_keys = tuple(part for part in parts if not part.depends_on_query)
    highs: list[int] = []
    for part in parts:
        if not part.depends_on_query:
            continue
        band = part.band(frame)
        if band is None or (band[0] is not None and band[0] > 1 - frame.queries):
            return None
        highs += [] if band[1] is None else [band[1]]
    return CausalParts(min(highs, default=None), And(of_keys) if of_keys else None)
