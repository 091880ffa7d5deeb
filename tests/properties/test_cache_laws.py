"""A cache changes how often keys are computed, never the result: for any split of the text, and for branches."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypothesis_examples import examples
from regard import masks, positions
from regard.layers import DecoderCache, KeyValueCache, MultiHeadAttention, decoder_block
from script_process import run_script

LENGTH, WIDTH, HEADS = 13, 24, 6
splits = st.lists(st.integers(1, LENGTH - 1), unique=True, max_size=5).map(sorted)
law_settings = examples(15, without_slow=5)
POSITIONS = {
    "none": lambda: None,
    "rotary": lambda: positions.Rotary(WIDTH // HEADS),
    "rotary in pairs, yarn": lambda: positions.Rotary(
        WIDTH // HEADS, layout="pairs", scaling=positions.YarnScaling(4.0, 32)
    ),
    "alibi": lambda: positions.ALiBi(HEADS),
    "t5": lambda: positions.T5Buckets(HEADS, buckets=8, max_distance=11, bidirectional=False),
    "shaw": lambda: positions.ShawRelative(WIDTH // HEADS, 3),
}
MASKS = {
    "causal": lambda: masks.causal(),
    "window": lambda: masks.window(4, 0),
    "global": lambda: masks.causal() & (masks.window(2, 0) | masks.global_tokens([1])),
}


def make_layer(position: str, mechanism: str = "dot_product") -> MultiHeadAttention:
    torch.manual_seed(5)
    position_object = POSITIONS[position]()
    return MultiHeadAttention(WIDTH, HEADS, key_value_heads=3, mechanism=mechanism, position=position_object).double()


def split_at(tokens: torch.Tensor, at: list[int]):
    edges = [0, *at, tokens.shape[1]]
    return [tokens[:, start:stop] for start, stop in pairwise(edges)]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("position", POSITIONS)
@law_settings
@given(at=splits, learning=st.booleans())
def test_any_split_gives_the_same_output(position: str, mask: str, at: list[int], learning: bool) -> None:
    layer, tokens = make_layer(position), torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    with torch.set_grad_enabled(learning):
        whole, cache, parts = layer(tokens, mask=MASKS[mask]()), KeyValueCache.empty(), []
        for piece in split_at(tokens, at):
            output, cache = layer(piece, mask=MASKS[mask](), cache=cache)
            parts.append(output)
    assert cache.length == LENGTH
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mechanism", ["additive", "luong_general"])
@law_settings
@given(at=splits)
def test_other_mechanisms_decode_with_a_cache(mechanism: str, at: list[int]) -> None:
    layer, tokens = make_layer("rotary", mechanism), torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    cache, parts = KeyValueCache.empty(), []
    with torch.no_grad():
        for piece in split_at(tokens, at):
            output, cache = layer(piece, mask=masks.causal(), cache=cache)
            parts.append(output)
        torch.testing.assert_close(torch.cat(parts, 1), layer(tokens, mask=masks.causal()), rtol=0, atol=1e-12)


@law_settings
@given(start=st.integers(1, 6), lengths=st.lists(st.integers(1, 3), min_size=2, max_size=4), learning=st.booleans())
def test_branches_of_a_cache_are_independent(start: int, lengths: list[int], learning: bool) -> None:
    layer, mask = make_layer("rotary"), masks.causal()
    prefix = torch.randn(2, start, WIDTH, dtype=torch.float64)
    branches = [torch.randn(2, length, WIDTH, dtype=torch.float64) for length in lengths]
    with torch.set_grad_enabled(learning):
        _, root = layer(prefix, mask=mask, cache=KeyValueCache.empty())
        extended = [layer(branch, mask=mask, cache=root) for branch in branches]
        extended_twice = [
            layer(branch, mask=mask, cache=cache) for branch, (_, cache) in zip(branches, extended, strict=True)
        ]
        for branch, (output, _), (later, _) in zip(branches, extended, extended_twice, strict=True):
            whole = layer(torch.cat([prefix, branch, branch], 1), mask=mask)
            joined = torch.cat([output, later], 1)
            torch.testing.assert_close(joined, whole[:, start:], rtol=0, atol=1e-12)
    assert root.length == start


@law_settings
@given(at=splits, order=st.permutations(range(3)))
def test_reordered_cache_equals_the_cache_of_reordered_texts(at: list[int], order: list[int]) -> None:
    layer, tokens, mask = make_layer("alibi"), torch.randn(3, LENGTH, WIDTH, dtype=torch.float64), masks.causal()
    first, *rest = split_at(tokens, at)
    with torch.no_grad():
        _, cache = layer(first, mask=mask, cache=KeyValueCache.empty())
        cache = cache.reordered(torch.tensor(order))
        for piece in rest:
            output, cache = layer(piece[order], mask=mask, cache=cache)
        if rest:
            whole = layer(tokens[order], mask=mask)[:, -rest[-1].shape[1] :]
            torch.testing.assert_close(output, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["pre", "post"])
@law_settings
@given(at=splits)
def test_decoder_block_with_a_cache_gives_the_same_output(norm: str, at: list[int]) -> None:
    torch.manual_seed(7)
    block = decoder_block(WIDTH, HEADS, 31, norm=norm, position=positions.Rotary(WIDTH // HEADS)).double().eval()
    tokens, memory = (torch.randn(2, length, WIDTH, dtype=torch.float64) for length in (LENGTH, 5))
    causal, padding = masks.causal(), masks.padding([5, 3])
    with torch.no_grad():
        whole, cache, parts = block(tokens, memory, mask=causal, memory_mask=padding), DecoderCache(), []
        for number, piece in enumerate(split_at(tokens, at)):
            given_memory = memory if number == 0 else None
            output, cache = block(piece, given_memory, mask=causal, memory_mask=padding, cache=cache)
            parts.append(output)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-12)


def test_cache_of_frozen_keys_with_a_trained_query() -> None:
    layer = make_layer("none")
    for projection in (layer.key_projection, layer.value_projection):
        projection.requires_grad_(False)
    cache, total = KeyValueCache.empty(), 0.0
    for _ in range(5):
        output, cache = layer(torch.randn(1, 1, WIDTH, dtype=torch.float64), cache=cache)
        total = total + output.sum()
    total.backward()
    assert layer.query_projection.weight.grad.isfinite().all()


def test_random_blocks_are_the_same_in_another_process() -> None:
    expression = "masks.random_blocks(2, block=3, seed=11, heads=2)"
    code = f"from regard import masks; print({expression}.dense(13, 13).int().tolist())"
    result = run_script(code)
    torch.manual_seed(99)
    here = masks.random_blocks(2, block=3, seed=11, heads=2).dense(13, 13).int().tolist()
    assert result.stdout.strip() == str(here), result.stderr
