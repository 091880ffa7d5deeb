"""One attention layer within windows of a picture by its steps: queries and keys, and the weights computed from them.

    weights = softmax(scale * query . key + table[rows apart, columns apart])      over the tokens of the query's window

Liu et al. 2021, "Swin Transformer", equation 4. The map is padded to whole windows, and the tokens that pad it are
keys like any others. So queries are stored for the tokens of the map, and keys and values for the tokens of the padded
map, row by row: ``WindowPartition.slots`` says which of them are in a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64
from torch import Tensor

from regard import masks
from regard.arguments import explain_arguments
from regard.fields import repr_of_fields
from regard.layers.window_partition import WindowPartition
from regard.mechanisms.steps import Steps
from regard.positions.relative_2d import spread_over_pairs
from regard.view.attention_layer import AttentionLayer, check_finite
from regard.view.pack import Json, pack_rows, pack_vectors, round_to_fixed
from regard.view.projections import Projections


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class WindowReading(AttentionLayer):
    """The inputs of one layer: query (heads, tokens, head_dim), key and value (heads, slots, head_dim).

    ``allowed`` (tokens, window tokens) is True where a token may attend to one of its window; None allows all of them.
    ``table`` (heads, (2 size - 1)^2) is the bias by the rows and columns from key to query, as in
    ``positions.Relative2d``, for windows of ``windows.size``. ``projections`` say how queries and keys were computed,
    if that is known. Raises DataError if a number is not finite.
    """

    __repr__ = repr_of_fields

    name: str
    query: Float32[Tensor, "_heads _tokens _head_dim"]
    key: Float32[Tensor, "_heads _slots _head_dim"]
    value: Float32[Tensor, "_heads _slots _value_dim"]
    scale: float
    table: Float32[Tensor, "_heads _offsets"]
    windows: WindowPartition
    allowed: Bool[Tensor, "_tokens _window_tokens"] | None = None
    projections: Projections | None = None

    def __post_init__(self) -> None:
        arrays = (part.numpy() for part in (self.query, self.key, self.value, self.table))
        check_finite(self.name, *arrays, expected="finite queries, keys, values and biases")

    @property
    def heads(self) -> int:
        """Number of heads."""
        return int(self.query.shape[0])

    @property
    def queries(self) -> int:
        """Number of tokens of the map."""
        return int(self.query.shape[1])

    @property
    def keys(self) -> int:
        """Number of tokens of a window."""
        return self.windows.size**2

    @property
    def is_signed(self) -> bool:
        """False: weights come from a softmax."""
        return False

    @property
    def size(self) -> int:
        """Number of values in queries, keys and values together."""
        return self.query.numel() + self.key.numel() + self.value.numel()

    def weights_of_heads(
        self, heads: range, queries: Sequence[int] | None = None
    ) -> Float64[np.ndarray, "some_heads rows keys"]:
        """Weights of some tokens of the map (default: all) over the tokens of their window, of some heads."""
        cells, slots = self.windows.cells, self.windows.slots
        own = cells.clamp(min=0)  # the rows of tokens that pad the map are dropped below
        some = slice(heads.start, heads.stop)
        # (tokens or slots, heads, head_dim), so that windows come first when they are picked
        query, key = (part[some].double().transpose(0, 1) for part in (self.query, self.key))
        allowed = None if self.allowed is None else masks.keep(self.allowed[own][:, None])
        steps = Steps(query[own].transpose(1, 2), key[slots].transpose(1, 2), allowed, self.scale)
        side = 2 * self.windows.size - 1
        table = self.table[some].double().T.reshape(side, side, len(heads))
        computed = steps.weights(bias=spread_over_pairs(table))
        rows = computed.new_empty(len(heads), self.queries, self.keys)
        rows[:, cells[cells >= 0]] = computed.transpose(0, 1)[:, cells >= 0]
        return np.asarray(rows if queries is None else rows[:, list(queries)])

    def round_for_page(self, letters: int) -> WindowReading:
        """Round queries and keys as a page does that stores ``letters`` characters per number."""
        query, key = (torch.from_numpy(round_to_fixed(part.numpy(), letters)) for part in (self.query, self.key))
        return replace(self, query=query, key=key)

    def pack(self, masks: list[str], letters: int) -> Json:
        """Encode the vectors and the table of biases. See ``AttentionLayer.pack``."""
        query, key, value = (part.numpy() for part in (self.query, self.key, self.value))
        allowed = None if self.allowed is None else self.allowed.numpy()
        packed: Json = {"name": self.name, "scale": self.scale}
        return packed | pack_vectors(query, key, value, allowed, masks, letters) | {"table": pack_rows(self.table)}

    def without_values(self) -> WindowReading:
        """The layer without values."""
        return replace(self, value=self.value[..., :0])
