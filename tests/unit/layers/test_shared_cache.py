"""A decoder block step whose rows share cache entries equals a step whose rows have their own entries."""

import pytest
import torch
from torch.testing import assert_close

from regard import masks, positions
from regard.errors import OptionError, ShapeError
from regard.layers import DecoderCache, decoder_block
from regard.models.beam_groups import BeamGroups

WIDTH, HEADS, INNER = 12, 3, 17
OWNERS = torch.tensor([1, 0, 1, 1])  # the source of each of four rows


def build_block(**options):
    torch.manual_seed(2)
    return decoder_block(WIDTH, HEADS, INNER, **options).double().eval()


def select_groups(owners):
    groups, _ = BeamGroups.one_per_row(2, torch.device("cpu")).select(owners)
    return groups


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_rows_of_a_group_share_memory_and_tokens(norm):
    block, groups = build_block(norm=norm), select_groups(OWNERS)
    memory, lengths = torch.randn(2, 5, WIDTH, dtype=torch.float64), torch.tensor([5, 3])
    shared, alone = block.empty_cache(memory), block.empty_cache(memory[OWNERS])
    allowed = torch.ones(len(OWNERS), 0, dtype=torch.bool)
    for _ in range(3):
        tokens = torch.randn(len(OWNERS), 1, WIDTH, dtype=torch.float64)
        allowed = torch.cat([allowed, groups.query_one_hot], dim=1)
        output, shared = block(
            tokens,
            mask=masks.keep(groups.rows_to_queries(allowed[:, None])[:, None]),
            memory_mask=masks.padding(lengths),
            cache=shared,
            own_shared=groups,
            memory_shared=groups,
        )
        expected, alone = block(tokens, mask=masks.causal(), memory_mask=masks.padding(lengths[OWNERS]), cache=alone)
        assert_close(output, expected, rtol=0, atol=1e-12)
    assert (shared.memory.key.shape[0], alone.memory.key.shape[0]) == (2, 4)
    assert shared.own.key.shape == (2, HEADS, 9, WIDTH // HEADS)  # three rows of the larger group, three steps


def test_cache_made_from_the_memory_equals_that_of_the_first_call():
    block, memory = build_block(), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    tokens = torch.randn(2, 3, WIDTH, dtype=torch.float64)
    first, _ = block(tokens, memory, mask=masks.causal(), cache=DecoderCache())
    later, _ = block(tokens, mask=masks.causal(), cache=block.empty_cache(memory))
    assert torch.equal(first, later)
    without_cross_attention = build_block(cross_attention=False)
    assert without_cross_attention.empty_cache().memory is None
    with pytest.raises(OptionError, match="no cross-attention"):
        without_cross_attention.empty_cache(memory)


def test_own_tokens_and_memory_are_selected_separately():
    block, memory = build_block(), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    _, cache = block(torch.randn(2, 1, WIDTH, dtype=torch.float64), cache=block.empty_cache(memory))
    selected = cache.select(torch.tensor([1, 1, 0]), None)
    assert torch.equal(selected.own.key, cache.own.key[[1, 1, 0]])
    assert selected.memory is cache.memory


def test_unsupported_sharing_is_refused():
    groups, tokens = select_groups(OWNERS), torch.zeros(4, 1, WIDTH, dtype=torch.float64)
    memory = torch.zeros(2, 5, WIDTH, dtype=torch.float64)
    rotated = build_block(position=positions.Rotary(4))
    with pytest.raises(OptionError, match="position"):
        rotated(tokens, cache=rotated.empty_cache(memory), own_shared=groups)
    block = build_block()
    with pytest.raises(ShapeError, match=r"one token at a time[\s\S]*\(4, 2, 12\)"):
        block(tokens.expand(4, 2, WIDTH), cache=block.empty_cache(memory), memory_shared=groups)
    with pytest.raises(OptionError, match="a missing cache"):
        block(tokens, memory, memory_shared=groups)
    without_cross_attention = build_block(cross_attention=False)
    with pytest.raises(OptionError, match="without cross-attention"):
        without_cross_attention(tokens, cache=without_cross_attention.empty_cache(), memory_shared=groups)
