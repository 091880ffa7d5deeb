"""Scores that a module computed by hand, as scaled dot products with a mask and a bias by distance, if they are such.

    score_ij = c q_i . k_j + table[j - i]       where the weight of the pair is not 0

Then queries and keys are enough to compute the weights again, in memory linear in length. The factor c and the table
follow from the scores. Each number is compared with them, so that a call is never described by an equation that it does
not satisfy to the rounding of its products: half precision, where rounding is large, does not pass.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.masks.dense_mask import Keep
from regard.masks.visible_keys import recognize
from regard.recording.calls import LayerCall
from regard.recording.recorded_call import RecordedDistanceBias, make_call

_ROUNDING = 16
"""Units of rounding by which a score, relative to the largest one, may differ from the equation."""


@torch.no_grad()
def make_recomputed_call(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch key_heads keys head_dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    scores: Float[Tensor, "batch heads queries keys"],
    weights: Float[Tensor, "batch heads queries keys"],
) -> LayerCall | None:
    """Make the call that computes these weights again; None if its equation is another one, or its mask has no form."""
    if scores.dtype.itemsize < 4 or scores.numel() == 0 or bool(weights.isnan().any()):
        return None
    visible = weights > 0
    form = recognize(visible)
    if form.stop is not None or isinstance(form.mask, Keep):
        return None
    keys_of_heads = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1).to(scores.dtype)
    products = (query.to(scores.dtype) @ keys_of_heads.transpose(-2, -1)).masked_fill(~visible, 0.0)
    scores = scores.masked_fill(~visible, 0.0)
    largest = max(1.0, float(scores.abs().max()), float(products.abs().max()))
    tolerance = _ROUNDING * torch.finfo(scores.dtype).eps * largest
    usual = (query.shape[3] ** -0.5, 1.0)
    fitted = float((scores * products).sum() / products.square().sum().clamp(min=torch.finfo(scores.dtype).tiny))
    for scale in (*usual, fitted):
        if float((scores - scale * products).abs().max()) <= tolerance:
            return make_call("", query, key, value, visible=form, bias=None, scale=scale)
    for scale in usual:
        bias = _fit_distances(scores - scale * products, visible, tolerance)
        if bias is not None:
            return make_call("", query, key, value, visible=form, bias=bias, scale=scale)
    return None


def _fit_distances(
    rest: Float[Tensor, "batch heads queries keys"], visible: Bool[Tensor, "batch heads queries keys"], tolerance: float
) -> RecordedDistanceBias | None:
    """The bias by distance that equals ``rest`` where it is visible; None if there is none.

    The last query and the last key of the first text have all distances.
    """
    queries, keys = rest.shape[2:]
    table = torch.cat((rest[0, :, -1], rest[0, :, :-1, -1].flip(1)), dim=1)
    columns = torch.arange(keys, device=rest.device) + torch.arange(queries - 1, -1, -1, device=rest.device)[:, None]
    if float((rest - table[:, columns]).masked_fill(~visible, 0.0).abs().max()) > tolerance:
        return None
    return RecordedDistanceBias(table, keys=keys)
