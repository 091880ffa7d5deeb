"""Checks of arguments at the public functions: shapes, dtypes and devices must fit, or an error names them."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from regard.arguments import EXAMPLES
from regard.contract import Frame
from regard.errors import (
    DeviceError,
    DtypeError,
    OptionError,
    ShapeError,
    check_count,
    check_dropout,
    is_number,
    number_advice,
    short_repr,
)
from regard.kernels.request import Bias, Request, Terms
from regard.masks.base import Mask
from regard.positions.base import DenseBias, PairBias
from regard.tensors import check_dense, check_tensor, has_values, is_dense

_MAX_TOP = 1024
_STRIDED = torch.strided
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def make_request(
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    scale: Any = None,
    softcap: Any = None,
    sinks: Any = None,
    dropout: Any = 0.0,
) -> Request:
    """Build a request from a caller's arguments. Raises ShapeError, DtypeError, DeviceError or OptionError."""
    _check_tensors(query, key, value)
    _check_shapes(query, key, value)
    if mask is not None:
        check_mask(mask)
        batch, heads, queries, _ = query.shape
        mask.check(batch, heads, queries, key.shape[2])
    bias = _resolve_bias(bias, query, key, value)
    return Request(query, key, value, check_terms(query, mask, bias, scale, softcap, sinks, dropout))


def check_terms(
    query: Tensor,
    mask: Mask | None,
    bias: Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Any = None,
    dropout: float = 0.0,
) -> Terms:
    """Check the terms of a call of attention from ``query``. The mask and the bias were checked before.

    Raises ShapeError, DtypeError, DeviceError or OptionError.
    """
    check_dropout(dropout)
    check_scale(scale)
    check_softcap(softcap)
    return Terms(
        mask,
        bias,
        query.shape[3] ** -0.5 if scale is None else float(scale),
        None if softcap is None else float(softcap),
        None if sinks is None else check_sinks(sinks, query),
        dropout,
    )


def check_mask(mask: object) -> None:
    """Raise OptionError unless ``mask`` is a Mask or None; a bare tensor could have either polarity."""
    if mask is None or isinstance(mask, Mask):
        return
    raise OptionError(
        "mask is not a regard mask",
        expected="a mask from regard.masks, or None",
        got=_repr_with_type(mask),
        do=_mask_advice(mask),
    )


def _mask_advice(mask: object) -> str:
    """Suggest what to write in place of a value that is not a mask."""
    if isinstance(mask, FunctionType) and mask.__module__.startswith("regard.masks"):
        return f"call it: {EXAMPLES.get(f'masks.{mask.__name__}', f'masks.{mask.__name__}(...)')}"
    if isinstance(mask, str):
        return f"masks.{mask}()" if mask == "causal" else "masks are made by functions, such as masks.causal()"
    if isinstance(mask, bool):
        return "None lets every query attend to every key; masks.causal() only to keys up to its own position"
    if isinstance(mask, Tensor | list | tuple) or hasattr(mask, "__dlpack__"):
        return (
            "wrap it: masks.keep(t) where True may attend, masks.blocked(t) where True may not, masks.from_sdpa(t), "
            "masks.from_transformers(t), masks.from_multihead_attention(t)"
        )
    return "for example masks.causal(), or masks.padding(lengths)"


def _repr_with_type(value: object) -> str:
    """Format a value, followed by its type if the repr does not contain it."""
    text = short_repr(value)
    return text if type(value).__name__ in text or callable(value) else f"{text}, a {type(value).__name__}"


def check_scale(scale: object) -> None:
    """Raise OptionError unless the scale is a finite number, or None."""
    if scale is None or is_number(scale):
        return
    raise OptionError(
        "scale is the factor of the scores",
        expected="a finite number, or None for 1/sqrt(head_dim)",
        got=short_repr(scale),
        do=number_advice(scale, "multiply the query by a trained scale instead"),
    )


def check_softcap(softcap: object) -> None:
    """Raise OptionError unless the softcap is a finite number above 0, or None."""
    if softcap is None or (is_number(softcap) and float(softcap) > 0.0):
        return
    raise OptionError(
        "softcap is the bound of the scores",
        expected="a finite number above 0, or None for no bound",
        got=short_repr(softcap),
        do=number_advice(softcap, "50.0 is the softcap of Gemma 2; pass None where a configuration says 0"),
    )


