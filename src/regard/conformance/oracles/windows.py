"""Windows of a picture, as Liu et al. 2021 (Swin Transformer) describe them, token by token.

relative bias     section 3.2, equation 4: B[i, j] is looked up by the offset of i from j on each axis
shifted windows   section 3.2, figure 4: a window attends among tokens that were neighbours before the cyclic shift
"""

import numpy as np


def relative_bias(table: np.ndarray, side: int) -> np.ndarray:
    """bias[h, i, j] of a window of side x side tokens; table (offsets, offsets, heads), zero offset in the middle."""
    middle, count = len(table) // 2, side * side
    bias = np.zeros((table.shape[2], count, count))
    for i in range(count):
        for j in range(count):
            down, right = i // side - j // side, i % side - j % side
            bias[:, i, j] = table[middle + down, middle + right]
    return bias


def window_cells(rows: int, columns: int, size: int, shift: int) -> list[list[tuple[int, int] | None]]:
    """The (row, column) in the map of each token of each window; None for padding."""
    height, width = -(-rows // size) * size, -(-columns // size) * size
    windows = []
    for top in range(0, height, size):
        for left in range(0, width, size):
            cells: list[tuple[int, int] | None] = []
            for y in range(top, top + size):
                for x in range(left, left + size):
                    row, column = (y + shift) % height, (x + shift) % width
                    cells.append((row, column) if row < rows and column < columns else None)
            windows.append(cells)
    return windows


def shifted_mask(window_rows: int, window_columns: int, size: int, shift: int) -> np.ndarray:
    """allowed[w, i, j]: tokens whose distance in the shifted map is their distance in the map itself."""
    height, width = window_rows * size, window_columns * size
    allowed = np.zeros((window_rows * window_columns, size * size, size * size), dtype=bool)
    for w, i, j in np.ndindex(*allowed.shape):
        first_y, first_x = w // window_columns * size, w % window_columns * size
        first = first_y + i // size + shift, first_x + i % size + shift
        second = first_y + j // size + shift, first_x + j % size + shift
        allowed[w, i, j] = first[0] // height == second[0] // height and first[1] // width == second[1] // width
    return allowed
