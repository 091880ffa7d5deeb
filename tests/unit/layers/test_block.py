"""Encoder and decoder blocks against torch's layers and the oracle."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from oracles import blocks as oracle
from regard import masks, positions
from regard.conformance.oracles import masks as mask_oracle
from regard.errors import OptionError, RefusedError
from regard.layers import (
    DecoderBlock,
    DecoderCache,
    Dropout,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    PostNorm,
    PreNorm,
    decoder_block,
    encoder_block,
)

WIDTH, HEADS, INNER = 12, 3, 17
PADDED = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])  # torch's polarity
MEMORY_PADDED = torch.tensor([[False] * 5, [False] * 2 + [True] * 3])


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def randomize(module):
    """Convert the module to float64 and randomize all parameters, so that none has a special value."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double()


def copy_weights(ours, theirs, names):
    """Copy torch's weights to regard's block; ``names`` maps regard's modules to torch's."""
    for our_name, their_name in names.items():
        ours.get_submodule(our_name).load_state_dict(theirs.get_submodule(their_name).state_dict())
    return ours.double()


ENCODER = {
    "attention": "self_attn",
    "attention_residual.norm": "norm1",
    "feed_forward.up": "linear1",
    "feed_forward.down": "linear2",
    "feed_forward_residual.norm": "norm2",
}
DECODER = ENCODER | {
    "cross_attention": "multihead_attn",
    "cross_attention_residual.norm": "norm2",
    "feed_forward_residual.norm": "norm3",
}


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
class TestAgainstTorch:
    def options(self, norm, activation):
        return {
            "dim_feedforward": INNER,
            "activation": activation,
            "batch_first": True,
            "norm_first": norm == "pre",
            "layer_norm_eps": 1e-3,
        }

    def test_encoder(self, norm, activation):
        theirs = randomize(nn.TransformerEncoderLayer(WIDTH, HEADS, **self.options(norm, activation)).eval())
        ours = copy_weights(
            encoder_block(WIDTH, HEADS, INNER, norm=norm, activation=activation, epsilon=1e-3), theirs, ENCODER
        )
        tokens, real = randn(2, 7, WIDTH), ~PADDED
        assert_close(ours(tokens), theirs(tokens))
        mask = masks.causal() & masks.from_multihead_attention(key_padding_mask=PADDED)
        expected = theirs(tokens, nn.Transformer.generate_square_subsequent_mask(7).isinf(), PADDED)
        assert_close(ours(tokens, mask=mask)[real], expected[real])

    def test_decoder(self, norm, activation):
        theirs = randomize(nn.TransformerDecoderLayer(WIDTH, HEADS, **self.options(norm, activation)).eval())
        ours = copy_weights(
            decoder_block(WIDTH, HEADS, INNER, norm=norm, activation=activation, epsilon=1e-3), theirs, DECODER
        )
        tokens, memory = randn(2, 7, WIDTH), randn(2, 5, WIDTH)
        memory_mask = masks.from_multihead_attention(key_padding_mask=MEMORY_PADDED)
        expected = theirs(
            tokens,
            memory,
            nn.Transformer.generate_square_subsequent_mask(7).isinf(),
            memory_key_padding_mask=MEMORY_PADDED,
        )
        assert_close(ours(tokens, memory, mask=masks.causal(), memory_mask=memory_mask), expected)

    def test_gradients(self, norm, activation):
        theirs = randomize(nn.TransformerEncoderLayer(WIDTH, HEADS, dropout=0.0, **self.options(norm, activation)))
        ours = copy_weights(
            encoder_block(WIDTH, HEADS, INNER, norm=norm, activation=activation, epsilon=1e-3), theirs, ENCODER
        )
        tokens = randn(2, 7, WIDTH)
        for block in (theirs, ours):
            block(tokens).square().sum().backward()
        for our_name, their_name in list(ENCODER.items())[1:]:
            for name, parameter in ours.get_submodule(our_name).named_parameters():
                assert_close(parameter.grad, theirs.get_submodule(their_name).get_parameter(name).grad)
        fused = theirs.self_attn.in_proj_weight.grad.chunk(3)
        for name, part in zip(("query", "key", "value"), fused, strict=True):
            assert_close(getattr(ours.attention, f"{name}_projection").weight.grad, part)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("activation", "key_value_heads"), [("swiglu", 1), ("gelu_tanh", 3)])
