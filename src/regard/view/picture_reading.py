"""All data that the views show for one picture: the pixels that the model saw, and its attention over patches.

Another input, such as a sound, is shown as a picture of it (``models.media_encoder.DrawnInput``).

The tokens of a layer lie over the picture as its ``TokenGrid`` says: first those before the patches, such as the class
token, then the patches, row by row. In a layer with windows, as in a Swin, a token attends to its window only:
row i of the weights has a column for each token of the window of token i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, final

import numpy as np
from jaxtyping import Float64, Int, UInt8

from regard.arguments import explain_arguments
from regard.errors import ShapeError
from regard.fields import repr_of_fields
from regard.layers.window_partition import WindowPartition
from regard.models.media_encoder import TimeAxis, TokenGrid
from regard.view.attention_layer import AttentionLayer
from regard.view.sound_track import SoundTrack

Cell: TypeAlias = tuple[int | float, int | float]
"""The (height, width) in pixels of a token; a fraction where convolutions make the tokens."""


PATCHES_NOTE = "Rows and columns are counted from 0. Attention shows which patches a model uses, not why it decides."


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class PictureLayer:
    """One attention layer: how its tokens lie, ``attention``, and its windows, or None if it has none.

    ``cell`` is the (height, width) in pixels of a token of the grid; cells at the right and at the bottom may be cut.
    ``attention`` has a query for each token, and a key for each token, or for each token of the query's window. If keys
    lie on another grid than queries, ``key_grid`` and ``key_cell`` describe the keys' grid; so they do where queries
    are the latents of a Perceiver, whose grid has no rows and no columns. Raises ShapeError for other
    numbers of queries and keys.
    """

    __repr__ = repr_of_fields

    grid: TokenGrid
    attention: AttentionLayer
    cell: Cell
    windows: WindowPartition | None = None
    key_grid: TokenGrid | None = None
    key_cell: Cell | None = None

    def __post_init__(self) -> None:
        keys = self.grid_of_keys.tokens if self.windows is None else self.windows.size**2
        got = (self.attention.queries, self.attention.keys)
        if got != (self.grid.tokens, keys):
            raise ShapeError(
                f"{self.attention.name} does not match its tokens",
                expected=f"{self.grid.tokens} queries and {keys} keys",
                got=f"{got[0]} queries and {got[1]} keys",
                do="pass the grid of this layer: model.token_grids(height, width)",
            )

    @property
    def grid_of_keys(self) -> TokenGrid:
        """How keys lie: ``key_grid``, or the grid of the queries."""
        return self.grid if self.key_grid is None else self.key_grid

    @property
    def keys(self) -> Int[np.ndarray, "tokens keys"]:
        """The token of ``grid_of_keys`` that each key of each query is; -1 for the padding of a window."""
        if self.windows is None:
            keys = self.grid_of_keys.tokens
            return np.broadcast_to(np.arange(keys), (self.grid.tokens, keys))
        cells = self.windows.cells.numpy()
        of_token = np.empty((self.grid.tokens, cells.shape[1]), dtype=np.int64)
        for window in cells:
            of_token[window[window >= 0]] = window
        return of_token

    def name_of(self, token: int) -> str:
        """The name of a token: "class token", or its row and column, which are counted from 0."""
        return _name_token(self.grid, token)

    def name_of_key(self, token: int) -> str:
        """The name of a token of ``grid_of_keys``: "key row 0, column 0" if queries lie on another grid."""
        own = self.key_grid is not None and self.grid.rows > 0 and token >= len(self.key_grid.prefix)
        return f"{'key ' if own else ''}{_name_token(self.grid_of_keys, token)}"


def _name_token(grid: TokenGrid, token: int) -> str:
    if token < len(grid.prefix):
        return f"{grid.prefix[token]} token" if grid.rows else grid.prefix[token]
    if grid.names:
        return grid.names[token - len(grid.prefix)]
    row, column = divmod(token - len(grid.prefix), grid.columns)
    return f"row {row}, column {column}"


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class PictureReading:
    """The attention of one model over one picture.

    Args:
        name: the name of the picture, such as its file's name.
        pixels: (channels, height, width), what the model saw after resizing and cropping.
        layers: the attention layers, in order.
        probabilities: the labels and their probabilities, the most probable first; () without a head.
        rollout: (tokens, tokens), attention rollout through all layers; None if it does not exist.
        gradient_rollouts: by label, (prefix tokens, tokens): how much each token counts for the label; (1, tokens) of
            a model with a readout.
        similarities: by text, (tokens,): the cosine of a CLIP's text with each token; empty for other models.
        readout: (tokens,), the weight of each token of the last layer in the vector that the head reads, as sequence
            pooling gives it, or of each key of a Perceiver by rollout; None for a model without such weights.
        no_rollout_reason: why there is none; "" if there is one.
        noun, note: what a token is called, and a sentence below those with the most attention.
        axis: the time and the frequencies of a picture of a sound; None for other inputs.
        track: the sound, and what the model heard in it; None for other inputs.
    """

    __repr__ = repr_of_fields

    name: str
    pixels: UInt8[np.ndarray, "channels height width"]
    layers: tuple[PictureLayer, ...]
    probabilities: tuple[tuple[str, float], ...] = ()
    rollout: Float64[np.ndarray, "tokens tokens"] | None = None
    gradient_rollouts: Mapping[str, Float64[np.ndarray, "sources tokens"]] = field(default_factory=dict)
    similarities: Mapping[str, Float64[np.ndarray, " tokens"]] = field(default_factory=dict)
    readout: Float64[np.ndarray, " tokens"] | None = None
    no_rollout_reason: str = ""
    noun: str = "patch"
    note: str = PATCHES_NOTE
    axis: TimeAxis | None = None
    track: SoundTrack | None = None

    @property
    def title(self) -> str:
        """The name of the picture, as the title of the page."""
        return self.name

    @property
    def is_empty(self) -> bool:
        """Whether there is no layer to show."""
        return not self.layers

    @property
    def heads(self) -> int:
        """Number of heads in all layers together."""
        return sum(layer.attention.heads for layer in self.layers)
