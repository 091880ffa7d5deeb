"""Patch embedding: a picture is cut into patches, and each is projected to a token.

    token_rc = W x_rc + b        x_rc: the numbers of the patch in row r and column c, (channels * height * width)

pixels (batch, channels, rows * patch height, columns * patch width) -> tokens (batch, rows * columns, width), row by
row from the top left. W (width, channels, patch height, patch width), as of the convolution with patches that do not
overlap, which this is. It is computed as one product of matrices, so a patch affects no other token, whatever its
pixels are.
Dosovitskiy et al. 2021, "An image is worth 16x16 words", section 3.1 and equation 1.
"""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.arguments import explain_arguments
from regard.errors import (
    OptionError,
    ShapeError,
    check_count,
    check_flag,
    check_size,
    check_sizes,
    check_weights,
    short_repr,
)
from regard.layers.input_checks import check_pixels


@final
@explain_arguments
class PatchEmbedding(nn.Module):
    """Patches of a picture to tokens of ``width``.

    Args:
        channels: number of channels of a picture.
        width: size of a token.
        patch_size: (height, width) of a patch in pixels.
        bias: whether the projection has a bias.
    """

    def __init__(self, channels: int, width: int, patch_size: tuple[int, int], *, bias: bool = True) -> None:
        super().__init__()
        check_sizes(channels=channels, width=width)
        check_side_pair("patch_size", patch_size)
        check_flag("bias", bias)
        check_weights(channels=channels, width=width, height=patch_size[0], columns=patch_size[1])
        self.channels, self.patch_size = channels, patch_size
        self.weight = nn.Parameter(torch.empty(width, channels, *patch_size))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        # As torch initialises a convolution and a linear layer.
        bound = (channels * patch_size[0] * patch_size[1]) ** -0.5
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, pixels: Tensor) -> Float[Tensor, "batch patches width"]:
        """Project the patches of pictures (batch, channels, height, width) to tokens (batch, patches, width).

        Raises ShapeError for other channels and for sides that are no multiples of the sides of a patch, DtypeError for
        integers.
        """
        check_pixels(pixels, self.weight, self.channels)
        rows, columns = self._grid(*pixels.shape[2:])
        height, width = self.patch_size
        patches = pixels.reshape(pixels.shape[0], self.channels, rows, height, columns, width).permute(0, 2, 4, 1, 3, 5)
        # The size of a batch is read from the shape: len() would fix it in an exported program.
        flat = patches.reshape(pixels.shape[0], rows * columns, self.channels * height * width)
        return functional.linear(flat, self.weight.flatten(1), self.bias)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Count the rows and columns of patches of a picture.

        Raises ShapeError for a side that patches do not fill, OptionError for one that is no number of pixels.
        """
        for name, side in {"height": height, "width": width}.items():
            check_count(name, side, minimum=0)
        return self._grid(height, width)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        for side, patch in zip((height, width), self.patch_size, strict=True):
            if side == 0 or side % patch:
                whole = max(patch, side - side % patch)
                raise ShapeError(
                    "patches do not fill the picture",
                    expected="a height and a width that are multiples of those of a patch, "
                    f"{self.patch_size[0]} x {self.patch_size[1]}",
                    got=f"a picture of {height} x {width}",
                    do=f"resize, pad or crop it, for example from {side} to {whole}",
                )
        return height // self.patch_size[0], width // self.patch_size[1]

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"channels={self.channels}, width={self.weight.shape[0]}, patch_size={self.patch_size}"


def check_patches(picture: tuple[int, int], patch: tuple[int, int]) -> None:
    """Raise OptionError unless patches fill a picture, both (height, width) in pixels."""
    if any(side % step for side, step in zip(picture, patch, strict=True)):
        raise OptionError(
            "patches do not fill the picture",
            expected="a picture_size that is a multiple of patch_size in both directions",
            got=f"picture_size={picture}, patch_size={patch}",
            do="choose another size of the picture or of the patches",
        )


def check_side_pair(name: str, pair: object) -> None:
    """Raise OptionError unless ``pair`` is (height, width), two sizes in pixels."""
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise OptionError(
            f"wrong {name}",
            expected="(height, width) in pixels",
            got=short_repr(pair),
            do=f"for example {name}=(16, 16)",
        )
    for side in pair:
        check_size(name, side)
