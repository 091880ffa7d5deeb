"""Readings of a picture from the layers of a model of another package, whose tokens are patches of it.

The patches are the last tokens, row by row from the top left; those before them are a class token and its like. Without
``grid`` they are as many as fill a square, and at most ``MAX_PREFIX`` tokens stand before them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from torch import Tensor

from regard.arrays import as_tensor, is_foreign
from regard.errors import OptionError, ShapeError, short_repr
from regard.models.media_encoder import TokenGrid
from regard.tensors import check_tensor, has_values
from regard.view.attention_layer import AttentionLayer
from regard.view.picture_reading import PictureLayer, PictureReading
from regard.view.read_picture import MAX_TOKENS
from regard.view.rollout import attention_rollout

MAX_PREFIX = 8
_NAME = "the picture"


def read_picture_layers(layers: Sequence[AttentionLayer], picture: Any, grid: Any = None) -> PictureReading:
    """Make the reading of layers over a picture, as ``regard.show`` takes it.

    Raises ShapeError for what is no picture, and for layers of other numbers of tokens than ``grid`` has.
    """
    pixels = to_pixels(picture)
    sizes = sorted({(layer.queries, layer.keys) for layer in layers})
    if len(sizes) != 1 or sizes[0][0] != sizes[0][1]:
        raise ShapeError(
            "the layers have different tokens, so they are no patches of one picture",
            expected="as many queries as keys in all layers",
            got=", ".join(f"{queries} x {keys}" for queries, keys in sizes) or "no layer",
            do="show some of the calls: show([call for call in seen if ...], picture=picture)",
        )
    token_grid = _find_grid(sizes[0][0], grid)
    cell = token_grid.cell(*pixels.shape[1:])
    rollout, reason = _roll_out(layers)
    return PictureReading(
        _NAME,
        pixels,
        tuple(PictureLayer(token_grid, layer, cell) for layer in layers),
        rollout=rollout,
        no_rollout_reason=reason,
    )


def _roll_out(layers: Sequence[AttentionLayer]) -> tuple[Float64[np.ndarray, "tokens tokens"] | None, str]:
    """The rollout of the layers, or the reason why there is none."""
    no_rollout_reason = ""
    if any(layer.is_signed for layer in layers):
        no_rollout_reason = "Weights below 0 are not rolled out."
    elif layers[0].queries > MAX_TOKENS:
        no_rollout_reason = f"Pictures of more than {MAX_TOKENS:,} tokens are not rolled out."
    rollout = None if no_rollout_reason else attention_rollout(layer.weights() for layer in layers)
    return rollout, no_rollout_reason


def _find_grid(tokens: int, grid: Any) -> TokenGrid:
    if grid is None:
        side = math.isqrt(tokens)
        rows, columns = side, side
    else:
        numbers = list(grid) if isinstance(grid, Sequence) and not isinstance(grid, str) else []
        if len(numbers) != 2 or not all(isinstance(number, int) and 0 < number < 2**15 for number in numbers):
            raise OptionError(
                "wrong `grid`", expected="the numbers of rows and columns of patches", got=short_repr(grid),
                do="for example (14, 14)",
            )  # fmt: skip
        rows, columns = numbers
    before = tokens - rows * columns
    if not 0 <= before <= MAX_PREFIX:
        raise ShapeError(
            "the tokens are no grid of patches",
            expected=f"{rows} x {columns} patches, and up to {MAX_PREFIX} tokens before them",
            got=f"{tokens} tokens",
            do="pass `grid`, the numbers of rows and columns of patches",
        )
    prefix = ("class", *(f"extra {number}" for number in range(1, before)))[:before]
    return TokenGrid(rows, columns, prefix)


def to_pixels(picture: Any) -> UInt8[np.ndarray, "channels height width"]:
    """The pixels of a picture: (height, width), with channels first or last, or (1, channels, height, width).

    Numbers of uint8 are kept. Floats from 0 to 1 become 0 to 255; others, such as normalised pixels, are stretched from
    the least to the greatest.
    """
    tensor = as_tensor(picture, "picture") if is_foreign(picture) else picture
    check_tensor("picture", tensor, "the pixels that the model read, as an array or a tensor")
    if not has_values(tensor):
        raise ShapeError("the picture has no values", expected="pixels in memory", got="none", do="pass an array")
    pixels = tensor.detach().cpu()
    pixels = pixels[0] if pixels.dim() == 4 and pixels.shape[0] == 1 else pixels
    pixels = pixels[None] if pixels.dim() == 2 else pixels
    if pixels.dim() == 3 and pixels.shape[0] not in (1, 3) and pixels.shape[2] in (1, 3):
        pixels = pixels.permute(2, 0, 1)
    if pixels.dim() != 3 or pixels.shape[0] not in (1, 3) or pixels.numel() == 0 or pixels.is_complex():
        raise ShapeError(
            "the pixels are no picture", expected="(height, width), with 1 or 3 channels first or last",
            got=f"{tuple(tensor.shape)}, {tensor.dtype}", do="pass the picture as the model read it",
        )  # fmt: skip
    return np.ascontiguousarray((pixels if pixels.dtype == torch.uint8 else _stretch(pixels)).numpy())


def _stretch(pixels: Tensor) -> Tensor:
    numbers = torch.nan_to_num(pixels.double())
    lowest, highest = float(numbers.min()), float(numbers.max())
    if lowest < 0 or highest > 1:
        numbers = (numbers - lowest) / (highest - lowest or 1.0)
    return (numbers * 255).round().clamp(0, 255).to(torch.uint8)
