"""A table of biases by distance that was computed once, for several layers and several steps of decoding.

    table[h, d - lowest] = bias of head h at distance d,    d = key - position(query)

All layers of a T5 share one bias (Raffel et al. 2020, section 2.1). A layer that computes its own table looks up the
bucket of each distance again, and so does each step of decoding. (heads, distances) -> (heads, some of the distances).
"""

from __future__ import annotations

from typing import Self, final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.arguments import explain_arguments
from regard.contract import check_length
from regard.errors import LARGEST_SIZE, ShapeError, check_kind
from regard.positions.base import DistanceBias
from regard.tensors import check_tensor


@final
@explain_arguments
class DistanceTable(DistanceBias):
    """Biases of the distances from ``lowest`` on: ``biases`` (heads, distances), of any float dtype.

    Gradients flow to ``biases``, and from there to the bias that they were computed from (``of``). Raises ShapeError
    for biases that are not a table, and in a call with a distance that is not in it.
    """

    def __init__(self, biases: Tensor, lowest: int) -> None:
        super().__init__()
        check_tensor("biases", biases, "a tensor (heads, distances)", do="DistanceTable.of(bias, lowest, highest)")
        check_length("lowest", lowest, minimum=-LARGEST_SIZE, maximum=LARGEST_SIZE)
        if biases.dim() != 2 or not biases.is_floating_point():
            raise ShapeError(
                "biases are not a table of distances",
                expected="floats (heads, distances)",
                got=f"{biases.dtype} {tuple(biases.shape)}",
                do="DistanceTable.of(bias, lowest, highest) computes them",
            )
        self.biases, self.lowest, self.heads = biases, lowest, biases.shape[0]

    @classmethod
    def of(cls, bias: DistanceBias, lowest: int, highest: int) -> Self:
        """Compute the table of ``bias`` from ``lowest`` to ``highest``, inclusive, as the kernels read it.

        It has contiguous rows, and at least float32.
        """
        check_kind("bias", bias, DistanceBias, do="for example positions.T5Buckets(heads)")
        table = bias.table(lowest, highest)
        return cls(table.to(torch.promote_types(table.dtype, torch.float32)).contiguous(), lowest)

    @property
    def highest(self) -> int:
        """The highest distance in the table."""
        return self.lowest + self.biases.shape[1] - 1

    def narrowed(self, lowest: int, highest: int) -> DistanceTable:
        """Return the part from ``lowest`` to ``highest``, inclusive, with contiguous rows, or the whole table."""
        if (lowest, highest) == (self.lowest, self.highest):
            return self
        return DistanceTable(self.table(lowest, highest).contiguous(), lowest)

    def table(self, lowest: int, highest: int) -> Float[Tensor, "heads distances"]:
        """Return the bias of each distance from ``lowest`` to ``highest``, inclusive."""
        if (lowest, highest) == (self.lowest, self.highest):
            return self.biases
        if not self.lowest <= lowest <= highest + 1 <= self.highest + 1:
            raise ShapeError(
                "the table of biases lacks distances of this call",
                expected=f"distances from {lowest} to {highest}",
                got=f"a table from {self.lowest} to {self.highest}",
                do="compute it for the longest text: DistanceTable.of(bias, 1 - keys, queries - 1)",
            )
        return self.biases[:, lowest - self.lowest : highest + 1 - self.lowest]

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"heads={self.heads}, distances {self.lowest} to {self.highest}"
