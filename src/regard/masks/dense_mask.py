"""Masks from a bool tensor: ``keep`` (True may attend) and ``blocked`` (True may not attend)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.arguments import explain_arguments
from regard.contract import Frame, check_length
from regard.errors import DtypeError, ShapeError
from regard.masks.as_tensor import as_tensor, to_device
from regard.masks.base import CPU, Mask, Rule
from regard.masks.kernel_mask import KernelMask


@final
@dataclass(frozen=True, eq=False, repr=False)
class Keep(Mask):
    """Dense mask: ``allowed`` (batch or 1, heads or 1, queries or 1, keys or 1), True may attend."""

    allowed: Bool[Tensor, "#batch #heads #queries #keys"]

    def __post_init__(self) -> None:
        batch, heads, queries, _ = self.allowed.shape
        object.__setattr__(self, "batch", batch if batch != 1 else None)
        object.__setattr__(self, "heads", heads if heads != 1 else None)
        object.__setattr__(self, "depends_on_query", queries != 1)

    def __repr__(self) -> str:
        return f"keep(bool {tuple(self.allowed.shape)})"

    def lower_without_tiles(self, frame: Frame) -> KernelMask:
        """Pass the tensor itself to the kernel."""
        del frame
        return KernelMask(dense=to_device(self.allowed, CPU))

    def check_lengths(self, queries: int, keys: int) -> None:
        """Raise ShapeError if the tensor has other lengths."""
        check_length("queries", queries)
        check_length("keys", keys)
        for name, got, length in (
            ("queries", self.allowed.shape[2], queries),
            ("keys", self.allowed.shape[3], keys),
        ):
            if got != 1 and got != length:
                raise ShapeError(
                    f"mask does not fit the {name}",
                    expected=f"a mask for {length} {name} (or 1, for all)",
                    got=f"{self!r}, that is {got} {name}",
                    do="build the mask for the tensors it is used with; axes are (batch, heads, queries, keys)",
                )

    def mask_mod(self, queries: int, keys: int, *, device: torch.device | str | None = None) -> Rule:
        """Return the rule, with its tensors on ``device``. Raises ShapeError if the tensor has other lengths."""
        self.check_lengths(queries, keys)
        allowed = to_device(self.allowed, device)
        sizes = allowed.shape

        def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            index = (batch, head, query, key)
            return allowed[tuple(at if size != 1 else at * 0 for at, size in zip(index, sizes, strict=True))]

        return rule


@explain_arguments
def keep(tensor: Any) -> Mask:
    """Make a mask from a bool tensor, array or nested list in which True means "may attend".

    Shape (queries, keys), or (batch, heads, queries, keys) with size 1 for axes along which it is the same. The tensor
    is copied.
    """
    return Keep(_to_4d(tensor, "keep"))


@explain_arguments
def blocked(tensor: Any) -> Mask:
    """Make a mask from a bool tensor in which True means "may NOT attend"; shapes as for ``keep``."""
    return Keep(~_to_4d(tensor, "blocked"))


def _to_4d(given: Any, name: str) -> Bool[Tensor, "batch heads queries keys"]:
    tensor = as_tensor(given, f"the argument of masks.{name}", "a bool tensor")
    if tensor.dtype != torch.bool:
        raise DtypeError(
            f"masks.{name} takes a bool tensor",
            expected="torch.bool",
            got=str(tensor.dtype),
            do="convert additive masks (0 and -inf) with masks.from_sdpa or masks.from_transformers",
        )
    if tensor.dim() == 2:
        return tensor[None, None]
    if tensor.dim() == 4:
        return tensor
    raise ShapeError(
        f"masks.{name} takes 2 or 4 dimensions",
        expected="(queries, keys) or (batch, heads, queries, keys), 1 for axes along which it is the same",
        got=f"shape {tuple(tensor.shape)}",
        do="for a padding matrix (batch, keys) write tensor[:, None, None, :]",
    )
