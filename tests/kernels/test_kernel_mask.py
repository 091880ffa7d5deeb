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


@pytest.mark.parametrize("at", [*LAYOUTS, *TILED], ids=lambda at: f"{at.queries}x{at.keys}")
@pytest.mark.parametrize("trial", MASK_CASES[1:], ids=lambda trial: trial.name)
def test_it_allows_what_the_mask_allows(trial, at):
    frame = Frame(at.queries, at.keys)
    cells = trial.mask(at).lower(frame).cells(frame)
    allowed = torch.from_numpy(expand_allowed(trial, at).copy())
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
def test_a_band_is_two_numbers(mask, bounds):
    lowered = mask.lower(HUGE)
    assert (lowered.low, lowered.high) == bounds
    assert lowered.start is lowered.stop is lowered.tiles is lowered.dense is None


def test_padding_is_an_interval():
    left, right = masks.padding([5, 3], side="left"), masks.padding([7, 2])
    both = (left & right & masks.causal()).lower(HUGE)
    assert both.start.tolist() == [2**41 - 5, 2**41 - 3]
    assert both.stop.tolist() == [7, 2]
    assert both.high == 2**40
    assert both.tiles is both.dense is None


def test_two_intervals_meet():
    lowered = (masks.padding([7, 2]) & masks.padding([5, 3])).lower(Frame(11, 11))
    assert lowered.stop.tolist() == [5, 2]


def test_a_tensor_is_not_copied():
    mask = masks.keep(torch.rand(2, 1, 1, 97) < 0.5)
    lowered = (masks.causal() & mask).lower(Frame(89, 97))
    assert lowered.dense.data_ptr() == mask.allowed.data_ptr()
    assert lowered.dense.shape == (2, 1, 1, 97)
    assert lowered.tiles is None


def test_parts_that_need_tiles_share_one_map_which_is_kept():
    ids = torch.arange(131) // 11
    mask = masks.documents(ids) & masks.causal() & (masks.global_tokens([0]) | masks.window(9, 0))
    frame = Frame(131, 131)
    lowered = mask.lower(frame)
    assert lowered.high == 0
    assert lowered.tiles is mask.lower(frame).tiles
    assert lowered.dense is None


def test_a_part_keeps_its_map_in_masks_that_are_made_anew():
    documents, frame = masks.documents(torch.arange(131) // 11), Frame(131, 131)
    maps = [(documents & masks.causal() & masks.padding([length])).lower(frame).tiles for length in (100, 131)]
    assert maps[0] is maps[1]


@pytest.mark.parametrize("frame", [Frame(8, 131), Frame(64, 64)])
def test_cells_stand_in_for_tiles_where_there_is_nothing_to_skip(frame):
    lowered = masks.global_tokens([0, 5]).lower(frame)
    assert lowered.tiles is None
    assert lowered.dense.shape == (1, 1, frame.queries, frame.keys)


def test_a_mask_of_a_users_own_needs_no_more_than_its_rule():
    class EverySecond(masks.Mask):
        def mask_mod(self, queries, keys, *, device=None):
            return lambda batch, head, query, key: (query + key) % 2 == 0

    frame = Frame(67, 71)
    lowered = EverySecond().lower(frame)
    assert lowered.tiles is not None
    wanted = (torch.arange(67)[:, None] + torch.arange(71)) % 2 == 0
    assert torch.equal(lowered.cells(frame)[0, 0], wanted)


def test_nothing_is_forbidden_by_no_parts():
    assert KernelMask().cells(Frame(3, 5)).all()


@pytest.mark.parametrize(
    "mask", [masks.window(2, 2) | masks.global_tokens([0]), masks.random_blocks(1, block=2, seed=5)], ids=repr
)
def test_a_trace_is_not_bound_to_the_lengths_it_was_made_with(mask, without_shape_checks):
    class Layer(torch.nn.Module):
        def forward(self, query):
            return regard.attention(query, query, query, mask=mask, impl="native")

    length = torch.export.Dim("length", min=5, max=4096)
    program = torch.export.export(Layer(), (torch.randn(1, 2, 7, 5),), dynamic_shapes=({2: length},), strict=False)
    other = torch.randn(1, 2, 67, 5)
    torch.testing.assert_close(program.module()(other), Layer()(other), rtol=0, atol=1e-6)
