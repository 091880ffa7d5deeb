"""A table of biases that is computed once gives the results of the bias itself, in every implementation and layer."""

import pytest
import torch
from torch.testing import assert_close

import regard
from regard import masks, positions
from regard.errors import OptionError, ShapeError
from regard.layers import decoder_block
from regard.layers.multi_head import MultiHeadAttention
from regard.models.beam_groups import BeamGroups

HEADS, QUERIES, KEYS = 3, 5, 11
KINDS = [positions.T5Buckets(HEADS, buckets=8, max_distance=7), positions.ALiBi(HEADS)]


def tokens(length):
    return torch.randn(2, HEADS, length, 7, dtype=torch.float64)


@pytest.mark.parametrize("impl", ["native", "reference", "sdpa"])
@pytest.mark.parametrize("bias", KINDS, ids=["t5", "alibi"])
@pytest.mark.parametrize("extra", [0, 13])
@pytest.mark.parametrize("queries", [1, QUERIES, KEYS, 17])
def test_equals_the_bias(impl, bias, extra, queries):
    query, key, value = tokens(queries), tokens(KEYS), tokens(KEYS)
    table = positions.DistanceTable.of(bias, 1 - max(KEYS, queries) - extra, max(KEYS, queries) - 1 + extra)
    ours = regard.attention(query, key, value, mask=masks.causal(), bias=table, impl=impl)
    assert_close(ours, regard.attention(query, key, value, mask=masks.causal(), bias=bias, impl=impl))


def test_gradients_reach_the_weights():
    bias = positions.T5Buckets(HEADS, buckets=8, max_distance=7).double()
    query, key, value = tokens(QUERIES), tokens(KEYS), tokens(KEYS)
    regard.attention(query, key, value, bias=bias).square().sum().backward()
    expected, bias.weight.grad = bias.weight.grad, None
    regard.attention(query, key, value, bias=positions.DistanceTable.of(bias, -20, 9)).square().sum().backward()
    assert_close(bias.weight.grad, expected)


def test_the_part_for_a_step_of_decoding():
    table = positions.DistanceTable.of(KINDS[0], -30, 0)
    part = table.narrowed(1 - KEYS, 0)
    assert (part.lowest, part.highest, part.heads) == (1 - KEYS, 0, HEADS)
    assert part.biases.is_contiguous()
    assert part.narrowed(1 - KEYS, 0) is part
    query, key, value = tokens(1), tokens(KEYS), tokens(KEYS)
    ours = regard.attention(query, key, value, bias=part)
    assert_close(ours, regard.attention(query, key, value, bias=KINDS[0]))


def test_half_precision_is_widened():
    bias = positions.T5Buckets(HEADS).to(torch.bfloat16)
    table = positions.DistanceTable.of(bias, -3, 3)
    assert table.biases.dtype == torch.float32
    assert torch.equal(table.biases, bias.table(-3, 3).float())


def test_distances_outside_of_the_table_are_refused():
    table = positions.DistanceTable.of(KINDS[0], -9, 3)
    query, key = tokens(QUERIES), tokens(KEYS)
    with pytest.raises(ShapeError, match="lacks distances"):
        regard.attention(query, key, key, bias=table)
    with pytest.raises(ShapeError, match="another number of heads"):
        regard.attention(query[:, :1], key[:, :1], key[:, :1], bias=table)
    with pytest.raises(ShapeError, match="not a table"):
        positions.DistanceTable(torch.zeros(3), 0)


class TestLayers:
    def test_a_layer_that_gets_its_bias_equals_one_that_has_it(self):
        torch.manual_seed(3)
        own = MultiHeadAttention(12, HEADS, position=KINDS[0]).double()
        plain = MultiHeadAttention(12, HEADS).double()
        plain.load_state_dict({name: one for name, one in own.state_dict().items() if "position" not in name})
        inputs = torch.randn(2, KEYS, 12, dtype=torch.float64)
        table = positions.DistanceTable.of(KINDS[0], 1 - KEYS, KEYS - 1)
        assert_close(plain(inputs, bias=table), own(inputs))
        output, cache = plain(inputs[:, :7], bias=table, cache=plain.empty_cache())
        last, _ = plain(inputs[:, 7:8], bias=table, cache=cache)
        assert_close(torch.cat([output, last], dim=1)[:, 7], own(inputs[:, :8])[:, 7])
        with pytest.raises(OptionError, match="a bias of its own"):
            own(inputs, bias=table)

    def test_rows_with_a_bias_do_not_share_entries(self):
        block = decoder_block(12, HEADS, 17, cross_attention=False)
        groups = BeamGroups.one_per_row(2, torch.device("cpu"))
        with pytest.raises(OptionError, match="DistanceTable, and rows that share"):
            block(
                torch.randn(2, 1, 12),
                bias=positions.DistanceTable.of(KINDS[0], 0, 0),
                cache=block.empty_cache(),
                own_shared=groups,
            )
