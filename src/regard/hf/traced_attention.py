"""Attention with a mask while torch traces: in one operator, which reads the mask when the graph runs, if it can."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.hf.masked_attention_op import masked_attention
from regard.kernels.operators.kernel_arguments import make_kernel_arguments
from regard.kernels.select import select
from regard.masks.dense_mask import Keep
from regard.tensors import is_traced
from regard.validation import make_request

_MIN_CELLS = 2**18
"""Queries x keys from which on reading a mask takes less time than its structure saves."""


def attention_in_graph(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *, dropout: float, **terms: Any
) -> Tensor | None:
    """Compute attention in a graph that is traced; None if torch does not trace, or the mask is part of the graph.

    That is a small mask, one with a gradient or with heads of its own, and any mask where another implementation than
    native computes. ``terms`` are scale, softcap and sinks. Raises what ``regard.attention`` raises.
    """
    if not is_traced() or not _is_readable(attention_mask):
        return None
    # The cells are for the checks of sizes; nothing reads them.
    request = make_request(
        query, key, value, mask=Keep(attention_mask.detach() == 0), bias=None, dropout=dropout, **terms
    )
    if select("attention", "auto", request).name != "native":
        return None
    scaled = request.with_rebalanced_scale
    without_mask = scaled.terms._replace(mask=None)
    arguments = make_kernel_arguments(request.frame, query.shape[0], scaled.query.dtype, without_mask)
    output: Tensor = masked_attention(scaled.query, scaled.key, scaled.value, attention_mask.detach(), arguments)
    return output if scaled is request else output.to(query.dtype)


def _is_readable(mask: Any) -> bool:
    return (
        isinstance(mask, Tensor)
        and mask.dim() == 4
        and mask.is_cpu
        and not mask.requires_grad
        and (mask.is_floating_point() or mask.dtype == torch.bool)
        and mask.shape[1] == 1
        and mask.shape[2] * mask.shape[3] >= _MIN_CELLS
    )