def test_oracle(norm, activation, key_value_heads):
    block = encoder_block(WIDTH, HEADS, INNER, norm=norm, activation=activation, key_value_heads=key_value_heads)
    randomize(block)

    def linear(layer):
        return oracle.Linear(layer.weight.detach().numpy().T, layer.bias.detach().numpy())

    def norm_of(residual):
        return oracle.Norm(residual.norm.weight.detach().numpy(), residual.norm.bias.detach().numpy(), 1e-5)

    multi, feed = block.attention, block.feed_forward
    projections = (multi.query_projection, multi.key_projection, multi.value_projection, multi.output_projection)
    tokens = randn(2, 7, WIDTH)
    expected = oracle.encoder_block(
        tokens.numpy(),
        oracle.MultiHead(*map(linear, projections), HEADS, key_value_heads),
        norm_of(block.attention_residual),
        oracle.FeedForward(
            linear(feed.up), linear(feed.down), activation, None if feed.gate is None else linear(feed.gate)
        ),
        norm_of(block.feed_forward_residual),
        norm_first=norm == "pre",
        allowed=mask_oracle.window(2, 1, 7, 7),
    )
    assert_close(block(tokens, mask=masks.window(2, 1)).detach(), torch.from_numpy(expected), rtol=0, atol=1e-11)


class TestDecoderCache:
    @pytest.mark.parametrize("norm", ["pre", "post"])
    @pytest.mark.parametrize("cross", [True, False])
    def test_steps_equal_the_whole_sequence(self, norm, cross):
        block = decoder_block(
            WIDTH, HEADS, INNER, norm=norm, position=positions.Rotary(4), key_value_heads=1, cross_attention=cross
        ).double()
        tokens, memory = randn(2, 7, WIDTH), randn(2, 5, WIDTH) if cross else None
        memory_mask = masks.padding([5, 2]) if cross else None
        whole = block(tokens, memory, mask=masks.causal(), memory_mask=memory_mask)
        cache, pieces = DecoderCache(), []
        for number, piece in enumerate(tokens.split([3, 1, 2, 1], dim=1)):
            new_memory = memory if number == 0 else None  # needed in the first call only
            output, cache = block(piece, new_memory, mask=masks.causal(), memory_mask=memory_mask, cache=cache)
            pieces.append(output)
        assert_close(torch.cat(pieces, dim=1), whole)
        assert cache.own.length == 7
        assert (None if cache.memory is None else cache.memory.length) == (5 if cross else None)

    def test_cross_attention_with_rotary_positions(self):
        def residual():
            return PreNorm(nn.LayerNorm(WIDTH))

        block = DecoderBlock(
            attention=MultiHeadAttention(WIDTH, HEADS),
            feed_forward=FeedForward(WIDTH, INNER),
            attention_residual=residual(),
            feed_forward_residual=residual(),
            cross_attention=MultiHeadAttention(WIDTH, HEADS, position=positions.Rotary(4), key_width=5),
            cross_attention_residual=residual(),
        ).double()
        tokens, memory, cache = randn(2, 7, WIDTH), randn(2, 11, 5), DecoderCache()
        whole, pieces = block(tokens, memory, mask=masks.causal()), []
        for piece in tokens.split([3, 1, 3], dim=1):
            output, cache = block(piece, memory, mask=masks.causal(), cache=cache)
            pieces.append(output)
        assert_close(torch.cat(pieces, dim=1), whole)

    @pytest.mark.parametrize("position", [positions.ALiBi(HEADS), positions.T5Buckets(HEADS)], ids=["alibi", "t5"])
    def test_steps_with_a_distance_bias_in_cross_attention_are_refused(self, position):
        block = DecoderBlock(
            attention=MultiHeadAttention(WIDTH, HEADS),
            feed_forward=FeedForward(WIDTH, INNER),
            attention_residual=PreNorm(nn.LayerNorm(WIDTH)),
            feed_forward_residual=PreNorm(nn.LayerNorm(WIDTH)),
            cross_attention=MultiHeadAttention(WIDTH, HEADS, position=position),
            cross_attention_residual=PreNorm(nn.LayerNorm(WIDTH)),
        )
        tokens, memory = torch.randn(2, 7, WIDTH), torch.randn(2, 11, WIDTH)
        assert block(tokens, memory).shape == tokens.shape
        with pytest.raises(RefusedError, match="takes all queries at once"):
            block(tokens, memory, cache=DecoderCache())


