"""A picture whose neighbouring tokens are joined to squares, for a page on which the weights of all would be too large.

    coarse[Q, K] = mean over the queries i of square Q of the sum over the keys j of square K of weights[i, j]

So a row is still what its queries pay to each square, and the rows of a distribution still add up to 1. Tokens before
the patches, such as the class token, stay alone, and so do layers with windows and tokens that have names of their own.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from jaxtyping import Float, Float64

from regard.models.media_encoder import TokenGrid
from regard.view.layer_weights import weights_alone
from regard.view.picture_comparison import PictureComparison, compare_pictures
from regard.view.picture_reading import Cell, PictureLayer, PictureReading
from regard.view.sound_track import HeardWord, SoundTrack

REASON = "Neighbouring tokens are joined on this page, and have no queries and keys of their own."


def count_joined(reading: PictureReading, factor: int) -> int:
    """The number of weights of a reading whose tokens are joined, or of queries and keys of a layer with windows."""
    return sum(
        layer.attention.without_values().size
        if layer.windows is not None
        else math.prod((layer.attention.heads, *(_coarse_grid(grid, factor).tokens for grid in _grids(layer))))
        for layer in reading.layers
    )


def join_tokens(reading: PictureReading, factor: int) -> PictureReading:
    """Join the tokens of a reading to squares of ``factor`` x ``factor``; of one row or column, to as many in a row."""
    first, last = reading.layers[0], reading.layers[-1]
    queries, keys, read_out = (_squares(grid, factor) for grid in (first.grid, first.grid_of_keys, last.grid_of_keys))
    axis, columns = reading.axis, _factors(first.grid_of_keys, factor)[1]
    return replace(
        reading,
        layers=tuple(_join_layer(layer, factor) for layer in reading.layers),
        rollout=None if reading.rollout is None else _means(queries) @ reading.rollout @ keys.T,
        gradient_rollouts={label: rows @ keys.T for label, rows in reading.gradient_rollouts.items()},
        similarities={text: _means(queries) @ cosines for text, cosines in reading.similarities.items()},
        readout=None if reading.readout is None else read_out @ reading.readout,
        axis=None if axis is None else replace(axis, seconds_per_token=axis.seconds_per_token * columns),
        track=None if reading.track is None else _join_track(reading.track, _factors(first.grid, factor)[1]),
    )


def join_tokens_of_comparison(comparison: PictureComparison, factor: int) -> PictureComparison:
    """Compare two readings whose tokens are joined, as ``join_tokens``."""
    first = join_tokens(comparison.first, factor)
    is_self = comparison.first is comparison.second
    second = first if is_self else join_tokens(comparison.second, factor)
    return compare_pictures(first, second, names=comparison.names)


def _join_layer(layer: PictureLayer, factor: int) -> PictureLayer:
    if layer.windows is not None:
        return layer
    queries, keys = (_squares(grid, factor) for grid in _grids(layer))
    joined = [_means(queries) @ weights @ keys.T for weights in layer.attention.by_head()]
    return replace(
        layer,
        grid=_coarse_grid(layer.grid, factor),
        attention=weights_alone(layer.attention, REASON, np.stack(joined)),
        cell=_coarse_cell(layer.cell, layer.grid, factor),
        key_grid=None if layer.key_grid is None else _coarse_grid(layer.key_grid, factor),
        key_cell=None
        if layer.key_grid is None or layer.key_cell is None
        else _coarse_cell(layer.key_cell, layer.key_grid, factor),
    )


def _grids(layer: PictureLayer) -> tuple[TokenGrid, TokenGrid]:
    return layer.grid, layer.grid_of_keys


def _factors(grid: TokenGrid, factor: int) -> tuple[int, int]:
    """How many rows and columns of tokens become one."""
    if not grid.rows or grid.names:
        return 1, 1
    return min(factor, grid.rows), min(factor, grid.columns)


def _coarse_grid(grid: TokenGrid, factor: int) -> TokenGrid:
    rows, columns = _factors(grid, factor)
    return replace(grid, rows=-(-grid.rows // rows), columns=-(-grid.columns // columns))


def _coarse_cell(cell: Cell, grid: TokenGrid, factor: int) -> Cell:
    rows, columns = _factors(grid, factor)
    return cell[0] * rows, cell[1] * columns


def _squares(grid: TokenGrid, factor: int) -> Float64[np.ndarray, "squares tokens"]:
    """Which tokens are in which square, as 1 and 0."""
    (rows, columns), coarse, prefix = _factors(grid, factor), _coarse_grid(grid, factor), len(grid.prefix)
    row, column = np.divmod(np.arange(grid.rows * grid.columns), max(1, grid.columns))
    members = np.zeros((coarse.tokens, grid.tokens))
    members[range(prefix), range(prefix)] = 1
    members[prefix + row // rows * coarse.columns + column // columns, prefix + np.arange(len(row))] = 1
    return members


def _means(members: Float64[np.ndarray, "squares tokens"]) -> Float[np.ndarray, "squares tokens"]:
    return np.asarray(members / members.sum(axis=1, keepdims=True))


def _join_track(track: SoundTrack, columns: int) -> SoundTrack:
    """The words of a sound with the numbers of joined queries."""

    def joined(words: tuple[HeardWord, ...]) -> tuple[HeardWord, ...]:
        ends = [(word.queries.start // columns, -(-word.queries.stop // columns)) for word in words]
        return tuple(replace(word, queries=range(*end)) for word, end in zip(words, ends, strict=True))

    return replace(track, labels=joined(track.labels), words=joined(track.words))
