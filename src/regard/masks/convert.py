"""Masks from the conventions of other libraries, which differ in what True means.

                                  bool True means     float means             2-d is            causal is
    nn.MultiheadAttention         may NOT attend      added to the scores     (queries, keys)   -
    scaled_dot_product_attention  may attend          added to the scores     (queries, keys)   top-left
    transformers                  may attend          added to the scores     (batch, keys)     -

Kernels for sequences of different lengths, as those of FlashAttention, take no mask: texts are packed one behind the
other, and ``cu_seqlens`` says where each begins.

An additive mask counts as a mask if it contains only zeros and -inf (or the dtype's lowest value, as ``transformers``
writes); other values are a bias, and are refused here: pass them as ``bias=``.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import DtypeError, OptionError, ShapeError, check_count, check_flag, short_repr
from regard.masks.as_tensor import as_tensor, is_integer_tensor
from regard.masks.band import causal
from regard.masks.base import Mask
from regard.masks.dense_mask import blocked, keep
from regard.masks.documents import documents
from regard.tensors import has_values


@explain_arguments
def from_multihead_attention(attn_mask: Any = None, key_padding_mask: Any = None, *, heads: int | None = None) -> Mask:
    """Convert the mask arguments of ``nn.MultiheadAttention``: tensors, arrays or nested lists.

    ``attn_mask`` (queries, keys) or (batch * heads, queries, keys), which needs ``heads``;
    ``key_padding_mask`` (batch, keys). Bool True means may not attend; floats are added to the scores.
    """
    if heads is not None:
        check_count("heads", heads)
    parts = []
    if attn_mask is not None:
        tensor = as_tensor(attn_mask, "attn_mask", "a bool or float tensor")
        if tensor.dim() == 3:
            if heads is None or tensor.shape[0] % heads:
                raise OptionError(
                    "a 3-d attn_mask of nn.MultiheadAttention needs the number of heads",
                    expected="heads= that divides its first axis (batch * heads)",
                    got=f"heads={heads}, shape {tuple(tensor.shape)}",
                    do="pass heads=module.num_heads",
                )
            tensor = tensor.unflatten(0, (tensor.shape[0] // heads, heads))
        else:
            _check_dim(tensor, 2, "attn_mask", "(queries, keys) or (batch * heads, queries, keys)")
        parts.append(blocked(tensor) if tensor.dtype == torch.bool else keep(_additive_to_bool(tensor)))
    if key_padding_mask is not None:
        tensor = as_tensor(key_padding_mask, "key_padding_mask", "a bool or float tensor")
        _check_dim(tensor, 2, "key_padding_mask", "(batch, keys)")
        tensor = tensor[:, None, None, :]
        parts.append(blocked(tensor) if tensor.dtype == torch.bool else keep(_additive_to_bool(tensor)))
    return _join_parts(parts, "attn_mask or key_padding_mask")


@explain_arguments
def from_sdpa(attn_mask: Any = None, *, is_causal: bool = False) -> Mask:
    """Convert the mask arguments of ``torch.nn.functional.scaled_dot_product_attention``.

    ``attn_mask`` (queries, keys) or (batch, heads, queries, keys), a tensor, array or nested list; bool True means
    may attend, floats are added to the scores. ``is_causal`` aligns query 0 with key 0, as SDPA does.
    """
    check_flag("is_causal", is_causal)
    parts = [causal(align="start")] if is_causal else []
    if attn_mask is not None:
        tensor = as_tensor(attn_mask, "attn_mask", "a bool or float tensor")
        parts.append(keep(tensor if tensor.dtype == torch.bool else _additive_to_bool(tensor)))
    return _join_parts(parts, "attn_mask or is_causal")


@explain_arguments
def from_transformers(attention_mask: Any) -> Mask:
    """Convert the ``attention_mask`` of ``transformers`` models: a tensor, array or nested list.

    (batch, keys) with 1 for tokens and 0 for padding; or (batch, heads or 1, queries or 1, keys), bool True =
    may attend, floats are added to the scores.
    """
    tensor = as_tensor(attention_mask, "attention_mask", "1 for tokens and 0 for padding")
    if tensor.dim() == 4:
        return keep(tensor if tensor.dtype == torch.bool else _additive_to_bool(tensor))
    _check_dim(tensor, 2, "attention_mask", "(batch, keys) or (batch, heads, queries, keys)")
    numbers = _to_float64(tensor)
    if has_values(numbers) and not bool(((numbers == 0) | (numbers == 1)).all()):
        raise OptionError(
            "a 2-d attention_mask contains 1 for tokens and 0 for padding",
            expected="only 0 and 1",
            got=f"values from {numbers.min().item():g} to {numbers.max().item():g}",
            do="from token ids use masks.padding_of(ids, pad_id)",
        )
    return keep((numbers != 0)[:, None, None, :])


@explain_arguments
def from_cu_seqlens(cu_seqlens_k: Any, cu_seqlens_q: Any = None) -> Mask:
    """Convert the ``cu_seqlens`` of FlashAttention's kernels for sequences of different lengths: ``documents``.

    ``cu_seqlens_k`` (texts + 1,) integers that do not fall: 0, where the next texts begin among the keys, and the
    number of keys, in a batch of 1. ``cu_seqlens_q`` is the same of the queries, if they are other tokens.
    FlashAttention's ``causal`` is ``masks.causal()`` only if they are the same.
    """
    ids, *of_queries = (
        _number_texts(side, name)
        for name, side in (("cu_seqlens_k", cu_seqlens_k), ("cu_seqlens_q", cu_seqlens_q))
        if side is not None
    )
    return documents(ids, query_ids=of_queries[0] if of_queries else None)


def _number_texts(ends: Any, name: str) -> Int[Tensor, "1 tokens"]:
    """The number of each token's text."""
    tensor = as_tensor(ends, name, "0, where the next texts begin, and the number of tokens")
    _check_dim(tensor, 1, name, "(texts + 1,)")
    lengths = tensor.diff()
    if not is_integer_tensor(tensor) or len(tensor) < 2 or int(tensor[0]) != 0 or bool((lengths < 0).any()):
        raise OptionError(
            f"{name} does not say where texts begin",
            expected="integers that begin with 0 and do not fall: where texts begin, and the number of tokens",
            got=short_repr(ends),
            do="for texts of 5 and 3 tokens: [0, 5, 8]",
        )
    return torch.repeat_interleave(torch.arange(len(lengths), device=tensor.device), lengths.long())[None]


