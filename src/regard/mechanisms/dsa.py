"""DeepSeek sparse attention, DSA: a small indexer chooses the keys of each query, and all heads attend to these.

    I_ij = sum_h weight_ih relu(index_query_ih . index_key_j)                            the lightning indexer
    o_i  = softmax(scale * q_i . k_j) v_j     over the ``keys`` largest I_ij that the mask allows
    loss = mean_i KL(p_i || softmax(I_i))     p_i: the exact weights of query i, averaged over heads

DeepSeek-AI 2025, "DeepSeek-V3.2: pushing the frontier of open large language models", section 2.1, equations 1 to 4;
scale = 1/sqrt(head_dim). Of keys with equal scores the first are chosen. The choice is the same in all heads, and has
no gradient: the gradients of the output flow through the chosen keys only, and the indexer learns from its loss alone
(``indexer_loss``), first over all keys, then over the chosen ones.

The indexer computes n^2 scores of ``index_heads * index_dim`` products, once for all heads, and attention takes
n keys d for each head. On a CPU a kernel chooses by float32 products with an error bound, as for ``top_k``, and another
one reads the rows of the chosen keys, once for up to four heads that share a key head; memory is linear in length times
``keys``. If more than a quarter of the keys are chosen, and for float64 tokens and other devices, exact attention is
computed under a mask of the chosen keys, n^2 d. It cannot take a bias. Without the inputs of the indexer nothing is
left out, and it is exact attention.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim), index_query (batch, index_heads,
queries, index_dim), index_key (batch, 1, keys, index_dim), index_weight (batch, index_heads, queries, 1).
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import RefusedError, check_flag, check_sizes
from regard.kernels.autocast import disable_autocast
from regard.kernels.reference.attention import compute_weights, make_dot_product_problem
from regard.kernels.request import Request
from regard.kernels.results import accumulation_dtype
from regard.masks.base import Mask
from regard.masks.dense_mask import Keep
from regard.mechanisms.chosen_keys import (
    ChosenKeysMechanism,
    attend_exactly,
    attend_to_keys,
    mark_broken,
    split_rows,
    visible_keys,
)
from regard.mechanisms.clean_tokens import fill_nan, fill_zeros, is_false, is_finite
from regard.mechanisms.extra_input import ExtraInput
from regard.mechanisms.highest_scores import choose_highest, mark_highest, rounded_scores


@final
@explain_arguments
class DeepSeekSparseAttention(ChosenKeysMechanism):
    """DeepSeek sparse attention: exact attention to the ``keys`` keys that an indexer of small heads chooses.

    ``index_query``, ``index_key`` and ``index_weight`` are the inputs of the indexer, with ``index_heads`` heads of
    ``index_dim``; without ``index_weight`` its heads count alike.
    """

    traits = replace(ChosenKeysMechanism.traits, uses_all_parameters=False)  # the indexer learns from its own loss

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        keys: int = 2048,
        index_heads: int = 4,
        index_dim: int = 32,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        check_sizes(keys=keys, index_heads=index_heads, index_dim=index_dim)
        self.keys, self.index_heads, self.index_dim = int(keys), int(index_heads), int(index_dim)

    @property
    def extra_inputs(self) -> tuple[ExtraInput, ...]:
        """The queries, keys and weights of the indexer."""
        return (
            ExtraInput("index_query", side="query", heads=self.index_heads, size=self.index_dim),
            ExtraInput("index_key", side="key", heads=1, size=self.index_dim),
            ExtraInput("index_weight", side="query", heads=self.index_heads, size=1),
        )

    def refuses(self, request: Request) -> str | None:
        """Refuse a bias, and some of the indexer's inputs without the others."""
        inputs = request.inputs
        if inputs and not {"index_query", "index_key"} <= inputs.keys():
            return f"its indexer needs index_query and index_key, and got only {', '.join(inputs)}"
        return super().refuses(request)

    def choose(self, request: Request, rows: Int[Tensor, " rows"]) -> Bool[Tensor, "batch heads rows keys"]:
        """Choose the keys with the highest scores of the indexer, the same in all heads but for their masks."""
        visible = visible_keys(request, rows)
        shape = (*request.query.shape[:2], rows.shape[0], request.frame.keys)
        if not request.inputs:
            return visible.expand(shape)
        with torch.no_grad():
            scores = rounded_scores(self._score(request, rows, torch.float64), request.query.dtype)
        scores = mark_broken(scores, request.inputs["index_key"].detach().isfinite().all(-1))
        finite = request.repeated_key.detach().isfinite().all(-1)
        if not is_false(~finite):
            scores = mark_broken(scores.expand(shape), finite)
        scores = scores.expand(-1, max(scores.shape[1], visible.shape[1]), -1, -1)
        return mark_highest(scores, visible, self.keys).expand(shape)

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output; by a choice and rows of the chosen keys in kernels where they take the tensors."""
        if not request.inputs or self.keys >= request.frame.keys:  # nothing is left out
            return attend_exactly(replace(_spread_nan(request), inputs={}))
        request = _spread_nan(request)
        index, weight = request.inputs, request.inputs.get("index_weight")
        positions = choose_highest(
            request, index["index_query"], index["index_key"], weight, _broken_keys(request), self.keys, summed=True
        )
        return self.attend_under_mask(request) if positions is None else attend_to_keys(request, positions)

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Compute the softmax over the chosen keys of some queries, in plain torch."""
        return super().row_weights(_spread_nan(request), rows)

    def indexer_loss(
        self, query: Tensor, key: Tensor, mask: Mask | None = None, *, chosen: bool = False, **inputs: Tensor
    ) -> Float[Tensor, ""]:
        """Compute the loss of the indexer: how far its softmax is from the exact weights, in nats per query.

        ``chosen=False`` is the loss of the dense warm-up, over all keys that the mask allows; ``chosen=True`` is the
        loss of sparse training, over the chosen keys. Only the inputs of the indexer have gradients: exact weights are
        the target. Queries without keys, and those that see a number that is not finite, do not count.
        """
        check_flag("chosen", chosen)
        request = self.make_request(query.detach(), key.detach(), key.detach()[..., :0], mask, None, inputs)
        if not request.inputs:
            raise RefusedError(
                "there is no loss without an indexer",
                expected="index_query and index_key",
                got="neither",
                do="pass the inputs of the indexer as to a call of the mechanism",
            )
        spread, dtype = _spread_nan(request), accumulation_dtype(query.dtype)
        losses, count = [], torch.zeros((), dtype=dtype, device=query.device)
        with disable_autocast(query.device):
            for rows in split_rows(request):
                with torch.no_grad():
                    allowed = self.choose(request, rows) if chosen else self._allowed_alike(request, rows)
                    part = spread.replace(query=spread.query[:, :, rows], mask=Keep(allowed), inputs={})
                    target = compute_weights(make_dot_product_problem(part)).mean(1).to(dtype)
                    some = allowed.any(1)
                    counts = some.any(-1) & ~target.isnan().any(-1)
                scores = self._score(_without_broken(request), rows, dtype)[:, 0]
                logs = scores.masked_fill(~some, torch.finfo(dtype).min).log_softmax(-1)
                target = target.masked_fill(~counts[..., None], 0.0)
                losses.append((torch.special.xlogy(target, target) - target * logs).sum())
                count = count + counts.sum()
        return torch.stack([count * 0, *losses]).sum() / count.clamp(min=1)

    def _allowed_alike(self, request: Request, rows: Int[Tensor, " rows"]) -> Tensor:
        return visible_keys(request, rows).expand(*request.query.shape[:2], -1, -1)

    def _score(
        self, request: Request, rows: Int[Tensor, " rows"], dtype: torch.dtype
    ) -> Float[Tensor, "batch 1 rows keys"]:
        """Compute the scores of the indexer for the queries ``rows``, one head after the other."""
        inputs, total = request.inputs, None
        key, query = inputs["index_key"].to(dtype), inputs["index_query"][:, :, rows].to(dtype)
        for head in range(self.index_heads):
            products = (query[:, head : head + 1] @ key.mT).relu()
            if "index_weight" in inputs:
                products = inputs["index_weight"][:, head : head + 1, rows].to(dtype) * products
            total = products if total is None else total + products
        assert total is not None
        return total

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"{super().extra_repr()}, keys={self.keys}, index_heads={self.index_heads}, index_dim={self.index_dim}"


