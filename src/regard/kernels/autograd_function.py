"""``torch.autograd.Function`` with a type for ``apply``, which torch declares without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:

    class Function(torch.autograd.Function):
        """A function with a backward pass of its own."""

        @classmethod
        def apply(cls, *inputs: Any, **named: Any) -> Any:
            """Compute the output, and record the backward pass."""

else:
    Function = torch.autograd.Function
