"""Properties of every mask: random compositions, and lengths around the edges of tiles."""

import sys
from functools import partial

import numpy as np
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hypothesis_examples import examples
from regard import masks
from regard.conformance.oracles import masks as oracle
from regard.contract import Frame
from regard.masks.tiles import EMPTY, FULL, TileGrid

BATCH, HEADS = 2, 3
LENGTHS = st.sampled_from([0, 1, 2, 5, 13, 63, 64, 65, 127, 130])
SIDES = st.none() | st.integers(0, 6) | st.sampled_from([2**31, 2**62 - 1, 2**62, sys.maxsize, 10**30])
mask_settings = settings(examples(60), suppress_health_check=list(HealthCheck))


@st.composite
def simple_masks(draw, queries: int, keys: int):
    """Strategy for a function that makes a mask of one constructor that fits the lengths. (The test calls it.)"""
    generator = np.random.default_rng(draw(st.integers(0, 50)))
    kind = draw(st.integers(0, 9))
    side, align = SIDES | st.integers(7, 70), st.sampled_from(["end", "start"])
    if kind == 0:
        return partial(masks.causal, align=draw(align))
    if kind == 1:
        return partial(masks.window, draw(side), draw(side), align=draw(align))
    if kind == 2:
        lengths = [draw(st.integers(0, keys)) for _ in range(draw(st.sampled_from([1, BATCH])))]
        return partial(masks.padding, lengths, side=draw(st.sampled_from(["right", "left"])))
    if kind == 3:
        count = draw(st.integers(1, 40))
        ids = torch.from_numpy(np.sort(generator.integers(0, count, (BATCH, keys))))
        if queries <= keys and draw(st.booleans()):
            return partial(masks.documents, ids)
        of_queries = torch.from_numpy(generator.integers(0, count, (BATCH, queries)))
        return partial(masks.documents, ids, query_ids=of_queries)
    if kind == 4:
        return partial(masks.global_tokens, draw(st.lists(st.integers(0, 140), max_size=4)))
    if kind == 5:
        return partial(masks.global_tokens, torch.from_numpy(generator.random((BATCH, keys)) < 0.1))
    if kind == 6:
        heads, block = draw(st.sampled_from([None, HEADS])), draw(st.sampled_from([3, 64, 100]))
        return partial(masks.random_blocks, draw(st.integers(0, 3)), block=block, heads=heads)
    shape = [draw(st.sampled_from(sizes)) for sizes in ([1, BATCH], [1, HEADS], [1, queries], [1, keys])]
    tensor = torch.from_numpy(generator.random(shape) < draw(st.sampled_from([0.0, 0.02, 0.5, 0.98, 1.0])))
    return partial(masks.blocked if kind == 7 else masks.keep, tensor)


@st.composite
def composed_masks(draw, queries: int, keys: int, depth: int = 3):
    """Strategy for a function that makes any mask: simple masks combined with & | ~."""
    if depth == 0 or draw(st.booleans()):
        return draw(simple_masks(queries, keys))
    left = draw(composed_masks(queries, keys, depth - 1))
    join = draw(st.sampled_from("&|~"))
    if join == "~":
        return lambda: ~left()
    right = draw(composed_masks(queries, keys, depth - 1))
    return (lambda: left() & right()) if join == "&" else (lambda: left() | right())


@st.composite
def cases(draw, simple: bool = False):
    queries, keys = draw(LENGTHS), draw(LENGTHS)
    build = simple_masks if simple else composed_masks
    return draw(build(queries, keys)), draw(build(queries, keys)), queries, keys


def dense_in_full(mask: masks.Mask, queries: int, keys: int) -> torch.Tensor:
    return mask.dense(queries, keys).expand(BATCH, HEADS, queries, keys)


@mask_settings
@given(cases())
def test_combined_masks_follow_boolean_logic(case) -> None:
    left, right, queries, keys = case[0](), case[1](), *case[2:]
    a, b = dense_in_full(left, queries, keys), dense_in_full(right, queries, keys)
    assert torch.equal(dense_in_full(left & right, queries, keys), a & b)
    assert torch.equal(dense_in_full(left | right, queries, keys), a | b)
    assert torch.equal(dense_in_full(~left, queries, keys), ~a)
    assert torch.equal(dense_in_full(~~left, queries, keys), a)
    assert torch.equal(dense_in_full(~(left & right), queries, keys), dense_in_full(~left | ~right, queries, keys))
    assert torch.equal(dense_in_full(~(left | right), queries, keys), dense_in_full(~left & ~right, queries, keys))
    assert torch.equal(dense_in_full(right & left, queries, keys), a & b)
    assert torch.equal(dense_in_full(left & left, queries, keys), a)
    assert torch.equal(dense_in_full(left | left, queries, keys), a)
    assert torch.equal(dense_in_full(left & ~left, queries, keys), torch.zeros_like(a))


