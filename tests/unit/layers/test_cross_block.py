"""Values of another size than queries and keys, and cross-attention blocks, against equations in NumPy and float64."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import regard
from regard import masks
from regard.errors import OptionError
from regard.layers import CrossAttentionBlock, FeedForward, MultiHeadAttention, NoResidual, PreNorm


def linear(layer, tokens):
    return tokens @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()


def norm(layer, tokens):
    centred = tokens - tokens.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + layer.eps)
    return scaled * layer.weight.detach().numpy() + layer.bias.detach().numpy()


def attend(layer, queries, memory, visible):
    """Compute the output of a layer, head by head; ``visible`` is bool (batch, keys)."""
    query, key = linear(layer.query_projection, queries), linear(layer.key_projection, memory)
    value, heads = linear(layer.value_projection, memory), []
    size, own = query.shape[-1] // layer.heads, value.shape[-1] // layer.heads
    for head in range(layer.heads):
        of_head, of_values = slice(head * size, (head + 1) * size), slice(head * own, (head + 1) * own)
        scores = query[..., of_head] @ key[..., of_head].swapaxes(-1, -2) / math.sqrt(size)
        scores = np.where(visible[:, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        heads.append(weights / weights.sum(-1, keepdims=True) @ value[..., of_values])
    return linear(layer.output_projection, np.concatenate(heads, -1))


def randomize(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module.double()


@pytest.mark.parametrize(("head_dim", "value_head_dim"), [(5, 2), (3, 11), (1, 7), (7, None)])
def test_values_of_another_size(head_dim, value_head_dim):
    torch.manual_seed(7)
    layer = randomize(MultiHeadAttention(13, 3, key_width=7, head_dim=head_dim, value_head_dim=value_head_dim))
    queries, memory = torch.randn(2, 5, 13, dtype=torch.float64), torch.randn(2, 11, 7, dtype=torch.float64)
    visible = torch.arange(11) < torch.tensor([11, 4])[:, None]
    expected = attend(layer, queries.numpy(), memory.numpy(), visible.numpy())
    found = layer(queries, memory, mask=masks.padding([11, 4]))
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-10, atol=1e-10)
    read = layer.attend_memory(queries, layer.project_memory(memory), mask=masks.padding([11, 4]))
    np.testing.assert_allclose(read.detach().numpy(), expected, rtol=1e-10, atol=1e-10)


def test_decoding_with_values_of_another_size():
    torch.manual_seed(7)
    layer = regard.MultiHeadAttention(12, 3, head_dim=5, value_head_dim=2)
    tokens, cache, steps = torch.randn(2, 7, 12), layer.empty_cache(), []
    for step in range(7):
        output, cache = layer(tokens[:, step : step + 1], cache=cache)
        steps.append(output)
    torch.testing.assert_close(torch.cat(steps, 1), layer(tokens, mask=masks.causal()))
    assert "value_head_dim=2" in repr(layer)


def test_wrong_sizes_of_values_are_refused():
    for size in (0, -1, 2.5):
        with pytest.raises(OptionError, match="value_head_dim"):
            regard.MultiHeadAttention(12, 3, value_head_dim=size)


@pytest.mark.parametrize("residual", [PreNorm, NoResidual])
def test_cross_attention_block(residual):
    torch.manual_seed(7)
    block = randomize(
        CrossAttentionBlock(
            attention=MultiHeadAttention(13, 2, key_width=7, head_dim=3, value_head_dim=5),
            feed_forward=FeedForward(13, 17),
            attention_residual=residual(nn.LayerNorm(13)),
            feed_forward_residual=PreNorm(nn.LayerNorm(13)),
            memory_norm=nn.LayerNorm(7),
        )
    )
    queries, memory = torch.randn(2, 5, 13, dtype=torch.float64), torch.randn(2, 11, 7, dtype=torch.float64)
    visible = torch.arange(11) < torch.tensor([3, 11])[:, None]
    normed = norm(block.attention_residual.norm, queries.numpy()), norm(block.memory_norm, memory.numpy())
    mixed = attend(block.attention, *normed, visible.numpy())
    mixed = mixed + queries.numpy() if residual is PreNorm else mixed
    inner = np.maximum(linear(block.feed_forward.up, norm(block.feed_forward_residual.norm, mixed)), 0)
    expected = mixed + linear(block.feed_forward.down, inner)
    found = block(queries, memory, mask=masks.padding([3, 11]))
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-10, atol=1e-10)
