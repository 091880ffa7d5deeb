"""``ChosenKeysMechanism``: base class of exact attention to keys that are chosen for each query.

    o_i = softmax(scale * q_i . k_j) v_j      over the keys j that are chosen for query i

A subclass chooses (``choose``), and the rest follows: the output, weights, steps, and how much of exact attention is
kept (``kept_mass``). The choice itself has no gradient: gradients flow through the chosen keys only.

What a choice must keep: hidden keys take no part in it; a key that is not finite is chosen before all others by the
queries that may see it, so that its NaN reaches them as it does in exact attention; values take no part, so a NaN in a
value alone reaches the queries that chose its key.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import final

import torch
from jaxtyping import Bool, Float, Float64, Int, Int32
from torch import Tensor

from regard.kernels.implementations.chosen_blocks import ChosenBlocksRequest
from regard.kernels.implementations.gathered_keys import GatheredKeysRequest
from regard.kernels.reference.attention import compute_weights, make_dot_product_problem
from regard.kernels.request import Request
from regard.kernels.select import attend
from regard.masks.base import Mask
from regard.masks.dense_mask import Keep
from regard.mechanisms.base import Mechanism, Traits
from regard.mechanisms.clean_tokens import fill_zeros, is_false
from regard.mechanisms.steps import Steps

_CELLS_AT_ONCE = 1 << 23
"""Pairs of a query and a key that are scored at once, at most, or one query's."""


class ChosenKeysMechanism(Mechanism):
    """Base class of exact attention to chosen keys: a subclass chooses them."""

    traits = Traits(approximates="dot_product", divides_scores=True, ignores_hidden_keys=True)

    @abstractmethod
    def choose(self, request: Request, rows: Int[Tensor, " rows"]) -> Bool[Tensor, "batch heads rows keys"]:
        """Choose the keys of the queries ``rows``, among those that they may attend to; without gradients."""

    def refuses(self, request: Request) -> str | None:
        """Refuse a bias."""
        if request.bias is not None:
            return "a bias is not part of its choice of keys"
        return None

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output, some queries at a time."""
        return self.attend_under_mask(request)

    @final
    def attend_under_mask(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output with a dense mask of the chosen keys for some queries at a time."""
        outputs = []
        for rows in split_rows(request) or (request.frame.all_rows(request.device),):
            of_rows = request.replace(query=request.query[:, :, rows], mask=Keep(self.choose(request, rows)), inputs={})
            outputs.append(attend_exactly(of_rows))
        return torch.cat(outputs, dim=2) if len(outputs) > 1 else outputs[0]

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Compute the softmax over the chosen keys of some queries, in plain torch."""
        of_rows = request.replace(query=request.query[:, :, rows], mask=Keep(self.choose(request, rows)), inputs={})
        return compute_weights(make_dot_product_problem(of_rows))

    def steps(self, request: Request) -> Steps | None:
        """Return the inputs of the scaled dot product, with the chosen keys as the mask."""
        return Steps(
            request.query, request.repeated_key, self._chosen_mask(request), scale=self.scale, hidden_by="choice"
        )

    @final
    def kept_mass(
        self, query: Tensor, key: Tensor, mask: Mask | None = None, **inputs: Tensor
    ) -> Float[Tensor, "batch heads queries"]:
        """Compute which part of the weights of exact attention is on the chosen keys: 1 if nothing is lost.

        Exact attention is to all keys that a query could choose from. ``top_k`` keeps the most of all choices of as
        many keys. 0 for queries without keys.
        """
        with torch.no_grad():
            request = self.make_request(query, key, key[..., :0], mask, None, inputs)
            parts = [request.query.new_zeros((*request.query.shape[:2], 0))]
            for rows in split_rows(request):
                of_rows = request.replace(
                    query=request.query[:, :, rows], mask=Keep(self.visible(request, rows)), inputs={}
                )
                weights = compute_weights(make_dot_product_problem(of_rows))
                parts.append(weights.masked_fill(~self.choose(request, rows), 0.0).sum(-1))
            return torch.cat(parts, dim=2)

    def visible(self, request: Request, rows: Int[Tensor, " rows"]) -> Bool[Tensor, "#batch #heads #rows keys"]:
        """Return the keys that the queries ``rows`` may choose from: those that the mask of the call allows."""
        return visible_keys(request, rows)

    def _chosen_mask(self, request: Request) -> Mask:
        chosen = [self.choose(request, rows) for rows in split_rows(request)]
        empty = torch.zeros(1, 1, 0, request.frame.keys, dtype=torch.bool, device=request.device)
        return Keep(torch.cat(chosen, dim=2) if chosen else empty)


def split_rows(
    request: Request, columns: int | None = None, *, cells: int | None = None
) -> tuple[Int[Tensor, " rows"], ...]:
    """Split the queries of a request, so that memory for ``columns`` numbers of each (None: its keys) is bounded."""
    batch, heads, queries, _ = request.query.shape
    columns = request.frame.keys if columns is None else columns
    at_once = max(1, (_CELLS_AT_ONCE if cells is None else cells) // max(1, batch * heads * columns))
    return request.frame.all_rows(request.device).split(at_once) if queries else ()


def attend_to_blocks(
    request: Request,
    chosen: Bool[Tensor, "batch heads queries blocks"],
    block: int,
    lengths: Int[Tensor, " batch"] | None,
    impl: str = "auto",
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute causal attention to the own block of each query and to the complete ``chosen`` ones before it.

    ``lengths`` says how many keys of each batch entry are visible; None is all. ``impl`` is "auto", or "reference" for
    plain torch.
    """
    plain = request.replace(mask=None, inputs={})
    blocks = ChosenBlocksRequest(plain, chosen, block, partial(attend_exactly, impl=impl), lengths)
    name = "masked" if impl == "reference" else impl
    return attend("chosen blocks", name, blocks)


def attend_to_keys(
    request: Request, positions: Int32[Tensor, "batch position_heads queries count"]
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute attention to the keys at ``positions``, ascending and distinct, with -1 behind the last one.

    position_heads is 1 if all heads attend to the same keys.
    """
    keys = GatheredKeysRequest(request.replace(mask=None, inputs={}), positions, attend_exactly)
    return attend("gathered keys", "auto", keys)


def attend_exactly(request: Request, impl: str = "auto") -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute exact attention to the keys that the mask of the request allows."""
    return attend("attention", impl, request)


def visible_keys(request: Request, rows: Int[Tensor, " rows"]) -> Bool[Tensor, "#batch #heads #rows keys"]:
    """Return the keys that the mask of a call allows the queries ``rows`` to see."""
    frame = request.frame
    if request.mask is None:
        return torch.ones(1, 1, 1, frame.keys, dtype=torch.bool, device=request.device)
    allowed = request.mask.dense(frame.queries, frame.keys, device=request.device, rows=rows)
    return allowed.expand(*allowed.shape[:3], frame.keys)


def ranking_tokens(tokens: Float[Tensor, "batch heads length size"]) -> tuple[Float64[Tensor, "..."], Tensor]:
    """Return tokens in float64 for a comparison of their products, 0 where not finite, and flags of the finite ones."""
    wide = tokens.detach().double()
    finite = wide.isfinite().all(-1)
    return fill_zeros(wide, ~finite), finite


def mark_broken(
    scores: Float[Tensor, "batch heads rows keys"], finite: Bool[Tensor, "batch heads keys"]
) -> Float[Tensor, "batch heads rows keys"]:
    """Set the scores of keys that are not finite to Inf, so that they are chosen first."""
    broken = ~finite
    return scores if is_false(broken) else scores.masked_fill(broken[:, :, None], torch.inf)
