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
def test_a_mask_of_inference_mode_trains(mask, first):
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
def test_a_mask_used_among_fake_tensors_is_not_spoiled(mask, impl, without_shape_checks):
    made = mask()
    with FakeTensorMode():
        assert attend(torch.empty(1, 1, LENGTH, 5), made, impl).shape == (1, 1, LENGTH, 5)
    assert torch.equal(attend(tokens(), made), attend(tokens(), mask()))
    assert made == mask()


@every_mask  # fake tensors and symbolic lengths are in other tests of the default run
@pytest.mark.parametrize("mode", ["real", *(pytest.param(one, marks=pytest.mark.slow) for one in ("fake", "symbolic"))])
def test_a_mask_used_while_make_fx_traces_is_not_spoiled(mask, mode, without_shape_checks):
    made, expected = mask(), attend(tokens(), mask(), "reference")
    traced = make_fx(lambda query: attend(query, made, "reference"), tracing_mode=mode, _allow_non_fake_inputs=True)(
        tokens()
    )
    assert torch.equal(traced(tokens()), expected)
    assert torch.equal(attend(tokens(), made, "reference"), expected)


@every_mask
def test_a_mask_used_while_a_model_is_exported_is_not_spoiled(mask, without_shape_checks):
    class Layer(torch.nn.Module):
        def forward(self, query):
            return attend(query, made)

    made, expected = mask(), attend(tokens(), mask())
    program = torch.export.export(Layer(), (tokens(),), strict=False)
    assert torch.allclose(program.module()(tokens()), expected, rtol=0, atol=1e-6)
    assert torch.equal(attend(tokens(), made), expected)


@every_mask
def test_a_mask_first_used_inside_torch_func_is_not_spoiled(mask, without_shape_checks):
    query = tokens(dtype=torch.float64)
    made, several = mask(), torch.stack([query, 2 * query])
    found = torch.func.grad(lambda query: attend(query, made, "reference").square().sum())(query)
    many = torch.func.vmap(lambda query: attend(query, made, "reference"))(several)
    query.requires_grad_()
    attend(query, mask(), "reference").square().sum().backward()
    assert torch.allclose(found, query.grad, rtol=0, atol=1e-12)
    singles = torch.stack([attend(one, mask(), "reference") for one in several])
    assert torch.allclose(many, singles, rtol=0, atol=1e-12)
    assert torch.equal(attend(tokens(), made), attend(tokens(), mask()))


def test_threads_that_share_a_mask_see_what_one_would(monkeypatch, without_shape_checks):
    mask, lengths, strange = masks.causal() | masks.global_tokens([0]), range(65, 105), []

    class Made(SimpleNamespace):
        def clone(self):
            return self

    monkeypatch.setattr("regard.masks.tiles.build_tile_map", lambda mask, frame, tile: Made(frame=frame))

    def ask(first):
        for turn in range(7):
            length = lengths[(turn * 7 + first) % len(lengths)]
            try:
                found = mask.tiles(length, length).frame.keys
            except Exception as error:
                found = error
            strange.extend([found] if found != length else [])

    run_interleaved(ask, 4, files=("masks/base.py", "masks/memo.py"))
    assert strange == []


def test_few_results_are_kept_and_the_latest_used_last():
    memo, made = Memo(), []
    for number in (*range(MAX_RESULTS), 0, MAX_RESULTS, 0, 1):
        memo.get_or_compute(number, lambda number=number: made.append(number) or torch.zeros(number))
    assert made == [*range(MAX_RESULTS + 1), 1]  # 0 was used again, so 1 was evicted
    assert len(memo) == MAX_RESULTS


def test_what_is_kept_is_bounded_in_memory():
    memo = Memo()
    half = MAX_BYTES // 2 - 1
    for number in range(5):
        memo.get_or_compute(number, lambda: torch.empty(half, dtype=torch.uint8))
    assert len(memo) == 3  # the latest result, and two that fit
    memo.get_or_compute("large", lambda: torch.empty(MAX_BYTES * 2, dtype=torch.uint8))
    assert len(memo) == 3
    memo.get_or_compute("small", lambda: torch.empty(1))
    assert len(memo) == 1  # a result above the bound is kept only while it is the latest


def test_random_blocks_keep_few_draws():
    mask = masks.random_blocks(1, block=2)
    for length in range(1, 100):
        mask.dense(length, length)
    assert len(mask._memo) <= MAX_RESULTS
    assert mask == masks.random_blocks(1, block=2)


def test_a_draw_depends_on_nothing_but_its_seed():
    expected = masks.random_blocks(2, block=3, seed=5, heads=2).dense(67, 67)
    torch.manual_seed(11)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            found = masks.random_blocks(2, block=3, seed=5, heads=2).dense(67, 67, device="cpu")
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, expected)
    drawn = torch.ops.regard.random_blocks.default(2, 23, 2, 5)
    assert torch.equal(drawn.repeat_interleave(3, 1).repeat_interleave(3, 2)[None, :, :67, :67], expected)
    torch.library.opcheck(torch.ops.regard.random_blocks.default, (2, 23, 2, 5))


@every_mask
def test_tiles_are_the_same_whatever_the_default_device(mask):
    expected, made = mask().tiles(LENGTH, LENGTH).dense(), mask()
    with torch.device("meta"):
        found = made.tiles(LENGTH, LENGTH)
        assert torch.equal(found.dense(), expected)
        assert found.codes().is_cpu
        assert masks.padding([5, 3]) == masks.padding(torch.tensor([5, 3], device="cpu"))


def test_what_is_written_into_a_tile_map_stays_in_it():
    """Kernels use the cached tile map."""
    mask, given = masks.causal() | masks.global_tokens([0]), tokens()
    expected = attend(given, mask)
    tiles = mask.tiles(LENGTH, LENGTH)
    for part in (tiles.row_start, tiles.key_tile, tiles.bitmap, tiles.bitmaps):
        part.fill_(99)
    assert torch.equal(attend(given, mask), expected)


@every_mask
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda mask: pickle.loads(pickle.dumps(mask))])
def test_a_copy_is_equal_and_carries_nothing_that_was_derived(mask, copied):
    made = mask()
    attend(tokens(), made)
    made.tiles(LENGTH, LENGTH)
    other = copied(made)
    assert other == made
    assert hash(other) == hash(made)
    assert "_derived" not in vars(other)
    assert torch.equal(other.dense(LENGTH, LENGTH), made.dense(LENGTH, LENGTH))


def test_lengths_of_a_trace_may_be_symbols(without_shape_checks):
    class Layer(torch.nn.Module):
        def forward(self, query):
            return regard.attention(query, query, query, mask=made)

    made = masks.random_blocks(1, block=16, seed=3) | masks.causal() & masks.padding([60])
    program = torch.export.export(
        Layer(), (tokens(),), dynamic_shapes={"query": {2: torch.export.Dim("length", min=65, max=500)}}, strict=False
    )
    query = torch.randn(1, 1, 71, 5)
    assert torch.allclose(program.module()(query), attend(query, made), rtol=0, atol=1e-6)
