"""A kernel mask allows what its mask allows, and takes no memory if a few numbers describe it."""

import pytest
import torch

import regard
from conformance.mask_cases import LAYOUTS, MASK_CASES, Layout, expand_allowed
from regard import masks
from regard.contract import Frame
from regard.masks.kernel_mask import KernelMask

# More than one tile of 64, so that masks without a simpler form become tiles; and a few queries against several tiles.
TILED = (
    Layout(batch=2, heads=3, key_heads=3, queries=67, keys=131, head_dim=5, value_dim=5),
    Layout(batch=2, heads=2, key_heads=1, queries=127, keys=65, head_dim=5, value_dim=5),
    Layout(batch=2, heads=3, key_heads=3, queries=3, keys=131, head_dim=5, value_dim=5),
)
HUGE = Frame(2**40, 2**41)  # code that visited cells or tiles would not finish


@pytest.mark.parametrize("layout", [*LAYOUTS, *TILED], ids=lambda layout: f"{layout.queries}x{layout.keys}")
@pytest.mark.parametrize("mask_case", MASK_CASES[1:], ids=lambda mask_case: mask_case.name)
def test_cells_equal_the_dense_mask(mask_case, layout):
    frame = Frame(layout.queries, layout.keys)
    cells = mask_case.mask(layout).lower(frame).cells(frame)
    allowed = torch.from_numpy(expand_allowed(mask_case, layout).copy())
    assert torch.equal(cells.expand(allowed.shape), allowed)


@pytest.mark.parametrize(
    ("mask", "bounds"),
    [
        (masks.causal(), (None, 2**40)),
        (masks.causal(align="start"), (None, 0)),
        (masks.window(3, 5), (2**40 - 3, 2**40 + 5)),
        (masks.window(3, None) & masks.causal(), (2**40 - 3, 2**40)),
        (masks.window(3, 9) & masks.window(7, 1, align="start"), (2**40 - 3, 1)),
    ],
)
def test_bands_are_stored_as_two_bounds(mask, bounds):
    kernel_mask = mask.lower(HUGE)
    assert (kernel_mask.low, kernel_mask.high) == bounds
    assert kernel_mask.start is kernel_mask.stop is kernel_mask.tiles is kernel_mask.dense is None


def test_padding_is_stored_as_intervals():
    left, right = masks.padding([5, 3], side="left"), masks.padding([7, 2])
    kernel_mask = (left & right & masks.causal()).lower(HUGE)
    assert kernel_mask.start.tolist() == [2**41 - 5, 2**41 - 3]
    assert kernel_mask.stop.tolist() == [7, 2]
    assert kernel_mask.high == 2**40
    assert kernel_mask.tiles is kernel_mask.dense is None


def test_intervals_are_intersected():
    kernel_mask = (masks.padding([7, 2]) & masks.padding([5, 3])).lower(Frame(11, 11))
    assert kernel_mask.stop.tolist() == [5, 2]


def test_dense_mask_is_not_copied():
    mask = masks.keep(torch.rand(2, 1, 1, 97) < 0.5)
    kernel_mask = (masks.causal() & mask).lower(Frame(89, 97))
    assert kernel_mask.dense.data_ptr() == mask.allowed.data_ptr()
    assert kernel_mask.dense.shape == (2, 1, 1, 97)
    assert kernel_mask.tiles is None


def test_tile_map_is_shared_by_parts_and_cached():
    ids = torch.arange(131) // 11
    mask = masks.documents(ids) & masks.causal() & (masks.global_tokens([0]) | masks.window(9, 0))
    frame = Frame(131, 131)
    kernel_mask = mask.lower(frame)
    assert kernel_mask.high == 0
    assert kernel_mask.tiles is mask.lower(frame).tiles
    assert kernel_mask.dense is None


def test_tile_map_is_reused_in_new_combinations():
    documents, frame = masks.documents(torch.arange(131) // 11), Frame(131, 131)
    maps = [(documents & masks.causal() & masks.padding([length])).lower(frame).tiles for length in (100, 131)]
    assert maps[0] is maps[1]


@pytest.mark.parametrize("frame", [Frame(8, 131), Frame(64, 64)])
def test_small_masks_are_dense_instead_of_tiled(frame):
    kernel_mask = masks.global_tokens([0, 5]).lower(frame)
    assert kernel_mask.tiles is None
    assert kernel_mask.dense.shape == (1, 1, frame.queries, frame.keys)


def test_custom_mask_needs_only_mask_mod():
    class EverySecond(masks.Mask):
        def mask_mod(self, queries, keys, *, device=None):
            return lambda batch, head, query, key: (query + key) % 2 == 0

    frame = Frame(67, 71)
    kernel_mask = EverySecond().lower(frame)
    assert kernel_mask.tiles is not None
    expected = (torch.arange(67)[:, None] + torch.arange(71)) % 2 == 0
    assert torch.equal(kernel_mask.cells(frame)[0, 0], expected)


def test_empty_kernel_mask_allows_everything():
    assert KernelMask().cells(Frame(3, 5)).all()


@pytest.mark.parametrize(
    "mask", [masks.window(2, 2) | masks.global_tokens([0]), masks.random_blocks(1, block=2, seed=5)], ids=repr
)
def test_exported_program_accepts_other_lengths(mask, without_shape_checks):
    class Layer(torch.nn.Module):
        def forward(self, query):
            return regard.attention(query, query, query, mask=mask, impl="native")

    length = torch.export.Dim("length", min=5, max=4096)
    program = torch.export.export(Layer(), (torch.randn(1, 2, 7, 5),), dynamic_shapes=({2: length},), strict=False)
    other = torch.randn(1, 2, 67, 5)
    torch.testing.assert_close(program.module()(other), Layer()(other), rtol=0, atol=1e-6)
