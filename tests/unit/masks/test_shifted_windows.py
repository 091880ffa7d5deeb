"""The mask of shifted windows: cells against the oracle, tiles equal to cells, and its promises in the kernels."""

import numpy as np
import pytest
import torch

import regard
from regard.conformance.oracles import windows as oracle
from regard.contract import Frame
from regard.errors import OptionError, ShapeError
from regard.masks.shifted_windows import ShiftedWindows

SIZES = [(1, 1, 2, 1), (2, 3, 5, 2), (3, 1, 7, 3), (1, 2, 4, 3), (2, 2, 3, 0), (2, 1, 11, 5)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("pictures", [1, 3])
def test_cells_equal_the_oracle(sizes, pictures):
    length = sizes[2] ** 2
    mask = ShiftedWindows(*sizes, pictures)
    expected = np.concatenate([oracle.shifted_mask(*sizes)] * pictures)
    np.testing.assert_array_equal(mask.dense(length, length)[:, 0], expected)
    np.testing.assert_array_equal(mask.tiles(length, length).dense()[:, 0], expected)
    np.testing.assert_array_equal(mask.lower(Frame(length, length)).cells(Frame(length, length))[:, 0], expected)


def test_the_tile_map_is_computed_once():
    mask = ShiftedWindows(2, 3, 5, 2)
    assert mask.lower(Frame(25, 25)).tiles is mask.lower(Frame(25, 25)).tiles


def test_windows_inside_are_full_tiles():
    counts = ShiftedWindows(8, 8, 7, 3).tiles(49, 49).counts
    assert counts == {"empty": 0, "partial": 15, "full": 49}


@pytest.mark.parametrize("impl", ["native", "reference", "sdpa"])
def test_tokens_of_other_regions_have_no_influence(impl):
    mask = ShiftedWindows(2, 2, 5, 2)
    query, key, value = (torch.randn(4, 2, 25, 3) for _ in range(3))
    clean = regard.attention(query, key, value, mask=mask, impl=impl)
    hidden = ~mask.dense(25, 25)[3, 0, 0]  # from the first token of the window in the corner
    key[3, :, hidden], value[3, :, hidden] = torch.nan, torch.inf
    key = key.requires_grad_()
    output = regard.attention(query, key, value, mask=mask, impl=impl)
    assert torch.equal(output[:3], clean[:3])
    assert torch.equal(output[3, :, ~hidden], clean[3, :, ~hidden])
    (gradient,) = torch.autograd.grad(output[3, :, 0].sum(), key)
    assert (gradient[3, :, hidden] == 0).all()


def test_equality_and_combination():
    mask = ShiftedWindows(1, 2, 3, 1)
    assert mask == ShiftedWindows(1, 2, 3, 1)
    assert mask != ShiftedWindows(1, 2, 3, 2)
    assert repr(mask) == "ShiftedWindows(1 x 2 windows of 3 x 3, shift=1, pictures=1)"
    causal = regard.masks.causal()
    assert torch.equal((mask & causal).dense(9, 9), mask.dense(9, 9) & causal.dense(9, 9))
    assert torch.equal((~mask).tiles(9, 9).dense(), ~mask.dense(9, 9))


def test_invalid_sizes_are_refused():
    with pytest.raises(OptionError, match=r"(?s)less than their size.*0 to 2.*got: +3"):
        ShiftedWindows(1, 1, 3, 3)
    with pytest.raises(OptionError, match="wrong rows"):
        ShiftedWindows(0, 1, 3, 1)
    query = torch.zeros(1, 1, 8, 2)
    for impl in ("native", "reference"):
        with pytest.raises(ShapeError, match=r"(?s)not a window.*9 queries and keys.*8 queries and 8 keys"):
            regard.attention(query, query, query, mask=ShiftedWindows(1, 1, 3, 1), impl=impl)
    with pytest.raises(ShapeError, match="another batch size"):
        regard.attention(*[torch.zeros(3, 1, 9, 2)] * 3, mask=ShiftedWindows(1, 2, 3, 1))
