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

SMALLER = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""Types that become float64."""


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
        if not func._schema.is_mutable:
            args = tree_map(_to_float64, args)
            if func in (torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default):
                args = (*args[:2], False)  # the third argument converts half precision to float32
        return func(*args, **options)


def _to_float64(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.dtype in SMALLER else value
