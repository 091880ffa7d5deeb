"""Layers decode with a paged cache: sequences of different lengths, each with the result of decoding it alone."""

import pytest
import torch
from torch.testing import assert_close

import regard
from regard import masks, positions
from regard.errors import OptionError, RefusedError, ShapeError
from regard.layers import DecoderCache, MultiHeadAttention, PagedCache, PagePool, decoder_block

WIDTH, HEADS, HEAD_DIM = 20, 4, 5
LENGTHS = (7, 2, 4)


def tokens(*shape):
    return torch.randn(*shape, WIDTH, dtype=torch.float64)


def make_layer(**options):
    torch.manual_seed(3)
    return MultiHeadAttention(WIDTH, HEADS, **options).double().eval()


def prefill(layer, prompts):
    """Return a paged cache with the prompts, read one after the other."""
    pool = PagePool(layer.key_value_heads, layer.head_dim, page_size=3, dtype=torch.float64)
    cache = PagedCache.empty(pool, 0)
    for prompt in prompts:
        _, alone = layer(prompt, mask=masks.causal(), cache=PagedCache.empty(pool, 1))
        cache = cache.joined(alone)
    return cache


@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"key_value_heads": 2},
        {"position": positions.Rotary(4), "head_dim": 4},
        {"position": positions.ALiBi(HEADS)},
        {"mechanism": "additive"},
        {"mechanism": regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM, scale=0.3)},
    ],
    ids=["plain", "grouped queries", "rotary", "alibi", "additive", "scale"],
)
@torch.no_grad()
def test_each_sequence_is_decoded_as_if_alone(options, new):
    layer = make_layer(**options)
    prompts, following = [tokens(1, length) for length in LENGTHS], tokens(len(LENGTHS), new)
    cache = prefill(layer, prompts)
    output, longer = layer(following, mask=masks.causal(), cache=cache)
    assert longer.lengths == tuple(length + new for length in LENGTHS)
    assert (longer.length, cache.length) == (max(LENGTHS) + new, max(LENGTHS))
    for row, prompt in enumerate(prompts):
        whole = layer(torch.cat([prompt, following[row : row + 1]], dim=1), mask=masks.causal())
        assert_close(output[row : row + 1], whole[:, -new:], rtol=0, atol=1e-12)


@torch.no_grad()
def test_recording_has_one_call_per_sequence():
    layer = make_layer()
    cache = prefill(layer, [tokens(1, length) for length in LENGTHS])
    new = tokens(3, 1)
    with regard.record(layer) as recording:
        recorded, _ = layer(new, mask=masks.causal(), cache=cache)
    assert [call.key.shape[2] for call in recording] == [length + 1 for length in LENGTHS]
    assert_close(recorded, layer(new, mask=masks.causal(), cache=cache)[0], rtol=0, atol=1e-12)


@torch.no_grad()
def test_decoder_block_with_a_paged_cache():
    block = decoder_block(WIDTH, HEADS, 13, norm="pre").double().eval()
    prompts, memory = [tokens(1, length) for length in LENGTHS], tokens(3, 6)
    pool = PagePool(HEADS, HEAD_DIM, page_size=3, dtype=torch.float64)
    own = PagedCache.empty(pool, 0)
    for row, prompt in enumerate(prompts):
        started = DecoderCache(PagedCache.empty(pool, 1))
        _, alone = block(prompt, memory[row : row + 1], mask=masks.causal(), cache=started)
        own = own.joined(alone.own)
    following = tokens(3, 1)
    output, _ = block(following, memory, mask=masks.causal(), cache=DecoderCache(own))
    for row, prompt in enumerate(prompts):
        whole = torch.cat([prompt, following[row : row + 1]], dim=1)
        expected = block(whole, memory[row : row + 1], mask=masks.causal())[:, -1:]
        assert_close(output[row : row + 1], expected, rtol=0, atol=1e-12)


def test_unsupported_uses_of_a_paged_cache_are_refused():
    layer = make_layer(position=positions.Rotary(4), head_dim=4)
    with torch.no_grad():
        cache = prefill(layer, [tokens(1, length) for length in LENGTHS])
        with pytest.raises(ShapeError, match=r"different batch sizes[\s\S]*tokens of 3 sequences"):
            layer(tokens(2, 1), cache=cache)
        with pytest.raises(OptionError, match="not a state of Linear"):
            make_layer(mechanism="linear")(tokens(3, 1), mask=masks.causal(), cache=cache)
    with pytest.raises(RefusedError, match="does not pass gradients"):
        layer(tokens(3, 1), cache=cache)
    block = decoder_block(WIDTH, HEADS, 13).double()
    block.cross_attention.position = positions.Rotary(4)
    with pytest.raises(RefusedError, match=r"the same position in all[\s\S]*7, 2, 4 tokens"):
        block(tokens(3, 1), tokens(3, 6), cache=DecoderCache(cache))