def _additive_to_bool(additive: Tensor) -> Bool[Tensor, "..."]:
    """True where an additive mask is 0. Raises OptionError for values other than 0, -inf and a dtype's lowest value."""
    if not additive.is_floating_point():
        raise DtypeError(
            "this mask is neither bool nor additive",
            expected="a bool or floating dtype",
            got=str(additive.dtype),
            do="convert integers to bool, and check which value means may attend",
        )
    # A mask that was written in one dtype and cast to another holds the lowest value of the first.
    lowest = [torch.finfo(dtype).min for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)]
    bans = torch.tensor([-torch.inf, *lowest], dtype=torch.float64, device=additive.device)
    numbers = _to_float64(additive)
    free = numbers == 0
    strange = ~(torch.isin(numbers, bans) | free)
    if has_values(strange) and bool(strange.any()):
        raise OptionError(
            "this additive mask is a bias: it contains values other than 0 and -inf",
            expected="only 0 (may attend) and -inf or the dtype's lowest value (may not)",
            got=f"values such as {numbers[strange][0].item():g}",
            do="if such values mean may not attend, as -1e9 and -10000 often do: masks.keep(mask == 0), so that a "
            "query without keys gives 0; else pass it as bias=, which forbids nothing",
        )
    return free


def _to_float64(tensor: Tensor) -> Tensor:
    """Convert to a dtype that supports comparisons, unlike float8. Raises DtypeError for complex numbers."""
    if tensor.is_complex():
        raise DtypeError(
            "a mask must be real", expected="a bool, integer or float dtype", got=str(tensor.dtype), do="use .real"
        )
    return tensor.double()


def _check_dim(tensor: Tensor, dimensions: int, name: str, shape: str) -> None:
    if tensor.dim() != dimensions:
        raise ShapeError(
            f"{name} has the wrong shape",
            expected=shape,
            got=f"{tuple(tensor.shape)}",
            do="check which kind of mask this is",
        )


def _join_parts(parts: list[Mask], needed: str) -> Mask:
    if not parts:
        raise OptionError("no mask was passed", expected=needed, got="none of them", do="use mask=None for no mask")
    whole, *rest = parts
    for part in rest:
        whole = whole & part
    return whole
