"""The live hypotheses of beam search, one row each, and their best continuations.

    rows     grouped by source, the most probable first; sources may have different numbers of rows, or none
    grid     (sources, maximum rows of a source * tokens), in which the continuations of a source are compared

A source without live rows is not in the grid, so no step computes for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor


@final
class Continuations(NamedTuple):
    """The most probable continuations of each source that has live rows, in descending order.

    source           (sources,)             indices of the sources
    row              (sources, candidates)  the row that is continued
    token            (sources, candidates)  the token that continues it
    log_probability  (sources, candidates)  of the whole hypothesis, in nats; -infinity for missing candidates
    """

    source: Int[Tensor, " sources"]
    row: Int[Tensor, "sources candidates"]
    token: Int[Tensor, "sources candidates"]
    log_probability: Float[Tensor, "sources candidates"]


@final
@dataclass(frozen=True, eq=False)
class BeamState:
    """The live rows: ``source`` (rows,), ``tokens`` (rows, length), and the tokens' log-probability (rows,).

    The first token of a row is the model's start token, or the last of its prompt. ``coverage`` (rows, source length)
    is the sum of the cross-attention weights so far; None without a coverage penalty.
    """

    source: Int[Tensor, " rows"]
    tokens: Int[Tensor, "rows length"]
    log_probability: Float[Tensor, " rows"]
    coverage: Float[Tensor, "rows source"] | None = None

    @classmethod
    def from_first_tokens(cls, tokens: Int[Tensor, " sources"]) -> BeamState:
        """Start with one row for each source, holding only the first token, which is not part of the target."""
        source = torch.arange(len(tokens), device=tokens.device)
        return cls(source, tokens[:, None], torch.zeros(len(tokens), device=tokens.device))

    def extend(
        self, row: Int[Tensor, " new"], token: Int[Tensor, " new"], log_probability: Float[Tensor, " new"]
    ) -> BeamState:
        """Select the rows ``row``, and append ``token`` to each."""
        tokens = torch.cat([self.tokens[row], token[:, None]], dim=1)
        coverage = None if self.coverage is None else self.coverage[row]
        return BeamState(self.source[row], tokens, log_probability, coverage)

    def add_coverage(self, weights: Float[Tensor, "rows source"]) -> BeamState:
        """Add the cross-attention weights of a step to the coverage."""
        return replace(self, coverage=weights if self.coverage is None else self.coverage + weights)

    def top_continuations(
        self, values: Float[Tensor, "rows tokens"], ids: Int[Tensor, "rows tokens"], count: int
    ) -> Continuations:
        """The ``count`` best continuations of each source; ``values`` are the log-probabilities of ``ids`` by row."""
        tokens, rows = values.shape[1], torch.arange(len(values), device=values.device)
        first = torch.ones_like(self.source, dtype=torch.bool)
        torch.ne(self.source[1:], self.source[:-1], out=first[1:])
        begins, group = first.nonzero()[:, 0], first.cumsum(0) - 1
        rank = rows - begins[group]
        max_rows = int(rank.max()) + 1
        grid = values.new_full((len(begins), max_rows, tokens), -torch.inf)
        grid[group, rank] = values + self.log_probability[:, None]
        log_probability, place = grid.flatten(1).topk(min(count, max_rows * tokens), dim=1)
        # Empty places of the grid hold -infinity; their row index is not used.
        row = (begins[:, None] + place // tokens).clamp_max_(len(values) - 1)
        return Continuations(self.source[begins], row, ids[row, place % tokens], log_probability)