def check_sinks(sinks: Any, query: Tensor) -> Tensor:
    """Check sinks, and return them as a tensor (#batch, #heads, #queries, 1)."""
    check_tensor("sinks", sinks, "a tensor (heads,)", do="use torch.as_tensor")
    if sinks.dtype not in FLOATS:
        raise DtypeError(
            "sinks have an unsupported dtype",
            expected="a floating-point tensor: " + ", ".join(str(dtype) for dtype in FLOATS),
            got=str(sinks.dtype),
            do="convert them with .float()",
        )
    if sinks.device != query.device:
        raise DeviceError(
            "sinks are on another device",
            expected=str(query.device),
            got=str(sinks.device),
            do="move them with .to(query.device)",
        )
    shape = tuple(sinks.shape)
    full = (*query.shape[:3], 1)
    if len(shape) == 1 and shape[0] == full[1]:
        return sinks[None, :, None, None]
    if len(shape) != 4 or any(size != 1 and size != whole for size, whole in zip(shape, full, strict=True)):
        raise ShapeError(
            "sinks do not fit the queries",
            expected=f"(heads,) = ({full[1]},), or 4 dimensions that broadcast to (batch, heads, queries, 1) = {full}",
            got=f"shape {shape}",
            do="pass one logit for each head, or sinks[..., None] of a tensor (batch, heads, queries)",
        )
    return sinks


def check_top(top: object, keys: int) -> None:
    """Raise OptionError unless ``top`` is an integer from 0 to the larger of ``keys`` and 1,024."""
    check_count("top", top, minimum=0, maximum=max(keys, _MAX_TOP))


def check_tokens(name: str, tokens: Any, shape: str) -> None:
    """Raise DtypeError unless ``tokens`` is a dense floating-point tensor; the error says which ``shape`` to pass."""
    if isinstance(tokens, Tensor) and is_dense(tokens) and tokens.dtype in FLOATS:  # nearly always
        return
    do = "pass a mask by name: mask=..." if isinstance(tokens, Mask) else "use torch.as_tensor"
    check_tensor(name, tokens, f"a tensor {shape}", do=do)
    if tokens.dtype not in FLOATS:
        raise DtypeError(
            f"{name} has an unsupported dtype",
            expected=", ".join(str(dtype) for dtype in FLOATS),
            got=str(tokens.dtype),
            do="pass token ids to a model or an embedding; convert other numbers with .float()",
        )


def query_rows(rows: Sequence[int] | Tensor | None, queries: int, device: torch.device) -> Tensor | None:
    """Convert ``rows`` to non-negative indices of queries. Raises OptionError for one that is out of range."""
    if rows is None:
        return None
    try:
        index = torch.as_tensor(rows)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # not numbers
        index = torch.tensor(torch.nan)
    readable = not index.is_meta or device.type == "meta"
    whole = readable and is_dense(index) and (index.numel() == 0 or index.dtype in _INTEGERS)
    index = index.long() if whole else index
    if not whole or index.dim() != 1 or _is_out_of_range(index, queries):
        raise OptionError(
            "rows names queries that do not exist",
            expected=f"a list of integers from {-queries} to {queries - 1}",
            got=short_repr(rows) if readable else f'{short_repr(rows)} on "meta", which has no values',
            do="count queries from 0",
        )
    return torch.where(index < 0, index + queries, index).to(device)


