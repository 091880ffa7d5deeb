"""``KeyPrefix``: masks that are causal, and show the first keys of each text and no others.

For such masks, without padding or with padding on the right, blocks of keys are the same for all queries and begin with
the first key, and all keys of a block before a query's own are visible.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from regard.kernels.request import Request
from regard.masks.base import Mask
from regard.masks.causal_parts import causal_parts
from regard.masks.compose import And
from regard.masks.padding import Padding
from regard.tensors import has_values


@final
@dataclass(frozen=True, eq=False)
class KeyPrefix:
    """``lengths`` says how many keys of each batch entry are shown; None is all."""

    lengths: Int[Tensor, " batch"] | None

    @classmethod
    def of(cls, request: Request) -> KeyPrefix | None:
        """Return the prefix of a call that is causal by itself; None if its mask has another form."""
        frame = request.frame
        parts = causal_parts(request.mask, frame)
        if parts is None or (parts.high is not None and parts.high < frame.offset):
            return None
        if parts.keys is None:
            return cls(None)
        lengths = _padding_lengths(parts.keys)
        if lengths is not None:  # known also where tensors have no values
            batch = max(request.query.shape[0], lengths.shape[0])  # asked of any length, a request has one text
            return cls(lengths.to(request.device).expand(batch).contiguous())
        visible = parts.visible_keys(frame, request.device)
        assert visible is not None
        if visible.shape[1] != 1 or not has_values(visible):
            return None
        lengths = visible[:, 0].sum(-1)
        if not torch.equal(visible[:, 0], torch.arange(frame.keys, device=visible.device) < lengths[:, None]):
            return None
        return cls(lengths.expand(request.query.shape[0]).contiguous())

    def visible_counts(self, request: Request, rows: Int[Tensor, " rows"]) -> Int[Tensor, "#batch 1 rows"]:
        """Count the keys that the queries ``rows`` may see, up to their own position."""
        counts = (rows + request.frame.offset + 1)[None].clamp(min=0)
        counts = counts if self.lengths is None else torch.minimum(counts, self.lengths[:, None])
        return counts[:, None]


def _padding_lengths(mask: Mask) -> Int[Tensor, " batch"] | None:
    """Return the lengths of a mask that is made of padding on the right alone; None if it is not."""
    parts = mask.parts if isinstance(mask, And) else (mask,)
    if not all(isinstance(part, Padding) and part.side == "right" for part in parts):
        return None
    return reduce(torch.minimum, [part.lengths for part in parts if isinstance(part, Padding)])
