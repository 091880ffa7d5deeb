"""``regard.observe``: attention with statistics of its weights, in memory linear in length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from regard.arguments import explain_arguments
from regard.arrays import Array, call_on_tensors, is_foreign
from regard.contract import Observation
from regard.kernels.request import Bias
from regard.kernels.select import select
from regard.masks.base import Mask
from regard.validation import check_top, make_request, query_rows


@explain_arguments
def observe(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Mask | None = None,
    bias: Bias | Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    top: int = 8,
    rows: Sequence[int] | Tensor | None = None,
    impl: str = "auto",
) -> Observation[Array]:
    """Compute attention and statistics of its weights: see ``Observation`` for the statistics and their shapes.

    Args:
        query, key, value, mask, bias, scale, softcap, sinks, impl: as for ``regard.attention``.
        top: how many of each query's largest weights to report; at most 1,024, or as many as there are keys.
        rows: indices of queries whose exact weights over all keys to return; negative ones count from the end.

    ``regard.why(..., operation="observe")`` says which implementation "auto" takes, and why.

    No queries x keys matrix is held: queries are processed in tiles. All results are differentiable; in training
    each tile is computed again in the backward pass.

    Raises: the errors of ``regard.attention``; OptionError also if ``top`` or a row is out of range.
    """
    terms = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks}
    if is_foreign(query):
        return call_on_tensors(observe, query, key, value, **terms, top=top, rows=rows, impl=impl)
    request = make_request(query, key, value, **terms)
    check_top(top, request.frame.keys)
    chosen = select("observe", impl, request)
    statistics: Any = chosen.compute(request, top, query_rows(rows, request.frame.queries, request.device))
    return statistics
