"""A layer with Reformer's chunks against that of transformers, from the same weights and rotations.

In float64: the peer gives a token's own key the score -10^5, and where a token meets no other key but its own twice,
the sum of the two in float32 has an error of 0.4 %.
"""

import numpy as np
import pytest
import torch
from torch import nn
from transformers import ReformerConfig, ReformerModel

import regard
from regard import masks

CLOSE = 1e-4
CASES = [
    # chunk, length, rounds, buckets, decoder, padding of the second text
    (4, 24, 1, 6, False, 0),
    (8, 64, 2, [2, 4], False, 7),
    (5, 35, 3, 4, True, 0),
    (16, 48, 2, 8, True, 5),
    (64, 320, 4, 16, False, 63),
    (64, 384, 2, [4, 8], True, 40),
    (32, 32, 4, 8, False, 11),  # one chunk: transformers then computes exact attention
    (32, 23, 2, 8, True, 0),
]
"""Less padding than a chunk: chunks of padding alone are met in transformers, and here they are not."""


def make_peer(case, heads, head_dim):
    """The attention of a ReformerModel with random weights."""
    chunk, _, rounds, buckets, decoder, _ = case
    config = ReformerConfig(
        hidden_size=heads * head_dim,
        num_attention_heads=heads,
        attention_head_size=head_dim,
        attn_layers=["lsh"],
        num_hidden_layers=1,
        lsh_attn_chunk_length=chunk,
        num_hashes=rounds,
        num_buckets=buckets,
        hash_seed=7,
        is_decoder=decoder,
        axial_pos_embds=False,
        vocab_size=11,
        lsh_attention_probs_dropout_prob=0.0,
    )
    attention = ReformerModel(config).encoder.layers[0].attention
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.4)
    return attention.self_attention.double(), attention.output.dense.double()


def make_layer(case, heads, head_dim, peer, output):
    chunk, _, rounds, buckets, _, _ = case
    layer = regard.MultiHeadAttention(
        heads * head_dim,
        heads,
        bias=False,
        mechanism="reformer",
        mechanism_options={"rounds": rounds, "buckets": buckets, "chunk": chunk},
    )
    weights = {
        "query_projection.weight": peer.query_key.weight,
        "value_projection.weight": peer.value.weight,
        "output_projection.weight": output.weight,
    }
    layer.load_state_dict(weights)
    return layer.double()


def hash_of_peer(peer, tokens, rounds, real):
    """The buckets that the peer computes, (batch, heads, length, rounds), counted from 0 in each round."""
    vectors = peer._split_hidden_size_dim(peer.query_key(tokens), peer.num_attention_heads, peer.attention_head_size)
    mask = real.long()
    found = peer._hash_vectors(vectors, rounds, mask).unflatten(2, (rounds, -1))
    buckets = np.prod(peer.num_buckets) + (0 if bool(real.all()) else 1)
    return (found - torch.arange(rounds)[:, None] * int(buckets)).transpose(2, 3)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_chunks_agree_with_transformers(case):
    _, length, rounds, _, decoder, padding = case
    torch.manual_seed(2020)
    heads, head_dim, batch = 3, 8, 2
    peer, output = make_peer(case, heads, head_dim)
    layer = make_layer(case, heads, head_dim, peer, output)
    real = torch.arange(length) < torch.tensor([[length], [length - padding]])
    tokens = torch.randn(batch, length, heads * head_dim, dtype=torch.float64, requires_grad=True)
    buckets = hash_of_peer(peer, tokens, rounds, real)
    expected = output(peer(tokens, attention_mask=real.long()).hidden_states)
    mask = masks.keep(real[:, None, None])
    mask = mask & masks.causal() if decoder else mask
    actual = layer(tokens, mask=mask, query_buckets=buckets, key_buckets=buckets)
    torch.testing.assert_close(actual[real], expected[real], rtol=0, atol=CLOSE)
    upstream = torch.randn(actual.shape, dtype=torch.float64) * real[..., None]
    of_ours = [tokens, layer.query_projection.weight, layer.value_projection.weight, layer.output_projection.weight]
    of_theirs = [tokens, peer.query_key.weight, peer.value.weight, output.weight]
    found = torch.autograd.grad(actual, of_ours, upstream)
    for one, other in zip(found, torch.autograd.grad(expected, of_theirs, upstream), strict=True):
        torch.testing.assert_close(one, other, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("case", [(8, 64, 2, [2, 4], False, 24), (16, 80, 3, 8, True, 48)], ids=str)
def test_chunks_of_a_padded_text_agree_with_transformers_on_the_text_alone(case):
    _, length, rounds, _, decoder, padding = case
    torch.manual_seed(2020)
    peer, output = make_peer(case, 3, 8)
    layer = make_layer(case, 3, 8, peer, output)
    tokens, alone = torch.randn(2, length, 24, dtype=torch.float64), length - padding
    buckets = hash_of_peer(peer, tokens, rounds, torch.ones(2, length, dtype=torch.bool))
    mask = masks.padding([length, alone])
    mask = mask & masks.causal() if decoder else mask
    actual = layer(tokens, mask=mask, query_buckets=buckets, key_buckets=buckets)
    expected = output(peer(tokens[1:, :alone]).hidden_states)
    torch.testing.assert_close(actual[1:, :alone], expected, rtol=0, atol=CLOSE)
