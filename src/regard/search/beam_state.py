"""The live hypotheses of beam search: rows, source by source, and their best continuations.

    rows     those of one source stand together, the most probable first; a source may have fewer than another, or none
    grid     (sources, most rows of a source * tokens): where the rows of a source are compared

A source without live rows is not in the grid, so it costs nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor


@final
class Continuations(NamedTuple):
    """The most probable ones of each source that has live rows, in falling order.

    source           (sources,)             which sources these are
    row              (sources, candidates)  the row that is continued
    token            (sources, candidates)  by which token
    log_probability  (sources, candidates)  of all together; -infinity where there are no more
    """

    source: Int[Tensor, " sources"]
    row: Int[Tensor, "sources candidates"]
    token: Int[Tensor, "sources candidates"]
    log_probability: Float[Tensor, "sources candidates"]


@final
@dataclass(frozen=True, eq=False)
class BeamState:
    """``source`` (rows,) of each row, its tokens ``tokens`` (rows, length), and their log-probability.

    The first token is what the model begins with. ``coverage`` (rows, source length) is the sum of the weights so far,
    where they are asked for.
    """

    source: Int[Tensor, " rows"]
    tokens: Int[Tensor, "rows length"]
    log_probability: Float[Tensor, " rows"]
    coverage: Float[Tensor, "rows source"] | None = None

    @classmethod
    def from_first_tokens(cls, tokens: Int[Tensor, " sources"]) -> BeamState:
        """One row a source, of nothing but its first token, which is no part of the target."""
        source = torch.arange(len(tokens), device=tokens.device)
        return cls(source, tokens[:, None], torch.zeros(len(tokens), device=tokens.device))

    def extend(
        self, row: Int[Tensor, " new"], token: Int[Tensor, " new"], log_probability: Float[Tensor, " new"]
    ) -> BeamState:
        """Rows from these, a token longer."""
        written = torch.cat([self.tokens[row], token[:, None]], dim=1)
        coverage = None if self.coverage is None else self.coverage[row]
        return BeamState(self.source[row], written, log_probability, coverage)

    def add_coverage(self, weights: Float[Tensor, "rows source"]) -> BeamState:
        """The rows, which have looked at their source once more."""
        return replace(self, coverage=weights if self.coverage is None else self.coverage + weights)

    def top_continuations(
        self, values: Float[Tensor, "rows tokens"], ids: Int[Tensor, "rows tokens"], count: int
    ) -> Continuations:
        """The best of all rows of a source: ``values`` are the log-probabilities of ``ids`` after each row."""
        tokens, rows = values.shape[1], torch.arange(len(values), device=values.device)
        first = torch.ones_like(self.source, dtype=torch.bool)
        torch.ne(self.source[1:], self.source[:-1], out=first[1:])
        begins, group = first.nonzero()[:, 0], first.cumsum(0) - 1
        rank = rows - begins[group]
        most = int(rank.max()) + 1
        grid = values.new_full((len(begins), most, tokens), -torch.inf)
        grid[group, rank] = values + self.log_probability[:, None]
        log_probability, place = grid.flatten(1).topk(min(count, most * tokens), dim=1)
        # Places without a row hold -infinity; whichever row they name is not asked for.
        row = (begins[:, None] + place // tokens).clamp_max_(len(values) - 1)
        return Continuations(self.source[begins], row, ids[row, place % tokens], log_probability)
