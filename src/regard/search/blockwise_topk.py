"""Top-k tokens of each row without sorting the vocabulary.

    the k largest values of a row are in the k blocks with the largest maxima

So the maxima of blocks of 64 are computed first, in one pass over the row, and only k blocks are searched.
logits (rows, vocabulary) -> log-probabilities and ids (rows, k).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

_BLOCK_SIZE = 64


def log_probabilities(
    logits: Float[Tensor, "rows vocabulary"], banned: Int[Tensor, " banned"]
) -> Float[Tensor, "rows vocabulary"]:
    """Log-softmax of the logits, in nats, then -infinity for the ``banned`` ids, without renormalisation.

    Half precision is converted to float32, since sums of many log-probabilities are compared.
    """
    wide = logits.float() if logits.dtype.itemsize == 2 else logits
    return wide.log_softmax(dim=-1).index_fill_(1, banned, -torch.inf)


def blockwise_topk(
    values: Float[Tensor, "rows vocabulary"], count: int
) -> tuple[Float[Tensor, "rows likeliest"], Int[Tensor, "rows likeliest"]]:
    """The ``count`` largest values of each row (all, if there are fewer), in descending order, and their ids."""
    blocks = values.shape[1] // _BLOCK_SIZE
    if blocks <= 2 * count:
        return values.topk(min(count, values.shape[1]), dim=1)
    whole = values[:, : blocks * _BLOCK_SIZE].unflatten(1, (blocks, _BLOCK_SIZE))
    block = whole.amax(dim=2).topk(count, dim=1, sorted=False).indices
    ids = (block[:, :, None] * _BLOCK_SIZE + torch.arange(_BLOCK_SIZE, device=values.device)).flatten(1)
    rest = torch.arange(blocks * _BLOCK_SIZE, values.shape[1], device=values.device).expand(values.shape[0], -1)
    ids = torch.cat([ids, rest], dim=1)
    top, place = values.gather(1, ids).topk(count, dim=1)
    return top, ids.gather(1, place)
