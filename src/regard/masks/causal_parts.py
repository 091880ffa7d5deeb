"""Split a mask into a causal bound for each query and a mask of keys that is the same for every query.

    query i may attend to key j if   j - i <= high   and   keys allows j

Mechanisms that sum over keys once, and not for each query, support such masks and no others. Those whose sums can begin
again also support several texts in a row, where query i may attend to key j only if both are of one text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.contract import Frame
from regard.masks.base import Mask
from regard.masks.compose import And
from regard.masks.documents import Documents
from regard.tensors import has_values


@final
@dataclass(frozen=True)
class CausalParts:
    """``high`` is None if there is no causal bound; ``keys`` is None if no key is hidden from every query.

    ``texts`` are the documents of tokens, if there are several: runs of tokens, which are the queries and the keys.
    """

    high: int | None
    keys: Mask | None
    texts: Documents | None = None

    def visible_keys(self, frame: Frame, device: torch.device) -> Bool[Tensor, "#batch #heads keys"] | None:
        """True for keys that are not hidden from every query; None if no key is hidden from every query."""
        if self.keys is None:
            return None
        allowed = self.keys.dense(1, frame.keys, device=device)[:, :, 0]
        return allowed.expand(*allowed.shape[:2], frame.keys)

    def starts(self, batch: int, device: torch.device) -> Bool[Tensor, "batch tokens"] | None:
        """True for the first token of each text but that of a row; None if each row is one text."""
        if self.texts is None:
            return None
        changes = _changes(self.texts.ids.to(device))
        return torch.nn.functional.pad(changes, (1, 0)).expand(batch, -1)


def causal_parts(mask: Mask | None, frame: Frame) -> CausalParts | None:
    """Split a mask; None if it has another form, such as a window that is bounded on the left, or several texts."""
    return _split(() if mask is None else mask.parts if isinstance(mask, And) else (mask,), frame, None)


def causal_parts_of_texts(mask: Mask | None, frame: Frame) -> CausalParts | None:
    """Split a mask, perhaps of several texts in a row; None if it has another form."""
    parts = () if mask is None else mask.parts if isinstance(mask, And) else (mask,)
    texts = [part for part in parts if isinstance(part, Documents)]
    if not texts:
        return _split(parts, frame, None)
    if not _are_runs(texts[0], frame):
        return None
    return _split(tuple(part for part in parts if part is not texts[0]), frame, texts[0])


def _are_runs(texts: Documents, frame: Frame) -> bool:
    """Whether queries and keys are the same tokens, and the tokens of each text follow one another."""
    if texts.query_ids is not None or frame.queries != frame.keys or not has_values(texts.ids):
        return False
    return torch.equal(_changes(texts.ids).sum(1), _changes(texts.ids.sort(dim=1).values).sum(1))


def _changes(ids: Int[Tensor, "batch tokens"]) -> Bool[Tensor, "batch tokens_less_one"]:
    """Whether a token has another id than the one before it."""
    return ids[:, 1:] != ids[:, :-1]


def _split(parts: tuple[Mask, ...], frame: Frame, texts: Documents | None) -> CausalParts | None:
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
    return CausalParts(min(highs) if highs else None, And(of_keys) if of_keys else None, texts)
