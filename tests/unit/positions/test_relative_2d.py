"""Relative position bias of windows: against the oracle and transformers, in every implementation; its promises."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from transformers.models.swin.modeling_swin import SwinRelativePositionBias

import regard
from any_threads import assert_same_bits
from regard import masks, positions
from regard.conformance.oracles import windows as oracle
from regard.conformance.oracles.softmax import softmax, visible_keys
from regard.contract import Frame
from regard.errors import OptionError, ShapeError
from regard.layers import MultiHeadAttention

HEADS, HEAD_DIM = 3, 5


def make_bias(window, dtype=torch.float64):
    bias = positions.Relative2d(HEADS, window).to(dtype)
    torch.nn.init.normal_(bias.weight)
    return bias


def tokens(batch, length):
    return torch.randn(batch, HEADS, length, HEAD_DIM, dtype=torch.float64)


def table_of(bias):
    offsets = 2 * bias.window - 1
    return bias.weight.detach().view(offsets, offsets, HEADS).numpy()


@pytest.mark.parametrize("window", [1, 2, 5, 7])
def test_equals_the_oracle_in_windows_up_to_its_own(window):
    bias = make_bias(window)
    for side in range(1, window + 1):
        expected = oracle.relative_bias(table_of(bias), side)
        np.testing.assert_array_equal(bias.dense(Frame(side**2, side**2)).detach()[0], expected)


def test_agrees_with_transformers():
    peer = SwinRelativePositionBias(HEADS, (5, 5))
    torch.nn.init.normal_(peer.relative_position_bias_table)
    ours = positions.Relative2d(HEADS, 5)
    ours.load_state_dict({"weight": peer.relative_position_bias_table.detach()})
    assert torch.equal(ours.dense(Frame(25, 25)), peer())
    upstream = torch.randn(1, HEADS, 25, 25)
    (expected,) = torch.autograd.grad(peer(), peer.relative_position_bias_table, upstream)
    assert_close(torch.autograd.grad(ours.dense(Frame(25, 25)), ours.weight, upstream)[0], expected)


@pytest.mark.parametrize("impl", ["native", "reference", "sdpa", "auto"])
def test_attention_in_every_implementation(impl):
    bias = make_bias(5)
    query, key, value = (tokens(7, 25).requires_grad_() for _ in range(3))
    output = regard.attention(query, key, value, bias=bias, impl=impl)
    scores = np.einsum("bhid,bhjd->bhij", query.detach(), key.detach()) / HEAD_DIM**0.5
    scores += oracle.relative_bias(table_of(bias), 5)
    weights = softmax(scores, visible_keys(None, scores.shape))
    np.testing.assert_allclose(output.detach(), weights @ value.detach().numpy(), atol=1e-13)
    inputs, upstream = (query, key, value, bias.weight), torch.randn_like(output)
    gradients = torch.autograd.grad(output, inputs, upstream)
    dense = bias.dense(Frame(25, 25))
    expected = torch.autograd.grad(((query @ key.mT * HEAD_DIM**-0.5 + dense).softmax(-1) @ value), inputs, upstream)
    for one, other in zip(gradients, expected, strict=True):
        assert_close(one, other, rtol=0, atol=1e-12)


def test_fewer_queries_are_the_last_tokens_of_the_window():
    bias, query, key = make_bias(3), tokens(2, 9), tokens(2, 9)
    whole = regard.attention(query, key, key, bias=bias)
    assert_close(regard.attention(query[:, :, 5:], key, key, bias=bias), whole[:, :, 5:])
    assert bias.dense(Frame(0, 9)).shape == (1, HEADS, 0, 9)
    assert bias.dense(Frame(0, 0)).shape == (1, HEADS, 0, 0)


def test_one_head_for_all():
    bias = positions.Relative2d(1, 3).double()
    query, key, value = tokens(2, 9), tokens(2, 9), tokens(2, 9)
    expected = regard.attention(query, key, value, bias=bias.dense(Frame(9, 9)).expand(1, HEADS, 9, 9))
    assert_close(regard.attention(query, key, value, bias=bias), expected)


def test_observe_and_other_mechanisms_take_it():
    bias, query, key = make_bias(3), tokens(2, 9), tokens(2, 9)
    seen = regard.observe(query, key, key, bias=bias, rows=[0, 4])
    expected = (query @ key.mT * HEAD_DIM**-0.5 + bias.dense(Frame(9, 9))).softmax(-1)
    assert_close(seen.rows, expected[:, :, [0, 4]])
    additive = regard.mechanism("additive", heads=HEADS, head_dim=HEAD_DIM).double()
    assert_close(additive(query, key, key, bias=bias), additive(query, key, key, bias=bias.dense(Frame(9, 9))))


def test_masked_tokens_have_no_influence_and_empty_rows_are_0():
    bias, mask = make_bias(3), masks.padding([4, 0])
    query, key, value = tokens(2, 9), tokens(2, 9), tokens(2, 9)
    clean = regard.attention(query, key, value, bias=bias, mask=mask)
    key[0, :, 4:], value[0, :, 4:] = torch.nan, torch.inf
    key[1], value[1] = torch.nan, torch.nan
    key, value = key.requires_grad_(), value.requires_grad_()
    output = regard.attention(query, key, value, bias=bias, mask=mask)
    assert torch.equal(output, clean)
    assert (output[1] == 0).all()
    of_bias, of_key = torch.autograd.grad(output, (bias.weight, key), torch.randn_like(output))
    assert of_bias.isfinite().all()
    assert (of_key[0, :, 4:] == 0).all()
    assert (of_key[1] == 0).all()


def test_bits_do_not_depend_on_the_number_of_threads():
    bias = make_bias(7, torch.float32)
    query, key, value = (torch.randn(13, HEADS, 49, HEAD_DIM, requires_grad=True) for _ in range(3))
    upstream = torch.randn(13, HEADS, 49, HEAD_DIM)

    def compute():
        output = regard.attention(query, key, value, bias=bias, impl="native")
        return output, *torch.autograd.grad(output, (query, key, value, bias.weight), upstream)

    assert_same_bits(compute, threads=(1, 3, 7))


def test_in_a_layer():
    layer = MultiHeadAttention(12, HEADS, position=make_bias(3)).double()
    plain = MultiHeadAttention(12, HEADS).double()
    plain.load_state_dict({name: one for name, one in layer.state_dict().items() if "position" not in name})
    inputs = torch.randn(2, 9, 12, dtype=torch.float64)
    assert_close(layer(inputs), plain(inputs, bias=layer.position.dense(Frame(9, 9))))
    half = MultiHeadAttention(12, HEADS, position=positions.Relative2d(HEADS, 3)).bfloat16()
    assert half(inputs.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(("queries", "keys"), [(8, 8), (16, 16), (10, 9), (3, 5)])
def test_other_lengths_are_refused(queries, keys):
    query, key = tokens(1, queries), tokens(1, keys)
    with pytest.raises(ShapeError, match=rf"(?s)not a window.*at most 3.*{queries} queries and {keys} keys"):
        regard.attention(query, key, key, bias=make_bias(3))


def test_invalid_arguments():
    with pytest.raises(ShapeError, match=r"(?s)Relative2d.*3 heads, as the query.*got: +2 heads"):
        regard.attention(*[tokens(1, 9)] * 3, bias=positions.Relative2d(2, 3).double())
    for arguments, name in [((0, 3), "heads"), ((3, 0), "window"), ((3, 2.0), "window")]:
        with pytest.raises(OptionError, match=f"wrong {name}"):
            positions.Relative2d(*arguments)
    with pytest.raises(OptionError, match="wrong deviation"):
        positions.Relative2d(3, 3, deviation=-1.0)
