"""Masks from the conventions of others, so that nobody has to remember who means what by True.

                                  bool True means     float means             2-d is            causal is
    nn.MultiheadAttention         may NOT attend      added to the scores     (queries, keys)   -
    scaled_dot_product_attention  may attend          added to the scores     (queries, keys)   top-left
    transformers                  may attend          added to the scores     (batch, keys)     -

An additive mask counts as a mask where it holds only zeros and -inf (or the dtype's lowest value, as ``transformers``
writes); other values are a bias, and are refused here: pass them as ``bias=``.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.errors import DtypeError, OptionError, ShapeError, check_count
from regard.masks.band import causal
from regard.masks.base import Mask
from regard.masks.tensor import blocked, keep


def from_multihead_attention(
    attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, *, heads: int | None = None
) -> Mask:
    """The mask that ``nn.MultiheadAttention`` understands by these arguments.

    ``attn_mask`` (queries, keys) or (batch * heads, queries, keys), the latter needs ``heads``;
    ``key_padding_mask`` (batch, keys). Bool True means may not attend; floats are added.
    """
    parts = []
    if attn_mask is not None:
        tensor = attn_mask
        if tensor.dim() == 3:
            if heads is not None:
                check_count("heads", heads)
            if heads is None or tensor.shape[0] % heads:
                raise OptionError(
                    "a 3-d attn_mask of nn.MultiheadAttention needs the number of heads",
                    expected="heads= that divides its first axis (batch * heads)",
                    got=f"heads={heads}, shape {tuple(tensor.shape)}",
                    do="pass heads=module.num_heads",
                )
            tensor = tensor.unflatten(0, (-1, heads))
        else:
            _expect(tensor, 2, "attn_mask", "(queries, keys) or (batch * heads, queries, keys)")
        parts.append(blocked(tensor) if tensor.dtype == torch.bool else keep(_allowed(tensor)))
    if key_padding_mask is not None:
        _expect(key_padding_mask, 2, "key_padding_mask", "(batch, keys)")
        tensor = key_padding_mask[:, None, None, :]
        parts.append(blocked(tensor) if tensor.dtype == torch.bool else keep(_allowed(tensor)))
    return _joined(parts, "attn_mask or key_padding_mask")


def from_sdpa(attn_mask: Tensor | None = None, *, is_causal: bool = False) -> Mask:
    """The mask that ``torch.nn.functional.scaled_dot_product_attention`` understands by these arguments.

    ``attn_mask`` (queries, keys) or (batch, heads, queries, keys); bool True means may attend, floats are added.
    ``is_causal`` there puts query 0 on key 0.
    """
    parts = [causal(align="start")] if is_causal else []
    if attn_mask is not None:
        parts.append(keep(attn_mask if attn_mask.dtype == torch.bool else _allowed(attn_mask)))
    return _joined(parts, "attn_mask or is_causal")


def from_transformers(attention_mask: Tensor) -> Mask:
    """The mask that ``transformers`` models understand by ``attention_mask``.

    (batch, keys) with 1 for tokens and 0 for padding; or (batch, heads or 1, queries or 1, keys), bool True =
    may attend or floats that are added.
    """
    if attention_mask.dim() == 4:
        return keep(attention_mask if attention_mask.dtype == torch.bool else _allowed(attention_mask))
    _expect(attention_mask, 2, "attention_mask", "(batch, keys) or (batch, heads, queries, keys)")
    if not bool(((attention_mask == 0) | (attention_mask == 1)).all()):
        raise OptionError(
            "a 2-d attention_mask holds 1 for tokens and 0 for padding",
            expected="only 0 and 1",
            got=f"values from {attention_mask.min().item()} to {attention_mask.max().item()}",
            do="from token ids use masks.padding_of(ids, pad_id)",
        )
    return keep((attention_mask != 0)[:, None, None, :])


def _allowed(additive: Tensor) -> Bool[Tensor, "..."]:
    """True where an additive mask adds nothing; refuses values that are neither 0 nor a ban."""
    if not additive.is_floating_point():
        raise DtypeError(
            "this mask is neither bool nor additive",
            expected="a bool or floating dtype",
            got=str(additive.dtype),
            do="turn integers into bool, minding which value means may attend",
        )
    # A mask written in one dtype and cast to another bans with the first one's lowest value.
    lowest = [torch.finfo(dtype).min for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)]
    bans = torch.tensor(lowest, dtype=torch.float64, device=additive.device)
    banned = torch.isin(additive.double(), bans) | (additive == -torch.inf)
    free = additive == 0
    if not bool((banned | free).all()):
        raise OptionError(
            "this additive mask is a bias: it holds values other than 0 and -inf",
            expected="only 0 (may attend) and -inf or the dtype's lowest value (may not)",
            got=f"values such as {additive[~(banned | free)].flatten()[0].item():g}",
            do="pass it as bias= instead",
        )
    return free


def _expect(tensor: Tensor, dimensions: int, name: str, shape: str) -> None:
    if tensor.dim() != dimensions:
        raise ShapeError(
            f"{name} has another shape",
            expected=shape,
            got=f"{tuple(tensor.shape)}",
            do="check which mask this is",
        )


def _joined(parts: list[Mask], needed: str) -> Mask:
    if not parts:
        raise OptionError("no mask was given", expected=needed, got="none of them", do="pass mask=None for no mask")
    whole, *rest = parts
    for part in rest:
        whole = whole & part
    return whole