@mask_settings
@given(cases(), st.sampled_from([64, 128]))
def test_tile_map_equals_the_dense_mask(case, tile: int) -> None:
    mask, queries, keys = case[0](), *case[2:]
    actual = mask.tiles(queries, keys, tile=tile)
    assert torch.equal(actual.dense().expand(BATCH, HEADS, queries, keys), dense_in_full(mask, queries, keys))
    assert actual.bitmaps.shape[0] == actual.bitmaps.unique(dim=0).shape[0]
    counts = actual.counts
    assert sum(counts.values()) == actual.batch * actual.heads * actual.query_tiles * actual.key_tiles
    for start, stop in zip(actual.row_start.flatten(0, 1)[:-1], actual.row_start.flatten(0, 1)[1:], strict=True):
        assert (actual.key_tile[start:stop].diff() > 0).all() or stop < start


@mask_settings
@given(cases(simple=True), st.sampled_from([64, 128]))
def test_tiles_classified_as_empty_or_full_are(case, tile: int) -> None:
    mask, queries, keys = case[0](), *case[2:]
    rows = -(-queries // tile)
    assume(rows > 0 and keys > 0)
    codes = mask.classify(TileGrid(Frame(queries, keys), tile, 0, rows)).expand(BATCH, HEADS, -1, -1)
    dense = dense_in_full(mask, queries, keys)
    for row in range(codes.shape[2]):
        for column in range(codes.shape[3]):
            cells = dense[:, :, row * tile : (row + 1) * tile, column * tile : (column + 1) * tile].flatten(2)
            assert not cells[codes[:, :, row, column] == EMPTY].any()
            assert cells[codes[:, :, row, column] == FULL].all()


@mask_settings
@given(cases())
def test_mask_mod_equals_the_dense_mask(case) -> None:
    mask, queries, keys = case[0](), *case[2:]
    assume(queries > 0 and keys > 0)
    mask_mod, dense = mask.mask_mod(queries, keys), dense_in_full(mask, queries, keys)
    for batch, head, query, key in (
        np.random.default_rng(0).integers(0, [BATCH, HEADS, queries, keys], (20, 4)).tolist()
    ):
        index = (torch.tensor(at) for at in (batch, head, query, key))
        assert bool(mask_mod(*index)) == bool(dense[batch, head, query, key])


@mask_settings
@given(cases())
def test_band_equals_the_dense_mask(case) -> None:
    mask, other, queries, keys = case[0](), case[1](), *case[2:]
    for one in (mask, mask & masks.causal(), masks.window(5, 2) & masks.window(None, 1), other):
        band = one.band(Frame(queries, keys))
        if band is None:
            continue
        distance = torch.arange(keys) - torch.arange(queries)[:, None]
        low, high = (-np.inf if band[0] is None else band[0]), (np.inf if band[1] is None else band[1])
        assert torch.equal(dense_in_full(one, queries, keys)[0, 0], (distance >= low) & (distance <= high))


@mask_settings
@given(cases(), st.data())
def test_selected_rows_equal_rows_of_the_dense_mask(case, data) -> None:
    mask, queries, keys = case[0](), *case[2:]
    assume(queries > 0)
    rows = torch.tensor(data.draw(st.lists(st.integers(0, queries - 1), max_size=5)), dtype=torch.long)
    selected = mask.dense(queries, keys, rows=rows)
    assert torch.equal(selected.expand(BATCH, HEADS, len(rows), keys), dense_in_full(mask, queries, keys)[:, :, rows])


@mask_settings
@given(st.integers(1, 13), st.integers(0, 12), st.data())
def test_mask_of_fewer_queries_equals_the_last_rows(keys: int, cached: int, data) -> None:
    """With fewer queries than keys, a mask applies to the last queries."""
    assume(cached < keys)
    wide = [data.draw(st.integers(0, 5)) for _ in range(2)]
    seed, first, second = (data.draw(st.integers(0, 5)) for _ in range(3))
    parts = [
        masks.causal(),
        masks.window(*wide),
        masks.padding([keys, keys // 2]),
        masks.documents(torch.arange(2 * keys).view(2, keys) // 3),
        masks.global_tokens([0, 4]),
        masks.random_blocks(1, block=2, seed=seed),
    ]
    left, right = parts[first], parts[second]
    for mask in (left & right, left | ~right):
        last = dense_in_full(mask, keys, keys)[:, :, cached:]
        assert torch.equal(dense_in_full(mask, keys - cached, keys), last)


@mask_settings
@given(LENGTHS, LENGTHS, SIDES, SIDES)
def test_masks_equal_the_oracles(queries: int, keys: int, left: int | None, right: int | None) -> None:
    assume(queries * keys < 2_000)
    pairs = [
        (masks.causal(), oracle.causal(queries, keys)),
        (masks.window(left, right), oracle.window(left, right, queries, keys)),
        (masks.padding([keys, keys // 2]), oracle.padding([keys, keys // 2], queries, keys)),
        (masks.global_tokens([0, 3]), oracle.global_tokens([0, 3], queries, keys)),
    ]
    if queries <= keys:
        ids = (np.arange(2 * keys).reshape(2, keys) // 3).tolist()
        pairs.append(
            (masks.documents(torch.tensor(ids, dtype=torch.long).view(2, keys)), oracle.documents(ids, queries, keys))
        )
    for mask, expected in pairs:
        expected = np.broadcast_to(expected, (BATCH, HEADS, queries, keys))
        np.testing.assert_array_equal(dense_in_full(mask, queries, keys).numpy(), expected, err_msg=repr(mask))


@mask_settings
@given(st.integers(0, 3), st.integers(1, 9), st.integers(1, 30), st.integers(0, 99))
def test_random_blocks_draw_the_requested_number_of_blocks_per_row(
    count: int, block: int, keys: int, seed: int
) -> None:
    dense = masks.random_blocks(count, block=block, seed=seed, heads=HEADS).dense(keys, keys)[0]
    blocks = -(-keys // block)
    for head in dense:
        for row in head:
            touched = [bool(row[at * block : (at + 1) * block].any()) for at in range(blocks)]
            whole = [bool(row[at * block : (at + 1) * block].all()) for at in range(blocks)]
            assert touched == whole
            assert sum(touched) == min(count, blocks)


@mask_settings
@given(st.data(), LENGTHS, LENGTHS)
def test_equal_descriptions_are_equal_masks(data, queries: int, keys: int) -> None:
    seed = data.draw(st.integers(0, 9))

    def make():
        tensor = torch.from_numpy(np.random.default_rng(seed).random((3, 5)) < 0.5)
        return (masks.causal() | masks.keep(tensor)) & ~masks.padding([2, 3]) & masks.documents(torch.arange(5))

    assert make() == make()
    assert hash(make()) == hash(make())
    assert len({make(), make(), masks.causal(), masks.window(None, 0)}) == 2
    assert masks.causal() != masks.causal(align="start")
    assert masks.padding([2]) != masks.padding([3])


def test_mask_is_independent_of_later_changes_to_its_tensor() -> None:
    keep, ids, lengths = torch.ones(3, 5, dtype=torch.bool), torch.zeros(2, 5, dtype=torch.long), torch.tensor([5, 2])
    flags = torch.zeros(2, 5, dtype=torch.bool)
    masks_of_tensors = [
        masks.keep(keep),
        masks.blocked(keep),
        masks.documents(ids),
        masks.documents(ids, query_ids=ids),
        masks.padding(lengths),
        masks.padding_of(ids, 0),
        masks.global_tokens(flags),
        masks.from_sdpa(keep),
        masks.from_transformers(keep[:2]),
        masks.from_multihead_attention(key_padding_mask=keep[:2]),
    ]
    sizes = [(3, 5), (3, 5), (5, 5), (5, 5), (5, 5), (5, 5), (5, 5), (3, 5), (3, 5), (3, 5)]
    before = [mask.dense(*size).clone() for mask, size in zip(masks_of_tensors, sizes, strict=True)]
    hashes = [hash(mask) for mask in masks_of_tensors]
    keep.fill_(False), ids.random_(0, 9), lengths.fill_(0), flags.fill_(True)
    after = [mask.dense(*size) for mask, size in zip(masks_of_tensors, sizes, strict=True)]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert hashes == [hash(mask) for mask in masks_of_tensors]
