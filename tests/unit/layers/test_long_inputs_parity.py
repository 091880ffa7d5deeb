"""Layers with Longformer and BigBird against those of transformers, from the same weights, forward and backward."""

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BigBirdConfig, BigBirdModel, LongformerConfig
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

import regard
from regard import masks

NAMES = {
    "query": "query_projection",
    "key": "key_projection",
    "value": "value_projection",
    "query_global": "input_projections.global_query",
    "key_global": "input_projections.global_key",
    "value_global": "input_projections.global_value",
}
"""Names of the projections in transformers, and in MultiHeadAttention."""
CLOSE = 1e-4


def copy_weights(peer, layer):
    """Load the peer's projections; it has no output projection, so the layer's becomes the identity."""
    with torch.no_grad():
        for theirs, module in peer.named_children():
            ours = layer.get_submodule(NAMES[theirs])
            ours.weight.copy_(module.weight)
            ours.bias.copy_(module.bias)
        nn.init.eye_(layer.output_projection.weight)
        layer.output_projection.bias.zero_()
    layer.output_projection.requires_grad_(False)


def assert_same(ours, theirs, tokens, real, peer, layer):
    """Compare outputs of real tokens, and the gradients of tokens and weights when only those have one."""
    torch.testing.assert_close(ours[real], theirs[real], rtol=0, atol=CLOSE)
    upstream = torch.randn(ours.shape) * real[..., None]
    names = [name for name, _ in peer.named_children()]
    of_ours = [tokens, *(layer.get_submodule(NAMES[name]).weight for name in names)]
    of_theirs = [tokens, *(peer.get_submodule(name).weight for name in names)]
    gradients = torch.autograd.grad(ours, of_ours, upstream, materialize_grads=True, allow_unused=True)
    expected = torch.autograd.grad(theirs, of_theirs, upstream, materialize_grads=True, allow_unused=True)
    for name, one, other in zip(("tokens", *names), gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=CLOSE, atol=CLOSE, msg=name)


def draw_lengths(made, batch, length):
    return [length, *made.integers(length // 2, length, batch - 1).tolist()]


@pytest.mark.parametrize("seed", range(6))
def test_longformer(seed):
    made = np.random.default_rng(seed)
    torch.manual_seed(seed)
    heads, head_dim, side = (int(made.choice(sizes)) for sizes in ([1, 2, 3], [4, 5, 8], [2, 3, 8]))
    batch, length = int(made.integers(1, 4)), 2 * side * int(made.integers(2, 6))
    config = LongformerConfig(
        hidden_size=heads * head_dim,
        num_attention_heads=heads,
        attention_window=[2 * side],
        attention_probs_dropout_prob=0.0,
    )
    peer = LongformerSelfAttention(config, layer_id=0)
    options = {"window": 2 * side, "global_tokens": []}
    layer = regard.MultiHeadAttention(config.hidden_size, heads, mechanism="longformer", mechanism_options=options)
    for parameter in peer.parameters():
        nn.init.normal_(parameter, std=0.5)
    copy_weights(peer, layer)
    real = torch.arange(length) < torch.tensor(draw_lengths(made, batch, length))[:, None]
    is_global = torch.from_numpy(made.random((batch, length)) < 0.2) & real & (seed != 5)
    tokens = torch.randn(batch, length, config.hidden_size, requires_grad=True)
    of_peer = torch.zeros(batch, length).masked_fill(~real, -10000.0).masked_fill(is_global, 10000.0)
    theirs = peer(tokens, of_peer, ~real, is_global, bool(is_global.any()))[0]
    ours = layer(tokens, mask=masks.keep(real[:, None, None]), is_global=is_global[:, None, :, None])
    assert_same(ours, theirs, tokens, real, peer, layer)


@pytest.mark.parametrize("seed", range(6))
def test_bigbird(seed):
    made = np.random.default_rng(seed)
    torch.manual_seed(seed)
    heads, head_dim, block = (int(made.choice(sizes)) for sizes in ([1, 2, 3], [4, 5, 8], [4, 8, 16]))
    count = int(made.integers(1, 4))
    batch, blocks = int(made.integers(1, 4)), int(made.integers(2 * count + 6, 2 * count + 10))
    length = block * blocks
    config = BigBirdConfig(
        hidden_size=heads * head_dim,
        num_attention_heads=heads,
        block_size=block,
        num_random_blocks=count,
        attention_probs_dropout_prob=0.0,
    )
    peer = BigBirdBlockSparseAttention(config, seed=seed).train()  # it draws no blocks in eval mode
    layer = regard.MultiHeadAttention(
        config.hidden_size,
        heads,
        mechanism="bigbird",
        mechanism_options={"block": block, "random_blocks": peer_blocks(peer, length, seed)},
    )
    for parameter in peer.parameters():
        nn.init.normal_(parameter, std=0.5)
    copy_weights(peer, layer)
    real = torch.arange(length) < torch.tensor(draw_lengths(made, batch, length))[:, None]
    tokens = torch.randn(batch, length, config.hidden_size, requires_grad=True)
    blocked, band, from_mask, to_mask = BigBirdModel.create_masks_for_block_sparse_attn(real.float(), block)
    theirs = peer(tokens, band, from_mask, to_mask, blocked, blocked)[0]
    ours = layer(tokens, mask=masks.keep(real[:, None, None]))
    assert_same(ours, theirs, tokens, real, peer, layer)


def peer_blocks(peer, length, seed):
    """The random blocks that the peer draws, as a list (heads, blocks, count); those at both ends are global."""
    before = np.random.get_state()
    np.random.seed(seed)
    ends, counts = peer._get_rand_attn_plan(length, peer.block_size, peer.num_random_blocks)
    drawn = peer._bigbird_block_rand_mask_with_head(
        length, length, peer.block_size, peer.block_size, peer.num_attention_heads, ends, counts
    )
    np.random.set_state(before)
    return np.pad(np.stack(drawn), ((0, 0), (1, 1), (0, 0)), constant_values=-1).tolist()
