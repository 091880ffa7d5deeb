"""Attention to keys and values in the pages of a pool: in place by the kernel, or each sequence gathered first.

in place    regard::paged_attention on a CPU (``operators.paged_attention_op``), for masks that are a band
gathered    the keys and values of one sequence after the other, copied out of the pages, for everything else: the
            caller does that, who knows which pages a sequence still has
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from regard.contract import Frame
from regard.kernels.implementation import Implementation
from regard.kernels.int8_rows import widen_rows
from regard.kernels.operators import paged_attention_op
from regard.kernels.operators.kernel_arguments import make_kernel_arguments
from regard.kernels.operators.paged_attention_op import PagedKeysValues
from regard.kernels.request import Terms
from regard.masks.band import Band
from regard.masks.base import Mask


@final
@dataclass(frozen=True)
class PagedRequest:
    """One call of attention over pages, checked.

    Args:
        query: (batch, heads, queries, head_dim), which stand at the end of each sequence.
        pages: the keys and values of the batch.
        terms: with a mask over one sequence, and without bias and dropout.
        attend_gathered: compute the same with each sequence gathered.
    """

    query: Tensor
    pages: PagedKeysValues
    terms: Terms
    attend_gathered: Callable[[], Tensor]

    def describe(self) -> str:
        """The request in one line, for messages."""
        return f"query {tuple(self.query.shape)} {self.query.dtype} on {self.query.device}, mask {self.terms.mask!r}"


def _refuses_in_place(request: PagedRequest) -> str | None:
    """Refuse the calls that the kernel refuses, and masks that are no band at the end of the keys."""
    reason = paged_attention_op.refuses(request.query, request.pages, request.terms.sinks)
    if reason is not None:
        return reason
    if find_band(request.terms.mask) is not None:
        return None
    return f"in pages native takes causal() and window(...), and this is {request.terms.mask!r}"


def find_band(mask: Mask | None) -> tuple[int | None, int | None] | None:
    """Return the lowest and highest ``key - position(query)`` that a mask allows in pages; None if it is no band."""
    if mask is None:
        return None, None
    if isinstance(mask, Band) and mask.align == "end":
        return None if mask.left is None else -mask.left, mask.right
    return None


def _attend_in_place(request: PagedRequest) -> Tensor:
    """One call of the kernel."""
    query, (low, high) = request.query, find_band(request.terms.mask) or (None, None)
    frame = Frame(query.shape[2], query.shape[2])  # without a mask and a bias, no argument depends on the keys
    terms = make_kernel_arguments(frame, query.shape[0], query.dtype, request.terms._replace(mask=None))
    return paged_attention_op.paged_attention(query, request.pages, terms._replace(low=low, high=high))


def gather_sequence(
    pages: Shaped[Tensor, "pages heads page_size stored_width"],
    numbers: Int[Tensor, " most_pages"],
    length: int,
    dtype: torch.dtype,
) -> Float[Tensor, "1 heads length width"]:
    """The first ``length`` tokens of the pages with these numbers, one page after the other, as a copy.

    Rounded ones are widened to ``dtype``, which is otherwise that of the pages.
    """
    written = numbers[: -(-length // pages.shape[2])].long().to(pages.device)
    rows = pages[written].transpose(0, 1).flatten(1, 2)[None, :, :length]
    return widen_rows(rows, dtype) if rows.dtype is torch.int8 else rows


IN_PLACE = Implementation(
    "native",
    compute=_attend_in_place,
    refuses=_refuses_in_place,
    why_chosen="reads the pages where they lie",
)
GATHERED = Implementation(
    "gathered",
    compute=lambda request: request.attend_gathered(),
    why_chosen="takes any mask, any device and gradients",
)
