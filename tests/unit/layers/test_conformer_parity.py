"""The Conformer block against the encoder layer of Wav2Vec2-Conformer in transformers, and its promises."""

import pytest
import torch
from transformers import Wav2Vec2ConformerConfig
from transformers.models.wav2vec2_conformer import modeling_wav2vec2_conformer as peers

from regard import positions
from regard.contract import Frame
from regard.layers import ConformerBlock, MaskedBatchNorm, MultiHeadAttention

WIDTH, HEADS, INNER, KERNEL, LENGTH, BATCH = 14, 7, 11, 5, 13, 3
BIASES = ("pos_bias_u", "pos_bias_v")


def make_block() -> ConformerBlock:
    position = positions.RelativeSinusoidal(HEADS, WIDTH // HEADS, WIDTH)
    return ConformerBlock(MultiHeadAttention(WIDTH, HEADS, position=position), INNER, KERNEL)


def random_numbers(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5 if "var" in name else torch.randn_like(tensor) * 0.5)


def make_pair(dtype):
    """A layer of transformers with random numbers, its positions, and our block with the same weights."""
    config = Wav2Vec2ConformerConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, intermediate_size=INNER, hidden_act="swish",
        conv_depthwise_kernel_size=KERNEL, position_embeddings_type="relative", hidden_dropout=0.0,
        attention_dropout=0.0, activation_dropout=0.0, conformer_conv_dropout=0.0, attn_implementation="eager",
    )  # fmt: skip
    peer = peers.Wav2Vec2ConformerEncoderLayer(config)
    random_numbers(peer.to(dtype))
    embedding = peers.Wav2Vec2ConformerRelPositionalEmbedding(config)
    block = make_block().to(dtype)
    block.load_state_dict(from_peer(peer.state_dict()))
    return peer, embedding.to(dtype), block


NAMES = {
    "ffn1_layer_norm": "first_residual.norm", "ffn1.intermediate_dense": "first_feed_forward.up",
    "ffn1.output_dense": "first_feed_forward.down", "self_attn_layer_norm": "attention_residual.norm",
    "self_attn.linear_q": "attention.query_projection", "self_attn.linear_k": "attention.key_projection",
    "self_attn.linear_v": "attention.value_projection", "self_attn.linear_out": "attention.output_projection",
    "self_attn.linear_pos": "attention.position", "conv_module.layer_norm": "convolution_residual.norm",
    "conv_module.pointwise_conv1": "convolution.expansion", "conv_module.depthwise_conv": "convolution.depthwise",
    "conv_module.batch_norm": "convolution.norm", "conv_module.pointwise_conv2": "convolution.projection",
    "ffn2_layer_norm": "last_residual.norm", "ffn2.intermediate_dense": "last_feed_forward.up",
    "ffn2.output_dense": "last_feed_forward.down", "final_layer_norm": "norm",
}  # fmt: skip


def rename(state):
    """Rename tensors of the peer by our names; those of pointwise convolutions are matrices here."""
    renamed = {}
    for name, tensor in state.items():
        module, _, kind = name.rpartition(".")
        if kind == "num_batches_tracked" or kind in BIASES:
            continue
        ours = f"{NAMES[module]}.{'running_variance' if kind == 'running_var' else kind}"
        renamed[ours] = tensor.squeeze(-1) if "pointwise" in name else tensor
    return renamed


