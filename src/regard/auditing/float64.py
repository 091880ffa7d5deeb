"""Every floating-point operation of a model in float64, also where its code casts to a smaller type.

Many models cast to float32 for a norm, a softmax or the angles of positions. Rounding there differs between batches of
other shapes by 1e-7 of the values, which hides small leaks. Below autograd each cast is one operation of torch, so it
is changed there; no code of the model is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

SMALLER = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2})
"""Types that become float64, also where numbers are stored, as in a quantized cache."""


@final
class Float64Mode(TorchDispatchMode):
    """Inside ``with Float64Mode():`` operations read, and make, float64 in place of smaller floating-point types."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation in float64. One that writes into its arguments keeps their types."""
        del types
        options = dict(kwargs or {})
        if options.get("dtype") in SMALLER:
            options["dtype"] = torch.float64
        if func is torch.ops.aten._grouped_mm.default:
            return _multiply_groups(*map(_to_float64, args), **_keywords_of_groups(options))
        if not func._schema.is_mutable:
            args = tree_map(_to_float64, args)
            if func is torch.ops.aten.topk.default:
                return _choose_largest(*args, **options)
            if func in (torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default):
                args = (*args[:2], False)  # the third argument converts half precision to float32
        return func(*args, **options)


def _keywords_of_groups(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a product of groups without the type of its result."""
    return {name: _to_float64(value) for name, value in options.items() if name in ("offs", "bias")}


def _multiply_groups(rows: Tensor, matrices: Tensor, offs: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Products of groups, such as the tokens of each expert with its matrix; torch has them in smaller types alone.

    rows (tokens, n) and matrices (groups, n, m): group g is the rows that end before ``offs[g]``; for (n, tokens) and
    (tokens, m) it is those columns and rows, and the result is (groups, n, m).
    """
    if offs is None:
        product = rows @ matrices
        return product if bias is None else product + bias
    ends = offs.tolist()
    spans = list(zip([0, *ends[:-1]], ends, strict=True))
    if matrices.dim() == 2:
        return torch.stack([rows[:, start:end] @ matrices[start:end] for start, end in spans])
    product = rows.new_zeros(rows.shape[0], matrices.shape[-1])
    for (start, end), matrix in zip(spans, matrices, strict=True):
        product[start:end] = rows[start:end] @ matrix
    return product if bias is None else product + bias


def _choose_largest(
    numbers: Tensor, k: int, dim: int = -1, largest: bool = True, is_sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """``topk`` that takes equal numbers in their order."""
    del is_sorted
    values, places = numbers.sort(dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k), places.narrow(dim, 0, k)


def _to_float64(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.dtype in SMALLER else value
