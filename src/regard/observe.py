"""``regard.observe``: what attention looked at, in memory linear in length."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.contract import Observation
from regard.errors import OptionError
from regard.kernels.request import Bias
from regard.kernels.select import implementation
from regard.masks.base import Mask
from regard.shapes import checked


def observe(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    top: int = 8,
    rows: Sequence[int] | Tensor | None = None,
    impl: str = "auto",
) -> Observation:
    """Attention and what it looked at: see ``Observation`` for the statistics and their shapes.

    Args:
        query, key, value, mask, bias, scale, impl: as for ``regard.attention``.
        top: how many of each query's largest weights to report.
        rows: indices of queries whose exact weights over all keys are wanted; negative ones count from the end.

    No queries x keys matrix is held: queries are taken in tiles. All results are differentiable; in training
    each tile is computed again in the backward pass.

    Raises: as ``regard.attention``; OptionError also for a ``top`` below 0 or a row that is not there.
    """
    request = checked(query, key, value, mask=mask, bias=bias, scale=scale)
    check_top(top)
    chosen = implementation(impl, request, observing=True)
    return chosen.observe(request, top, query_rows(rows, request.frame.queries, request.device))


def check_top(top: int) -> None:
    """Raise OptionError for a number of weights below 0."""
    if isinstance(top, bool) or not isinstance(top, int) or top < 0:
        raise OptionError(
            "top is a number of weights",
            expected="an integer of 0 or more",
            got=repr(top),
            do="for example top=8",
        )


def query_rows(rows: Sequence[int] | Tensor | None, queries: int, device: torch.device) -> Tensor | None:
    """Indices of queries, from 0; OptionError for one that is not there."""
    if rows is None:
        return None
    try:
        index = torch.as_tensor(rows, device=device)
    except (TypeError, ValueError):  # not numbers
        index = torch.tensor(torch.nan)
    whole = index.numel() == 0 or not (index.is_floating_point() or index.dtype == torch.bool)
    index = index.long()
    if not whole or index.dim() != 1 or bool(((index < -queries) | (index >= queries)).any()):
        raise OptionError(
            "rows names queries that are not there",
            expected=f"a list of integers from {-queries} to {queries - 1}",
            got=repr(rows),
            do="count queries from 0",
        )
    return torch.where(index < 0, index + queries, index)