def _broken_keys(request: Request) -> Bool[Tensor, "batch heads 1 keys"] | None:
    """Return the keys of each head that are not finite, which are chosen before all others; None if there are none."""
    if is_false(~is_finite(request.key)):
        return None
    finite = request.repeated_key.detach().isfinite().all(-1)
    return None if is_false(~finite) else ~finite[:, :, None]


def _broken_tokens(request: Request) -> tuple[Bool[Tensor, "batch queries"], Bool[Tensor, "batch keys"]]:
    """Return the tokens that have inputs of the indexer that are not finite."""
    inputs = request.inputs
    query = ~inputs["index_query"].detach().isfinite().all(-1).all(1)
    if "index_weight" in inputs:
        query = query | ~inputs["index_weight"].detach().isfinite().all(-1).all(1)
    return query, ~inputs["index_key"].detach().isfinite().all(-1).all(1)


def _spread_nan(request: Request) -> Request:
    """Make queries and keys NaN whose inputs of the indexer are not finite: what they would choose is unknown."""
    if not request.inputs:
        return request
    query, key = _broken_tokens(request)
    if is_false(query) and is_false(key):
        return request
    return request.replace(
        query=fill_nan(request.query, query[:, None]),
        key=fill_nan(request.key, key[:, None]),
    )


def _without_broken(request: Request) -> Request:
    """Replace inputs of the indexer that are not finite by 0, so that they have gradients of 0."""
    query, key = _broken_tokens(request)
    if is_false(query) and is_false(key):
        return request
    broken = {"index_query": query, "index_weight": query, "index_key": key}
    clean = {name: fill_zeros(tensor, broken[name][:, None]) for name, tensor in request.inputs.items()}
    return request.replace(inputs=clean)
