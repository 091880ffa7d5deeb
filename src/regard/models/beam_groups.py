"""Rows of decoding that look at the same keys, side by side as queries.

    rows (rows, 1, width)  ->  queries (groups, most rows of a group, width)  ->  rows

Beam search writes several translations of a sentence at once, each a row. What was read of the sentence is the same
for all of them, so it is kept once, and a group of rows looks at it as that many queries. Nothing of it is copied when
beams change places, and a kernel reads it once for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from regard.mechanisms.key_value_cache import take_rows


@final
@dataclass(frozen=True, eq=False)
class BeamGroups:
    """``group_ids`` (rows,) is the group of each row, from 0 to ``count - 1``; rows of a group may stand anywhere."""

    group_ids: Int[Tensor, " rows"]
    count: int

    @classmethod
    def one_per_row(cls, rows: int, device: torch.device) -> BeamGroups:
        """Each row a group of its own."""
        groups = cls(torch.arange(rows, device=device), rows)
        # Known beforehand: on "meta" nothing could be counted.
        vars(groups).update(max_rows=1, _rank=torch.zeros_like(groups.group_ids), _is_in_order=True)
        return groups

    def select(self, entries: Int[Tensor, " taken"]) -> tuple[BeamGroups, Int[Tensor, " groups"] | None]:
        """The groups of the given rows, and which of the groups they are: None where none has lost all of its rows."""
        of = take_rows(self.group_ids, entries)
        present = torch.zeros(self.count, dtype=torch.bool, device=of.device).index_fill(0, of, True)
        if present.all():
            return BeamGroups(of, self.count), None
        return BeamGroups(present.cumsum(0)[of] - 1, int(present.sum())), present.nonzero()[:, 0]

    def rows_to_queries(self, rows: Shaped[Tensor, "rows 1 width"]) -> Shaped[Tensor, "groups queries width"]:
        """The rows as queries of their group; where a group has fewer than another, zeros stand for the rest."""
        if self._is_in_order:
            return rows.reshape(self.count, self.max_rows, rows.shape[2])
        room = rows.new_zeros(self.count * self.max_rows, rows.shape[2])
        return room.index_copy(0, self._query_index, rows[:, 0]).view(self.count, self.max_rows, -1)

    def queries_to_rows(self, queries: Shaped[Tensor, "groups queries width"]) -> Shaped[Tensor, "rows 1 width"]:
        """The inverse of ``queries``."""
        flat = queries.flatten(0, 1)
        return (flat if self._is_in_order else flat[self._query_index])[:, None]

    @cached_property
    def max_rows(self) -> int:
        """Rows of the largest group."""
        return int(self._sizes.max()) if self.count else 0

    @cached_property
    def query_one_hot(self) -> Bool[Tensor, "rows queries"]:
        """Which of its group's queries a row is."""
        return self._rank[:, None] == torch.arange(self.max_rows, device=self.group_ids.device)

    @cached_property
    def _sizes(self) -> Int[Tensor, " groups"]:
        return torch.bincount(self.group_ids, minlength=self.count)

    @cached_property
    def _rank(self) -> Int[Tensor, " rows"]:
        """How many rows of its group stand before a row."""
        order = self.group_ids.argsort(stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device)
        return rank - (self._sizes.cumsum(0) - self._sizes)[self.group_ids]

    @cached_property
    def _query_index(self) -> Int[Tensor, " rows"]:
        """Where a row stands among all queries."""
        return self.group_ids * self.max_rows + self._rank

    @cached_property
    def _is_in_order(self) -> bool:
        """Whether the rows are the queries as they are: groups one after the other, all of one size."""
        rows = len(self.group_ids)
        return rows == self.count * self.max_rows and torch.equal(
            self._query_index, torch.arange(rows, device=self.group_ids.device)
        )
