"""All data that the views show for one picture: the pixels that the model saw, and its attention over patches.

The tokens of a layer lie over the picture as its ``TokenGrid`` says: first those before the patches, such as the class
token, then the patches, row by row. In a layer with windows, as those of a Swin, a token attends to its window only:
row i of the weights has a column for each token of the window of token i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import numpy as np
from jaxtyping import Float64, Int, UInt8

from regard.errors import ShapeError
from regard.layers.window_partition import WindowPartition
from regard.models.image_encoder import TokenGrid
from regard.view.attention_layer import AttentionLayer


@final
@dataclass(frozen=True, eq=False)
class PictureLayer:
    """One attention layer: how its tokens lie, ``attention``, and its windows, or None if it has none.

    ``cell`` is the (height, width) in pixels of a token of the grid; cells at the right and at the bottom may be cut.
    ``attention`` has a query for each token, and a key for each token, or for each token of the query's window. Raises
    ShapeError if it has other numbers of queries and keys.
    """

    grid: TokenGrid
    attention: AttentionLayer
    cell: tuple[int, int]
    windows: WindowPartition | None = None

    def __post_init__(self) -> None:
        keys = self.grid.tokens if self.windows is None else self.windows.size**2
        got = (self.attention.queries, self.attention.keys)
        if got != (self.grid.tokens, keys):
            raise ShapeError(
                f"{self.attention.name} does not match its tokens",
                expected=f"{self.grid.tokens} queries and {keys} keys",
                got=f"{got[0]} queries and {got[1]} keys",
                do="pass the grid of this layer: model.token_grids(height, width)",
            )

    @property
    def keys(self) -> Int[np.ndarray, "tokens keys"]:
        """The token that each key of each query is; -1 for the padding of a window."""
        if self.windows is None:
            return np.broadcast_to(np.arange(self.grid.tokens), (self.grid.tokens, self.grid.tokens))
        cells = self.windows.cells.numpy()
        of_token = np.empty((self.grid.tokens, cells.shape[1]), dtype=np.int64)
        for window in cells:
            of_token[window[window >= 0]] = window
        return of_token

    def name_of(self, token: int) -> str:
        """The name of a token: "class token", or its row and column, which are counted from 0."""
        if token < len(self.grid.prefix):
            return f"{self.grid.prefix[token]} token"
        row, column = divmod(token - len(self.grid.prefix), self.grid.columns)
        return f"row {row}, column {column}"


@final
@dataclass(frozen=True, eq=False)
class PictureReading:
    """The attention of one model over one picture.

    Args:
        name: the name of the picture, such as that of its file.
        pixels: (channels, height, width), what the model saw after resizing and cropping.
        layers: the attention layers, in order.
        probabilities: the labels and their probabilities, the most probable first; () without a head.
        rollout: (tokens, tokens), attention rollout through all layers; None if it does not exist.
        gradient_rollouts: by label, (prefix tokens, tokens): how much each token counts for the label.
        similarities: by text, (tokens,): the cosine of a CLIP's text with each token; empty for other models.
        no_rollout_reason: why there is none; "" if there is one.
    """

    name: str
    pixels: UInt8[np.ndarray, "channels height width"]
    layers: tuple[PictureLayer, ...]
    probabilities: tuple[tuple[str, float], ...] = ()
    rollout: Float64[np.ndarray, "tokens tokens"] | None = None
    gradient_rollouts: Mapping[str, Float64[np.ndarray, "prefix tokens"]] = field(default_factory=dict)
    similarities: Mapping[str, Float64[np.ndarray, " tokens"]] = field(default_factory=dict)
    no_rollout_reason: str = ""

    @property
    def heads(self) -> int:
        """Number of heads in all layers together."""
        return sum(layer.attention.heads for layer in self.layers)
