"""regard::paged_attention, the native kernel for a paged cache as a torch operator: schema, fake.

    key j of entry b   row j % page_size of page page_table[b, j // page_size]         Kwon et al. 2023, section 4.1
    position(i)        i + lengths[b] - queries: the queries are aligned with the end of each sequence
    output_i           sum_j softmax_j(scale * q_i . k_j) v_j    over j < lengths[b] with low <= j - position(i) <= high

With counts the batch has one entry, in which the counts[b] queries of sequence b follow those of the sequence before.

A softcap and sinks change the softmax as in ``regard.attention``. Pages are never copied, and those with keys that the
band hides from all queries are never read, so the table may name any page there. There are no gradients: if they are
needed, the caller gathers the pages.
"""

from __future__ import annotations

from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from regard.kernels.extension import native
from regard.kernels.int8_rows import MAX_ROWS, numbers_in_row
from regard.kernels.operators.kernel_arguments import KernelArguments, make_schema
from regard.kernels.operators.operator import Operator
from regard.kernels.operators.projection_op import DTYPES
from regard.kernels.request import is_scale_in_range, rebalance_scale
from regard.kernels.results import empty_token_major
from regard.kernels.support import MAX_HEAD_DIM, unsupported_reason
from regard.kernels.tracing import any_requires_grad

_TERMS = ("scale", "low", "high", "softcap", "sinks")
"""The arguments of kernels that this one takes."""


@final
class PagedKeysValues(NamedTuple):
    """Paged keys and values of a batch of sequences."""

    key_pages: Shaped[Tensor, "pages key_heads page_size head_dim"]  # or rounded: see ``int8_rows``
    value_pages: Shaped[Tensor, "pages key_heads page_size value_dim"]
    page_table: Int[Tensor, "batch most_pages"]
    lengths: Int[Tensor, " batch"]
    counts: Int[Tensor, " batch"] | None = None
    """The number of queries of each sequence, concatenated in one entry; None if each sequence is an entry."""


def paged_attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    paged: PagedKeysValues,
    terms: KernelArguments,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute the output, through the torch operator if torch is tracing, else by calling the kernel directly.

    Of ``terms`` those in ``_TERMS`` are used.
    """
    scale, *others = (getattr(terms, name) for name in _TERMS)
    if not is_scale_in_range(scale):
        if query.dtype == torch.float16:
            # Scores are multiples of 2^-48: beyond 2^64 a larger scale makes no further difference to the softmax.
            scale = min(max(scale, -(2.0**64)), 2.0**64)
        else:
            query, scale = rebalance_scale(query, scale)
    return PAGED_ATTENTION.call((query, *paged, terms.sinks), query, *paged, scale, *others)


def refuses(query: Tensor, paged: PagedKeysValues, sinks: Tensor | None = None) -> str | None:
    """Return why the kernel cannot compute this; None if it can.

    Raises OptionError if REGARD_ISA names an instruction set that does not run here.
    """
    reason = unsupported_reason(query)
    if reason is not None:
        return reason
    if any_requires_grad(query, sinks):
        return "native has no gradients through a paged cache"
    if paged.key_pages.dtype is torch.int8 and query.dtype not in DTYPES:
        return f"native reads rounded keys and values for float32 and bfloat16, not {query.dtype}"
    if paged.key_pages.dtype is torch.int8 and query.shape[1] > MAX_ROWS * paged.key_pages.shape[1]:
        return f"native reads rounded keys for at most {MAX_ROWS} query heads per key head"
    if max(query.shape[3], numbers_in_row(paged.value_pages)) > MAX_HEAD_DIM:
        return f"native takes a head_dim and value_dim of at most {MAX_HEAD_DIM}"
    return None


def _paged_attention(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    counts: Tensor | None,
    *terms: Any,
) -> Tensor:
    """Compute regard::paged_attention on a CPU."""
    output = _empty_output(query, value_pages)
    if output.numel() > 0:
        options = KernelArguments(**dict(zip(_TERMS, terms, strict=True))).to_kwargs()
        native.paged(query, key_pages, value_pages, page_table, lengths, counts, output, None, **options)
    return output


def _empty_output(query: Tensor, value_pages: Tensor) -> Tensor:
    """Allocate the output."""
    return empty_token_major(query, query.shape[2], numbers_in_row(value_pages))


PAGED_ATTENTION = Operator(
    "paged_attention",
    "(Tensor query, Tensor key_pages, Tensor value_pages, Tensor page_table, Tensor lengths, "
    f"Tensor? counts, {make_schema(_TERMS)}) -> Tensor",
    compute=_paged_attention,
    fake=lambda query, key_pages, value_pages, *_: _empty_output(query, value_pages),
)