def _is_out_of_range(index: Tensor, queries: int) -> bool:
    """Whether any index is out of range; False if the index has no values that can be read."""
    return has_values(index) and bool(((index < -queries) | (index >= queries)).any())


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    if isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor):
        alike = query.dtype == key.dtype == value.dtype and query.device == key.device == value.device
        strided = query.layout is key.layout is value.layout is _STRIDED
        if alike and strided and query.dtype in FLOATS:  # the fast path, nearly always taken
            return
    named = {"query": query, "key": key, "value": value}
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise DtypeError(
                f"{name} is not a tensor",
                expected="a torch.Tensor; or three arrays of one framework, such as NumPy's",
                got=type(tensor).__name__,
                do="use torch.as_tensor",
            )
        check_dense(name, tensor)
    if len({tensor.dtype for tensor in named.values()}) > 1:
        raise DtypeError(
            "query, key and value have different dtypes",
            expected="one dtype for all three",
            got=_join_facts({name: str(tensor.dtype) for name, tensor in named.items()}),
            do="convert with .to(query.dtype)",
        )
    if query.dtype not in FLOATS:
        raise DtypeError(
            "attention needs floating-point tensors",
            expected=", ".join(str(dtype) for dtype in FLOATS),
            got=str(query.dtype),
            do="convert with .float()",
        )
    if len({tensor.device for tensor in named.values()}) > 1:
        raise DeviceError(
            "query, key and value are on different devices",
            expected="one device for all three",
            got=_join_facts({name: str(tensor.device) for name, tensor in named.items()}),
            do="move them with .to(query.device)",
        )


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    try:
        problem = _shape_problem(query.shape, key.shape, value.shape)
    except RuntimeError:  # a nested tensor has no shape; checking for one first would slow every call down
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            check_dense(name, tensor)
        raise
    if problem:
        named = {"query": query, "key": key, "value": value}
        raise ShapeError(
            problem,
            expected="query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim), "
            "value (batch, key_heads, keys, value_dim), heads a multiple of key_heads",
            got=_join_facts({name: str(tuple(tensor.shape)) for name, tensor in named.items()}),
            do="split a (batch, length, width) tensor with .unflatten(-1, (heads, -1)).transpose(1, 2)",
        )


def _shape_problem(query: torch.Size, key: torch.Size, value: torch.Size) -> str:
    if not len(query) == len(key) == len(value) == 4:
        return "query, key and value must have four dimensions: (batch, heads, length, head_dim)"
    if not query[0] == key[0] == value[0]:
        return "query, key and value have different batch sizes"
    if key[1] != value[1]:
        return "key and value have different numbers of heads"
    if key[1] == 0 or query[1] % key[1]:
        return "the query's heads are not a multiple of the key's heads"
    if key[2] != value[2]:
        return "key and value have different lengths"
    if query[3] != key[3]:
        return "query and key have different head_dim"
    return "head_dim is 0" if query[3] == 0 else ""


def _resolve_bias(bias: Any, query: Tensor, key: Tensor, value: Tensor) -> Bias | None:
    """Check a bias; a DenseBias becomes its tensor, which every implementation takes."""
    if isinstance(bias, DenseBias):
        bias.check(query, value)
        bias = bias.dense(Frame(query.shape[2], key.shape[2]))
    _check_bias(bias, query, key, value)
    checked: Bias | None = bias
    return checked


def _check_bias(bias: Bias | None, query: Tensor, key: Tensor, value: Tensor) -> None:
    if bias is None:
        return
    if isinstance(bias, PairBias):
        bias.check(query, value)
        return
    if not isinstance(bias, Tensor):
        raise OptionError(
            "bias is neither a tensor nor a position",
            expected="a float tensor that broadcasts to (batch, heads, queries, keys), or a position of scores "
            "(ALiBi, T5Buckets, ShawRelative, Relative2d)",
            got=type(bias).__name__,
            do="add absolute positions to embeddings, and apply Rotary to queries and keys before attention",
        )
    check_dense("bias", bias)
    if bias.dtype not in FLOATS:
        raise DtypeError(
            "bias has an unsupported dtype",
            expected="a floating-point tensor: " + ", ".join(str(dtype) for dtype in FLOATS),
            got=str(bias.dtype),
            do="a bool tensor is a mask: masks.keep" if bias.dtype == torch.bool else "convert it with .float()",
        )
    if bias.device != query.device:
        raise DeviceError(
            "bias is on another device",
            expected=str(query.device),
            got=str(bias.device),
            do="move it with .to(query.device)",
        )
    full = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if bias.dim() != 4 or any(size != 1 and size != whole for size, whole in zip(bias.shape, full, strict=True)):
        raise ShapeError(
            "bias does not fit the scores",
            expected=f"4 dimensions that broadcast to (batch, heads, queries, keys) = {full}",
            got=f"shape {tuple(bias.shape)}",
            do="add dimensions of size 1 where the bias is the same for all, for example bias[None, None]",
        )


def _join_facts(facts: dict[str, str]) -> str:
    return ", ".join(f"{name} {fact}" for name, fact in facts.items())
