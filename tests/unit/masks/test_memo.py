"""A mask's cached results are never visible: not to inference mode, traces, threads or memory."""

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import regard
from interleaved_threads import run_interleaved
from regard import masks
from regard.masks.memo import MAX_BYTES, MAX_RESULTS, Memo

LENGTH = 131  # three tiles per side, the last of them partial

MASKS = {
    "tiles": lambda: masks.window(3, 3) | masks.global_tokens([0]),
    "some parts by tiles": lambda: masks.causal() & masks.documents(torch.arange(LENGTH) // 11) & ~masks.window(2, 2),
    "random blocks": lambda: masks.random_blocks(1, block=16, seed=3) | masks.window(1, 1),
    "padding": lambda: masks.padding([120]),
    "cells": lambda: masks.keep(torch.arange(LENGTH * LENGTH).view(LENGTH, LENGTH) % 7 < 3),
}
every_mask = pytest.mark.parametrize("mask", [pytest.param(make, id=name) for name, make in MASKS.items()])


def tokens(**options):
    return torch.randn(1, 1, LENGTH, 5, generator=torch.Generator().manual_seed(7), **options)


def attend(query, mask, impl="native"):
    return regard.attention(query, query, query, mask=mask, impl=impl)


@every_mask
@pytest.mark.parametrize("first", ["made", "used"])
def test_mask_used_in_inference_mode_can_be_trained_with(mask, first):
    with torch.inference_mode():
        made = mask()
    if first == "used":
        made = mask()
        with torch.inference_mode():
            attend(tokens(), made)
    query, other = tokens().requires_grad_(), tokens().requires_grad_()
    attend(query, made).sum().backward()
    attend(other, mask()).sum().backward()
    assert torch.equal(query.grad, other.grad)


@every_mask
@pytest.mark.parametrize("impl", ["native", "reference"])
def test_use_with_fake_tensors_leaves_the_mask_valid(mask, impl, without_shape_checks):
    made = mask()
    with FakeTensorMode():
        assert attend(torch.empty(1, 1, LENGTH, 5), made, impl).shape == (1, 1, LENGTH, 5)
    assert torch.equal(attend(tokens(), made), attend(tokens(), mask()))
    assert made == mask()


@every_mask  # fake tensors and symbolic lengths are in other tests of the default run
@pytest.mark.parametrize("mode", ["real", *(pytest.param(one, marks=pytest.mark.slow) for one in ("fake", "symbolic"))])
def test_use_in_make_fx_leaves_the_mask_valid(mask, mode, without_shape_checks):
    made, expected = mask(), attend(tokens(), mask(), "reference")
    traced = make_fx(lambda query: attend(query, made, "reference"), tracing_mode=mode, _allow_non_fake_inputs=True)(
        tokens()
    )
    assert torch.equal(traced(tokens()), expected)
    assert torch.equal(attend(tokens(), made, "reference"), expected)


@every_mask
def test_use_in_torch_export_leaves_the_mask_valid(mask, without_shape_checks):
    class Layer(torch.nn.Module):
        def forward(self, query):
            return attend(query, made)

    made, expected = mask(), attend(tokens(), mask())
    program = torch.export.export(Layer(), (tokens(),), strict=False)
    assert torch.allclose(program.module()(tokens()), expected, rtol=0, atol=1e-6)
    assert torch.equal(attend(tokens(), made), expected)


@every_mask
def test_first_use_in_torch_func_leaves_the_mask_valid(mask, without_shape_checks):
    query = tokens(dtype=torch.float64)
    made, several = mask(), torch.stack([query, 2 * query])
    actual = torch.func.grad(lambda query: attend(query, made, "reference").square().sum())(query)
    many = torch.func.vmap(lambda query: attend(query, made, "reference"))(several)
    query.requires_grad_()
    attend(query, mask(), "reference").square().sum().backward()
    assert torch.allclose(actual, query.grad, rtol=0, atol=1e-12)
    singles = torch.stack([attend(one, mask(), "reference") for one in several])
    assert torch.allclose(many, singles, rtol=0, atol=1e-12)
    assert torch.equal(attend(tokens(), made), attend(tokens(), mask()))


def test_threads_may_share_a_mask(monkeypatch, without_shape_checks):
    mask, lengths, wrong = masks.causal() | masks.global_tokens([0]), range(65, 105), []

    class FakeTileMap(SimpleNamespace):
        def clone(self):
            return self

    monkeypatch.setattr("regard.masks.tiles.build_tile_map", lambda mask, frame, tile: FakeTileMap(frame=frame))

    def ask(first):
        for turn in range(7):
            length = lengths[(turn * 7 + first) % len(lengths)]
            try:
                actual = mask.tiles(length, length).frame.keys
            except Exception as error:
                actual = error
            wrong.extend([actual] if actual != length else [])

    run_interleaved(ask, 4, files=("masks/base.py", "masks/memo.py"))
    assert wrong == []


def test_least_recently_used_result_is_evicted():
    memo, computed = Memo(), []
    for number in (*range(MAX_RESULTS), 0, MAX_RESULTS, 0, 1):
        memo.get_or_compute(number, lambda number=number: computed.append(number) or torch.zeros(number))
    assert computed == [*range(MAX_RESULTS + 1), 1]  # 0 was used again, so 1 was evicted
    assert len(memo) == MAX_RESULTS


def test_cached_results_are_bounded_in_memory():
    memo = Memo()
    half = MAX_BYTES // 2 - 1
    for number in range(5):
        memo.get_or_compute(number, lambda: torch.empty(half, dtype=torch.uint8))
    assert len(memo) == 3  # the latest result, and two that fit
    memo.get_or_compute("large", lambda: torch.empty(MAX_BYTES * 2, dtype=torch.uint8))
    assert len(memo) == 3
    memo.get_or_compute("small", lambda: torch.empty(1))
    assert len(memo) == 1  # a result above the bound is kept only while it is the latest


def test_random_blocks_cache_few_lengths():
    mask = masks.random_blocks(1, block=2)
    for length in range(1, 100):
        mask.dense(length, length)
    assert len(mask._memo) <= MAX_RESULTS
    assert mask == masks.random_blocks(1, block=2)


def test_random_blocks_depend_only_on_their_seed():
    expected = masks.random_blocks(2, block=3, seed=5, heads=2).dense(67, 67)
    torch.manual_seed(11)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            actual = masks.random_blocks(2, block=3, seed=5, heads=2).dense(67, 67, device="cpu")
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(actual, expected)
    blocks = torch.ops.regard.random_blocks.default(2, 23, 2, 5)
    assert torch.equal(blocks.repeat_interleave(3, 1).repeat_interleave(3, 2)[None, :, :67, :67], expected)
    torch.library.opcheck(torch.ops.regard.random_blocks.default, (2, 23, 2, 5))


@every_mask
def test_tiles_are_independent_of_the_default_device(mask):
    expected, made = mask().tiles(LENGTH, LENGTH).dense(), mask()
    with torch.device("meta"):
        actual = made.tiles(LENGTH, LENGTH)
        assert torch.equal(actual.dense(), expected)
        assert actual.codes().is_cpu
        assert masks.padding([5, 3]) == masks.padding(torch.tensor([5, 3], device="cpu"))


def test_writes_into_a_returned_tile_map_have_no_effect():
    """Kernels use the cached tile map."""
    mask, inputs = masks.causal() | masks.global_tokens([0]), tokens()
    expected = attend(inputs, mask)
    tiles = mask.tiles(LENGTH, LENGTH)
    for part in (tiles.row_start, tiles.key_tile, tiles.bitmap, tiles.bitmaps):
        part.fill_(99)
    assert torch.equal(attend(inputs, mask), expected)


@every_mask
@pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy, lambda mask: pickle.loads(pickle.dumps(mask))])
def test_copy_is_equal_and_has_no_cached_results(mask, make_copy):
    original = mask()
    attend(tokens(), original)
    original.tiles(LENGTH, LENGTH)
    other = make_copy(original)
    assert other == original
    assert hash(other) == hash(original)
    assert "_derived" not in vars(other)
    assert torch.equal(other.dense(LENGTH, LENGTH), original.dense(LENGTH, LENGTH))


def test_export_with_symbolic_lengths(without_shape_checks):
    class Layer(torch.nn.Module):
        def forward(self, query):
            return regard.attention(query, query, query, mask=blocks)

    blocks = masks.random_blocks(1, block=16, seed=3) | masks.causal() & masks.padding([60])
    program = torch.export.export(
        Layer(), (tokens(),), dynamic_shapes={"query": {2: torch.export.Dim("length", min=65, max=500)}}, strict=False
    )
    query = torch.randn(1, 1, 71, 5)
    assert torch.allclose(program.module()(query), attend(query, blocks), rtol=0, atol=1e-6)