def from_peer(state):
    """The weights of our block: u is a part of the bias of the query projection, and c = v - u."""
    weights = rename(state)
    u, v = (state[f"self_attn.{name}"] for name in BIASES)
    weights["attention.query_projection.bias"] = weights["attention.query_projection.bias"] + u.flatten()
    weights["attention.position.query_bias"] = v - u
    return weights


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-9)])
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_block_equals_that_of_transformers(dtype, tolerance, training):
    torch.manual_seed(11)
    peer, embedding, block = make_pair(dtype)
    peer.train(training), block.train(training)
    tokens = torch.randn(BATCH, LENGTH, WIDTH, dtype=dtype)
    factors = torch.randn_like(tokens)
    mine, other = tokens.clone().requires_grad_(), tokens.clone().requires_grad_()
    # Sinusoids are float32 in transformers, so its own positions are taken in float64 too.
    table = embedding(other)
    if dtype == torch.float64:
        exact = positions.Sinusoidal(WIDTH).double()(2 * LENGTH - 1, offset=1 - LENGTH).flip(0)[None]
        torch.testing.assert_close(table, exact, rtol=0, atol=1e-5)
        table = exact
    ours, theirs = block(mine), peer(other, relative_position_embeddings=table)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    (ours * factors).sum().backward()
    (theirs * factors).sum().backward()
    scale = max(1.0, float(other.grad.abs().max()))
    torch.testing.assert_close(mine.grad / scale, other.grad / scale, rtol=tolerance, atol=tolerance)
    expected = rename({name: weight.grad for name, weight in peer.named_parameters()})
    found = {name: weight.grad for name, weight in block.named_parameters()}
    attention = peer.self_attn
    # L(b, u, v) = L'(b + u, v - u): dL/db = dL'/db', dL/dv = dL'/dc, dL/du = dL/db - dL/dv.
    expected["attention.position.query_bias"] = attention.pos_bias_v.grad
    expected_u = found["attention.query_projection.bias"] - found["attention.position.query_bias"].flatten()
    torch.testing.assert_close(attention.pos_bias_u.grad.flatten(), expected_u, rtol=tolerance, atol=tolerance * scale)
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(found[name] / scale, gradient / scale, rtol=tolerance, atol=tolerance)
    after = rename(peer.state_dict())
    for name in ("running_mean", "running_variance"):
        key = f"convolution.norm.{name}"
        torch.testing.assert_close(block.state_dict()[key], after[key], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("poison", [1e6, float("nan")])
def test_hidden_tokens_have_no_influence(training, poison):
    """Not through attention, the convolution, or the statistics of the batch norm; and get a gradient of 0."""
    torch.manual_seed(3)
    block, again = make_block(), make_block()
    random_numbers(block)
    again.load_state_dict(block.state_dict())
    block.train(training), again.train(training)
    visible = torch.arange(LENGTH) < torch.tensor([LENGTH, 7, 1])[:, None]
    tokens = torch.randn(BATCH, LENGTH, WIDTH)
    poisoned = torch.where(visible[..., None], tokens, poison).requires_grad_()
    clean = block(tokens, visible)[visible]
    output = again(poisoned, visible)[visible]
    assert torch.equal(output, clean)
    output.square().sum().backward()
    assert (poisoned.grad[~visible] == 0).all()
    for name, tensor in block.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])


def test_padding_changes_no_visible_token():
    torch.manual_seed(5)
    block = make_block().double().eval()
    random_numbers(block)
    alone = torch.randn(1, 7, WIDTH, dtype=torch.float64)
    padded = torch.cat([alone, torch.randn(1, 6, WIDTH, dtype=torch.float64)], dim=1)
    output = block(padded, torch.arange(13)[None] < 7)[:, :7]
    torch.testing.assert_close(output, block(alone), rtol=0, atol=1e-12)


def test_relative_positions_follow_the_paper():
    """(q_i + u) . k_j + (q_i + v) . W s(i - j), with loops, for queries that are the last ones of the keys."""
    torch.manual_seed(7)
    heads, dim, width, queries, keys = 3, 5, 8, 4, 7
    position = positions.RelativeSinusoidal(heads, dim, width).double()
    with torch.no_grad():
        position.query_bias.normal_()
    query = torch.randn(2, heads, queries, dim, dtype=torch.float64)
    attention = MultiHeadAttention(heads * dim, heads, position=position).double()
    frame = Frame(queries, keys)
    found = position.scores(query, frame, frame.all_rows(), 0.3)
    for i in range(queries):
        for j in range(keys):
            distance = i + keys - queries - j
            angles = [distance * 10000 ** (-2 * pair / width) for pair in range(width // 2)]
            s = torch.stack([f(torch.tensor(a, dtype=torch.float64)) for a in angles for f in (torch.sin, torch.cos)])
            r = (position.weight @ s).view(heads, dim)
            expected = 0.3 * ((query[:, :, i] + position.query_bias) * r).sum(-1)
            torch.testing.assert_close(found[:, :, i, j], expected, rtol=0, atol=1e-12)
    tokens = torch.randn(2, keys, heads * dim, dtype=torch.float64)
    whole, last = attention(tokens), attention(tokens[:, -1:], tokens)
    torch.testing.assert_close(last, whole[:, -1:], rtol=0, atol=1e-12)


def test_masked_batch_norm_counts_visible_tokens():
    torch.manual_seed(2)
    ours, theirs = MaskedBatchNorm(5), torch.nn.BatchNorm1d(5)
    tokens = torch.randn(3, 7, 5)
    visible = torch.arange(7) < torch.tensor([7, 0, 3])[:, None]
    flat = theirs(tokens[visible])
    torch.testing.assert_close(ours(tokens, visible)[visible], flat, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_variance, theirs.running_var)
    before = ours.running_mean.clone()
    assert (ours(tokens, torch.zeros(3, 7, dtype=torch.bool)) == 0).all()
    assert torch.equal(ours.running_mean, before)