class TestDropout:
    def test_each_rate_reaches_its_layers(self):
        dropouts = {"dropout": 0.25, "attention_dropout": 0.125, "inner_dropout": 0.5}
        for block in (encoder_block(WIDTH, HEADS, INNER, **dropouts), decoder_block(WIDTH, HEADS, INNER, **dropouts)):
            actual = {name: module.p for name, module in block.named_modules() if isinstance(module, Dropout)}
            residuals = [name for name, _ in block.named_children() if name.endswith("_residual")]
            assert actual == {"feed_forward.dropout": 0.5} | {f"{name}.dropout": 0.25 for name in residuals}
            attentions = [module for module in block.children() if isinstance(module, MultiHeadAttention)]
            assert [module.mechanism.dropout for module in attentions] == [0.125] * len(attentions)
            tokens = torch.randn(2, 7, WIDTH)
            inputs = (tokens,) if isinstance(block, EncoderBlock) else (tokens, tokens)
            assert not torch.equal(block(*inputs), block(*inputs))
            block.eval()
            assert torch.equal(block(*inputs), block(*inputs))

    @pytest.mark.parametrize("residual", [PreNorm, PostNorm])
    def test_residual_drops_only_the_sublayer(self, residual):
        joined, tokens = residual(nn.Identity(), dropout=0.25), torch.randn(3, 101, 11)
        added = joined(tokens, lambda inner: torch.ones_like(inner)) - tokens
        dropped = added.abs() < 1e-5
        assert_close(added[~dropped], torch.full_like(added[~dropped], 1 / 0.75), rtol=0, atol=1e-5)
        assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_masked_tokens_have_no_influence(norm):
    block, tokens = encoder_block(WIDTH, HEADS, INNER, norm=norm), torch.randn(2, 7, WIDTH)
    changed, mask = tokens.clone(), masks.padding([7, 4])
    changed[1, 4:] = torch.nan
    before, after = (block(inputs, mask=mask) for inputs in (tokens, changed))
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1, :4], after[1, :4])


@pytest.mark.usefixtures("without_shape_checks")
class TestMessages:
    @pytest.mark.parametrize("build", [encoder_block, decoder_block])
    def test_constructor_options(self, build):
        for options, facts in (
            ({"norm": "poste"}, r"unknown norm 'poste'.*one of post, pre.*mean 'post'"),
            ({"activation": "tanh"}, r"unknown activation 'tanh'.*relu"),
            ({"dropout": 1.5}, r"dropout.*0 <= dropout < 1.*1\.5"),
            ({"mechanism": "nothing"}, r"unknown mechanism 'nothing'"),
        ):
            with pytest.raises(OptionError, match=f"(?s){facts}"):
                build(WIDTH, HEADS, INNER, **options)

    def test_missing_or_unexpected_memory(self):
        tokens = torch.zeros(2, 3, WIDTH)
        with pytest.raises(OptionError, match=r"(?s)attends to a memory.*\(batch, keys, key_width\).*None.*encoder"):
            decoder_block(WIDTH, HEADS, INNER)(tokens)
        without_cross_attention = decoder_block(WIDTH, HEADS, INNER, cross_attention=False)
        with pytest.raises(OptionError, match=r"(?s)no cross-attention.*memory \(2, 3, 12\).*cross_attention=True"):
            without_cross_attention(tokens, tokens)

    def test_incomplete_cross_attention(self):
        with pytest.raises(OptionError, match=r"(?s)go together.*both, or neither.*cross_attention_residual="):
            DecoderBlock(
                attention=MultiHeadAttention(WIDTH, HEADS),
                feed_forward=FeedForward(WIDTH, INNER),
                attention_residual=PreNorm(nn.LayerNorm(WIDTH)),
                feed_forward_residual=PreNorm(nn.LayerNorm(WIDTH)),
                cross_attention=MultiHeadAttention(WIDTH, HEADS),
            )
