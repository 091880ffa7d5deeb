"""The bias of a recorded layer in its smallest form: nothing if it is 0, a table if it depends on distance alone.

    bias[h, i, j] = table[h, j - i]

T5 passes a tensor (1, heads, queries, keys) to every layer, of zeros where it has no bias. It is quadratic in length,
and the table linear.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.kernels.request import Bias
from regard.positions.base import DistanceBias


@final
class RecordedDistanceBias(DistanceBias):
    """A bias by distance, for one number of queries and keys.

    ``numbers`` (heads, queries + keys - 1) are those of the distances 1 - keys to queries - 1.
    """

    def __init__(self, numbers: Float[Tensor, "heads distances"], *, keys: int) -> None:
        super().__init__()
        self.numbers, self.heads, self.lowest = numbers, numbers.shape[0], 1 - keys

    def table(self, lowest: int, highest: int) -> Float[Tensor, "heads distances"]:
        """Return the bias of distances; one that no query and key have gets that of the nearest."""
        distances = torch.arange(lowest, highest + 1, device=self.numbers.device)
        return self.numbers[:, (distances - self.lowest).clamp(0, self.numbers.shape[1] - 1)]


def simplify_bias(bias: Float[Tensor, "#batch #heads #queries #keys"], *, queries: int, keys: int) -> Bias | None:
    """Return an equal bias that takes less memory, if there is one; else a copy."""
    bias = bias.detach()
    if not bool(bias.any()):
        return None
    if bias.shape[0] == 1 and tuple(bias.shape[2:]) == (queries, keys):
        heads = bias[0]
        if torch.equal(heads[:, 1:, 1:], heads[:, :-1, :-1]):
            return RecordedDistanceBias(torch.cat((heads[:, -1], heads[:, :-1, -1].flip(1)), dim=1), keys=keys)
    return bias.clone()
