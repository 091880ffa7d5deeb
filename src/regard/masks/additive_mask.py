"""Read a mask that is a tensor (batch, heads, queries, keys), as torch and ``transformers`` pass them to layers.

bool            True where a query may attend
floats          added to the scores; -inf and a dtype's lowest value, as ``transformers`` writes, hide a cell
floats with other numbers than 0, or that require grad: a bias, which may hide cells too (Swin, Parakeet)
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from regard.masks.visible_keys import VisibleKeys, narrow_expanded, recognize

_LOWEST_HALF = torch.finfo(torch.float16).min
_LOWEST_OTHER = torch.finfo(torch.bfloat16).min  # float32 and float64 have lower ones

_LOWEST_BITS = {torch.float16: 0xFBFF - 2**16, torch.bfloat16: 0xFF7F - 2**16}  # as int16


def read_mask_values(attention_mask: Tensor) -> tuple[VisibleKeys, Tensor | None]:
    """Return the visible keys, and the bias (#batch, #heads, #queries, #keys) or None."""
    visible, is_bias = find_visible_keys(attention_mask)
    return visible, separate_bias(attention_mask) if is_bias else None


def separate_bias(attention_mask: Tensor) -> Tensor:
    """The numbers that a mask adds to the scores of visible keys, and 0 for hidden ones."""
    bias = narrow_expanded(attention_mask)
    return bias.masked_fill(hidden_cells(bias.detach()), 0.0)


@torch.no_grad()
def find_visible_keys(attention_mask: Tensor) -> tuple[VisibleKeys, bool]:
    """Read a mask cell by cell: the visible keys, and whether it is a bias too."""
    if attention_mask.dtype == torch.bool:
        return recognize(attention_mask), False
    cells = narrow_expanded(attention_mask)
    visible = None if attention_mask.requires_grad else _find_zeros(cells)
    if visible is not None:
        return recognize(visible.expand(attention_mask.shape)), False
    hidden = hidden_cells(cells)
    is_bias = attention_mask.requires_grad or _any((cells != 0) & ~hidden)
    if not _any(hidden):
        return VisibleKeys(None), is_bias
    return recognize((~hidden).expand(attention_mask.shape)), is_bias


def _any(cells: Tensor) -> bool:
    """Whether any cell is True: by NumPy, which stops at the first one."""
    return bool(cells.cpu().numpy().any())


def _find_zeros(additive: Tensor) -> Tensor | None:
    """True where an additive mask is 0, if all its other cells are -inf or a lowest value; else None.

    This is the usual form. It is read by NumPy, as in ``visible_keys``: half precision by its bits, in which -inf
    follows the lowest number.
    """
    lowest = _LOWEST_BITS.get(additive.dtype)
    if lowest is not None:
        cells = additive.cpu().view(torch.int16).numpy()
        hidden = (cells == lowest) | (cells == lowest + 1)
    else:
        cells = additive.cpu().numpy()
        hidden = cells <= _LOWEST_OTHER
    zeros = cells == 0
    is_usual = np.count_nonzero(zeros) + np.count_nonzero(hidden) == cells.size
    return torch.from_numpy(zeros) if is_usual else None


def hidden_cells(additive: Tensor) -> Tensor:
    """True where an additive mask is -inf or a dtype's lowest value, or the lowest of a dtype it was cast from."""
    if additive.dtype == torch.float16:
        return additive <= _LOWEST_HALF
    return (additive <= _LOWEST_OTHER) | (additive == _LOWEST_HALF)
