"""Pictures to patches of 16 x 16 pixels, in raster order, with the place of each in its picture.

    patch (r, c)    pixels [16 r, 16 r + 16) x [16 c, 16 c + 16), row by row from the top left
    pixel           (2 x / 255 - 1) / sqrt(16), x in 0 .. 255: from -1/4 to 1/4
    place           (r / rows, (r + 1) / rows, c / columns, (c + 1) / columns): the interval of rows, then of columns

picture uint8 (height, width, channels) -> patches uint8 (rows * columns, channels, 16, 16), places float32 (.., 4).
Patches are stored as uint8 and scaled when a batch is made: a quarter of the memory, and the same numbers.
Reed et al. 2022, "A generalist agent", section 2.1 and appendix C.2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from regard.control.spaces import PATCH, PictureSpace


def cut_patches(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Cut a picture (height, width, channels) into patches (rows * columns, channels, 16, 16), in raster order."""
    height, width, channels = picture.shape
    tiles = picture.reshape(height // PATCH, PATCH, width // PATCH, PATCH, channels)
    return np.ascontiguousarray(tiles.transpose(0, 2, 4, 1, 3)).reshape(-1, channels, PATCH, PATCH)


def join_patches(patches: NDArray[np.uint8], space: PictureSpace) -> NDArray[np.uint8]:
    """The inverse of ``cut_patches``: the picture (height, width, channels)."""
    tiles = patches.reshape(*space.grid, space.channels, PATCH, PATCH).transpose(0, 3, 1, 4, 2)
    return np.ascontiguousarray(tiles).reshape(space.height, space.width, space.channels)


def scale_pixels(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Scale pixels 0 to 255 to [-1, 1], divided by the square root of the side of a patch."""
    scaled = (patches.astype(np.float64) * (2.0 / 255.0) - 1.0) / PATCH**0.5
    return scaled.astype(np.float32)


def patch_places(rows: int, columns: int) -> NDArray[np.float32]:
    """The places of the patches of a grid, (rows * columns, 4): the intervals of rows and of columns, in [0, 1]."""
    row, column = (axis.reshape(-1) for axis in np.mgrid[:rows, :columns])
    return np.stack([row / rows, (row + 1) / rows, column / columns, (column + 1) / columns], axis=1).astype(np.float32)
