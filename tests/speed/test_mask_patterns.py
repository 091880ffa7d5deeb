"""A pattern of the benchmarks equals the mask of the same name."""

from __future__ import annotations

import pytest
import torch

from benchmarks.mask_patterns import DENSE, Causal, Padded, Pattern, Window
from benchmarks.suites import window
from regard import masks

PATTERNS = [Causal(), Padded((2, 13, 7)), Window(3, 2), Window(40, 1)]


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_cells_equal_those_of_the_mask(pattern: Pattern) -> None:
    cells = pattern.cells(torch.arange(3), torch.arange(13), 13)
    mask = pattern.mask()
    assert cells is not None
    assert mask is not None
    assert torch.equal(cells.expand(3, 1, 13, 13), mask.dense(13, 13).expand(3, 1, 13, 13))


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_number_of_pairs_equals_the_number_of_cells(pattern: Pattern) -> None:
    cells = pattern.cells(torch.arange(3), torch.arange(13), 13)
    assert cells is not None
    assert pattern.pairs(3, 13, 13) == int(cells.expand(3, 1, 13, 13).sum())
    assert DENSE.pairs(3, 13, 17) == 3 * 13 * 17


def test_share_of_tiles_equals_that_of_the_tile_map() -> None:
    length = 2048
    codes = masks.window(256, 256).tiles(length, length, tile=64).codes()
    assert window.tile_share(length) == float((codes != 0).float().mean())
