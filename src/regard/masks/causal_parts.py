"""Split a mask into a causal bound for each query and a mask of keys that is the same for every query.

    query i may attend to key j if   j - i <= high   and   keys allows j

Mechanisms that sum over keys once, and not for each query, support such masks and no others.
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
    """``high`` is None if there is no causal bound; ``keys`` is None if no key is hidden from every query."""

    high: int | None
    keys: Mask | None

    def visible_keys(self, frame: Frame, device: torch.device) -> Bool[Tensor, "#batch #heads keys"] | None:
        """True for keys that are not hidden from every query; None if no key is hidden from every query."""
        if self.keys is None:
            return None
        allowed = self.keys.dense(1, frame.keys, device=device)[:, :, 0]
        return allowed.expand(*allowed.shape[:2], frame.keys)


def causal_parts(mask: Mask | None, frame: Frame) -> CausalParts | None:
    """Split a mask; None if it has another form, such as a window that is bounded on the left."""
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
    # Without min's ``default``, which torch.compile cannot trace.
    return CausalParts(min(highs) if highs else None, And(of_keys) if of_keys else None)
