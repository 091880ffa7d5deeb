"""Two readings of pictures compared: how much the attention of each token moved, in each head.

    moved_i = 1/2 * sum over keys j of |first_ij - second_ij|        of token i: 0 .. 1
    change  = mean of moved_i over the tokens of the layer

A token is compared with the one at the same place: the same row and column, or the same name beside the patches. That
means something for two models or checkpoints on one picture; of two pictures it says what a head does wherever the
things are. Heads are compared as in ``reading_comparison``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, final

import numpy as np
from jaxtyping import Float32, Float64

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_kind
from regard.fields import repr_of_fields
from regard.layers.window_partition import WindowPartition
from regard.models.media_encoder import TokenGrid
from regard.view.picture_reading import PictureLayer, PictureReading
from regard.view.reading_comparison import HeadChange, WordMove, find_move, heads_of, nearest_heads
from regard.view.shares import shares_of

_Layout: TypeAlias = tuple[TokenGrid, TokenGrid, WindowPartition | None]


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class PictureComparison:
    """Two readings whose tokens lie alike, and the changes of heads, the largest first.

    ``names`` are the names of the two, such as those of models. ``moved`` has, for each head in the order of ``heads``,
    the share of the attention of each token that moved.
    """

    __repr__ = repr_of_fields

    first: PictureReading
    second: PictureReading
    names: tuple[str, str]
    heads: tuple[HeadChange, ...]
    moved: tuple[Float32[np.ndarray, " tokens"], ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is no layer to show."""
        return not self.heads

    @property
    def title(self) -> str:
        """The names of both pictures, or one if they are equal."""
        return " | ".join(dict.fromkeys((self.first.title, self.second.title)))

    def shares_of(self, side: int, layer: int, head: int) -> Float64[np.ndarray, "tokens keys"]:
        """The shares of a head of the first (0) or second (1) reading."""
        return shares_of((self.first, self.second)[side].layers[layer].attention, head)

    def move_in_head(self, number: int) -> WordMove:
        """The row that changed most in the head of this number in ``heads``; places are tokens, and keys of the row."""
        change, moved = self.heads[number], self.moved[number]
        token = int(np.argmax(moved))
        before = self.shares_of(0, change.layer, change.head)[token]
        after = self.shares_of(1, change.other_layer, change.other_head)[token]
        return find_move(token, change, float(moved[token]), before, after)

    def name_of_key(self, move: WordMove, key: int) -> str:
        """The name of a key of the row of a move: "row 0, column 0", or "padding" of a window."""
        layer = self.first.layers[move.change.layer]
        token = int(layer.keys[move.place][key])
        return "padding" if token < 0 else layer.name_of_key(token)


@explain_arguments
def compare_pictures(
    first: PictureReading, second: PictureReading, *, names: tuple[str, str] = ("A", "B")
) -> PictureComparison:
    """Compare two readings of pictures or sounds: two models or checkpoints on one, or two pictures of one model.

    ``compare_pictures(reading, reading)`` compares each head with the other head that is nearest to it. Raises
    OptionError for readings whose tokens do not lie alike, DataError for heads that are too many and too large to find
    the nearest of each.
    """
    for reading in (first, second):
        check_kind("reading", reading, PictureReading, do="make one with regard.view.read_file")
    attentions = [[layer.attention for layer in reading.layers] for reading in (first, second)]
    same_numbers = [layer.heads for layer in attentions[0]] == [layer.heads for layer in attentions[1]]
    comparison = PictureComparison(first, second, names, (), ())
    if same_numbers and first is not second:
        _check_layouts([_layout(layer) for layer in first.layers], [_layout(layer) for layer in second.layers])
        heads = [(*head, *head) for head in heads_of(attentions[0])]
    else:
        layouts = [_layout(layer) for reading in (first, second) for layer in reading.layers]
        _check_layouts(layouts, layouts[:1] * len(layouts))
        sides = [partial(comparison.shares_of, side) for side in (0, 1)]
        heads = nearest_heads(attentions[0], attentions[1], *sides, is_self=first is second)
    moved = [
        np.abs(comparison.shares_of(0, *head[:2]) - comparison.shares_of(1, *head[2:])).sum(axis=1) / 2
        for head in heads
    ]
    changes = [HeadChange(*head, float(row.mean()), (0.0, 0.0)) for head, row in zip(heads, moved, strict=True)]
    order = sorted(range(len(heads)), key=lambda number: -changes[number].change)
    return replace(
        comparison,
        heads=tuple(changes[number] for number in order),
        moved=tuple(moved[number].astype(np.float32) for number in order),
    )


def _layout(layer: PictureLayer) -> _Layout:
    return layer.grid, layer.grid_of_keys, layer.windows


def _check_layouts(first: Sequence[_Layout], second: Sequence[_Layout]) -> None:
    """Raise OptionError unless tokens lie alike in all layers that are compared."""
    for layout, other in zip(first, second, strict=True):
        if layout != other:
            raise OptionError(
                "layers that divide their pictures into different tokens have no common places",
                expected="the same rows and columns of tokens in both",
                got=f"{_describe(layout)}, and {_describe(other)}",
                do="compare two models on one picture or sound that both divide alike, or two of the same size",
            )


def _describe(layout: _Layout) -> str:
    grid, keys, windows = layout
    tokens = f"{grid.rows} x {grid.columns}" if grid.rows else f"{len(grid.prefix)} queries"
    others = "" if keys == grid else f" with keys of {keys.rows} x {keys.columns}"
    return f"{tokens}{others}" + (
        "" if windows is None else f" in windows of {windows.size}, shifted by {windows.shift}"
    )
