"""Random token ids, of the words of a vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regard.auditing.subject import Text


def draw_ids(name: str, allowed: Tensor, *, end_id: int | None = None) -> Callable[[int, torch.Generator], Text]:
    """Make a function that draws a text of some length, the argument ``name``, from the ``allowed`` ids.

    Its last token is ``end_id``, where a model needs one.
    """

    def draw(length: int, generator: torch.Generator) -> Text:
        ids = allowed[torch.randint(0, len(allowed), (1, length), generator=generator)]
        if end_id is not None:
            ids[:, -1] = end_id
        return {name: ids}

    return draw


def allowed_ids(vocabulary: int, special: set[int]) -> Tensor:
    """Ids that are words: no special ones, if enough others are left."""
    words = [token for token in range(min(vocabulary, 200_000)) if token not in special]
    return torch.tensor(words if len(words) > 1 else list(range(vocabulary)))
