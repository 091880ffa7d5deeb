"""Which tokens a mask shows, for what reads each of them or leaves it out, whatever the query."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.errors import RefusedError
from regard.masks import Mask
from regard.validation import check_mask


def find_visible_tokens(
    mask: object, sizes: tuple[int, int], device: torch.device, *, what: str, do: str
) -> Bool[Tensor, "batch tokens"] | None:
    """The tokens of ``sizes`` (batch, tokens) that a mask shows, or None without a mask.

    Raises ShapeError for a mask of another size; RefusedError for one that shows a token to some queries or heads only:
    ``what`` says why, and ``do`` what to do.
    """
    check_mask(mask)
    if mask is None:
        return None
    assert isinstance(mask, Mask)
    if mask.depends_on_query or mask.heads not in (None, 1):
        raise RefusedError(
            what, expected="masks.padding(lengths), or masks.keep(visible[:, None, None, :])", got=repr(mask), do=do
        )
    batch, tokens = sizes
    mask.check(batch, 1, 1, tokens)
    return mask.dense(1, tokens, device=device)[:, 0, 0].expand(batch, tokens)
