"""Groups of decoding rows that attend to the same keys, as queries of one batch entry.

    rows (rows, 1, width)  ->  queries (groups, maximum rows of a group, width)  ->  rows

Beam search decodes several hypotheses of a source at once, each in a row. They share the encoded source, so it is
stored once, and the rows of a group attend to it as several queries. It is not copied when beams are reordered, and a
kernel reads it once for all rows of a group.
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
    """The group of each row: ``group_ids`` (rows,), from 0 to ``count - 1``, in any order."""

    group_ids: Int[Tensor, " rows"]
    count: int

    @classmethod
    def one_per_row(cls, rows: int, device: torch.device) -> BeamGroups:
        """Make a group of each row."""
        groups = cls(torch.arange(rows, device=device), rows)
        # Fill in the cached properties, since they cannot be computed on the meta device.
        vars(groups).update(max_rows=1, _rank=torch.zeros_like(groups.group_ids), _is_in_order=True)
        return groups

    def select(self, entries: Int[Tensor, " taken"]) -> tuple[BeamGroups, Int[Tensor, " groups"] | None]:
        """Select rows, and return their groups and the indices of the groups that are left; None if all are left."""
        group_ids = take_rows(self.group_ids, entries)
        present = torch.zeros(self.count, dtype=torch.bool, device=group_ids.device).index_fill(0, group_ids, True)
        if present.all():
            return BeamGroups(group_ids, self.count), None
        return BeamGroups(present.cumsum(0)[group_ids] - 1, int(present.sum())), present.nonzero()[:, 0]

    def rows_to_queries(self, rows: Shaped[Tensor, "rows 1 width"]) -> Shaped[Tensor, "groups queries width"]:
        """Arrange the rows as queries of their groups; smaller groups are padded with zeros."""
        if self._is_in_order:
            return rows.reshape(self.count, self.max_rows, rows.shape[2])
        zeros = rows.new_zeros(self.count * self.max_rows, rows.shape[2])
        return zeros.index_copy(0, self._query_index, rows[:, 0]).view(self.count, self.max_rows, -1)

    def queries_to_rows(self, queries: Shaped[Tensor, "groups queries width"]) -> Shaped[Tensor, "rows 1 width"]:
        """Arrange the queries of the groups as rows: the inverse of ``rows_to_queries``."""
        flat = queries.flatten(0, 1)
        return (flat if self._is_in_order else flat[self._query_index])[:, None]

    @cached_property
    def max_rows(self) -> int:
        """The number of rows of the largest group."""
        return int(self._sizes.max()) if self.count else 0

    @cached_property
    def query_one_hot(self) -> Bool[Tensor, "rows queries"]:
        """Which of its group's queries each row is, (rows, max_rows), True in one place of each row."""
        return self._rank[:, None] == torch.arange(self.max_rows, device=self.group_ids.device)

    @cached_property
    def _sizes(self) -> Int[Tensor, " groups"]:
        return torch.bincount(self.group_ids, minlength=self.count)

    @cached_property
    def _rank(self) -> Int[Tensor, " rows"]:
        """The index of each row among the rows of its group."""
        order = self.group_ids.argsort(stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device)
        return rank - (self._sizes.cumsum(0) - self._sizes)[self.group_ids]

    @cached_property
    def _query_index(self) -> Int[Tensor, " rows"]:
        """The index of each row among all queries."""
        return self.group_ids * self.max_rows + self._rank

    @cached_property
    def _is_in_order(self) -> bool:
        """Whether the rows are already in the order of the queries: group by group, all of the same size."""
        rows = len(self.group_ids)
        return rows == self.count * self.max_rows and torch.equal(
            self._query_index, torch.arange(rows, device=self.group_ids.device)
        )
