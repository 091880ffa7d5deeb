"""Masks of sparse mechanisms: dilated windows, sides of global tokens, lists of blocks; cell by cell and in tiles."""

import itertools

import numpy as np
import pytest
import torch

from regard import masks
from regard.errors import OptionError
from regard.masks.block_lists import BlockLists
from sampled_parameters import parametrize_sample

LENGTHS = [(7, 7), (5, 13), (11, 7), (131, 131), (67, 200), (200, 67), (130, 0)]


def cells(mask, queries, keys):
    """The mask as (heads, queries, keys)."""
    allowed = mask.dense(queries, keys)
    return allowed.expand(1, -1, queries, keys)[0].numpy()


def assert_tiles_equal_the_cells(mask, queries, keys, tile=64):
    result = mask.tiles(queries, keys, tile=tile).dense()
    expected = mask.dense(queries, keys).expand(*result.shape[:2], queries, keys)
    assert torch.equal(result, expected)


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize(("left", "right"), [(2, 1), (0, 3), (None, 1), (40, None)])
@pytest.mark.parametrize("dilation", [3, (1, 2, 5)])
def test_dilated_window(queries, keys, left, right, dilation):
    mask = masks.window(left, right, dilation=dilation)
    steps = (dilation,) if isinstance(dilation, int) else dilation
    expected = np.zeros((len(steps), queries, keys), dtype=bool)
    for head, i in np.ndindex(expected.shape[:2]):
        step, rest = np.divmod(np.arange(keys) - (i + keys - queries), steps[head])
        expected[head, i] = (rest == 0) & (left is None or -left <= step) & (right is None or step <= right)
    assert np.array_equal(cells(mask, queries, keys), expected)
    assert_tiles_equal_the_cells(mask, queries, keys)


def test_dilated_window_from_the_start():
    mask = masks.window(1, 0, dilation=2, align="start")
    assert cells(mask, 3, 5)[0].astype(int).tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 0, 1, 0, 0]]


def test_dilation_of_1_equals_a_window():
    assert masks.window(3, 2, dilation=[1, 1]) == masks.window(3, 2)
    assert masks.window(3, 2, dilation=[4, 4]) == masks.window(3, 2, dilation=4)
    assert repr(masks.window(3, 2, dilation=(1, 2))) == "window(3, 2, dilation=[1, 2])"


@pytest.mark.parametrize("dilation", [0, -1, 1.5, True, [], [1, 0], "2", None, 2**40])
def test_invalid_dilation_is_refused(dilation):
    with pytest.raises(OptionError, match=r"(?s)wrong dilation.*expected: an integer.*to do: +for example dilation="):
        masks.window(1, 1, dilation=dilation)


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("inputs", [[0, 3, 70], torch.arange(150) % 31 == 2], ids=["positions", "flags"])
def test_sides_of_global_tokens(queries, keys, inputs):
    both, of_queries, of_keys = (masks.global_tokens(inputs, side=side) for side in ("both", "query", "key"))
    positions = inputs if isinstance(inputs, list) else inputs.nonzero()[:, 0].tolist()
    for i, j in itertools.product(range(0, queries, 9), range(0, keys, 7)):
        assert bool(cells(of_queries, queries, keys)[0, i, j]) == (i + keys - queries in positions)
        assert bool(cells(of_keys, queries, keys)[0, i, j]) == (j in positions)
    assert (of_queries | of_keys).tiles(queries, keys).dense().equal(both.tiles(queries, keys).dense())
    for mask in (of_queries, of_keys, masks.window(3, 3) & ~of_queries):
        assert_tiles_equal_the_cells(mask, queries, keys)
    assert not of_keys.depends_on_query
    assert repr(of_keys).endswith("side='key')")


def test_invalid_side_is_refused(without_shape_checks):
    with pytest.raises(OptionError, match=r"(?s)unknown side of global tokens 'keys'.*'key'\?"):
        masks.global_tokens([0], side="keys")


@parametrize_sample("lengths, block, start", LENGTHS, [1, 5, 32, 64, 100], [0, 3])
def test_block_lists(lengths, block, start):
    queries, keys = lengths
    blocks = -(-max(0, keys - start) // block)
    made = np.random.default_rng([queries, keys, block])
    lists = np.full((2, blocks, 4), -1)
    for head, row in np.ndindex(lists.shape[:2]):
        some = made.permutation(blocks + 1)[:3]  # one of them may lie beyond the last block
        lists[head, row, : len(some)] = some
    mask = BlockLists(torch.from_numpy(lists), block, start)
    expected = np.zeros((2, queries, keys), dtype=bool)
    for head, i in np.ndindex(expected.shape[:2]):
        position = i + keys - queries
        if position >= start:
            of_keys = (np.arange(start, keys) - start) // block
            expected[head, i, start:] = np.isin(of_keys, lists[head, (position - start) // block])
    assert np.array_equal(cells(mask, queries, keys), np.broadcast_to(expected, (2, queries, keys)))
    assert_tiles_equal_the_cells(mask, queries, keys)
    assert_tiles_equal_the_cells(mask & masks.causal(), queries, keys, tile=128)
    assert repr(mask) == f"block_lists(2, {blocks}, 4)"


def test_block_lists_have_full_tiles():
    lists = torch.tensor([[[0, 1], [2, -1], [0, 2]]])
    assert BlockLists(lists, 64).tiles(192, 192).counts == {"empty": 4, "partial": 0, "full": 5}
    assert BlockLists(lists, 128).tiles(300, 300).counts["partial"] == 0
