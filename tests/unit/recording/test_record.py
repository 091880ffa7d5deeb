"""``regard.record``: the inputs of every attention layer, and its weights on demand."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import regard
from regard import masks, positions
from regard.errors import OptionError, ShapeError
from regard.layers import KeyValueCache, decoder_block, encoder_block

WIDTH, HEADS = 12, 3


class Encoder(nn.Module):
    """Two blocks and a norm; the second block uses another mechanism."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            [encoder_block(WIDTH, HEADS, 7), encoder_block(WIDTH, HEADS, 7, mechanism="additive")]
        )
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens, mask=None):
        for layer in self.layers:
            tokens = layer(tokens, mask=mask)
        return self.norm(tokens)


def test_inputs_and_weights_of_each_layer():
    model, tokens, mask = Encoder().eval(), torch.randn(2, 7, WIDTH), masks.causal() & masks.padding([7, 4])
    plain = model(tokens, mask)
    with regard.record(model) as recording:
        recorded = model(tokens, mask)
    assert torch.equal(recorded, plain)
    assert [layer.name for layer in recording] == ["layers.0.attention", "layers.1.attention"]
    first = model.layers[0].attention
    assert torch.equal(recording[0].query, first.query_projection(tokens).unflatten(-1, (HEADS, -1)).transpose(1, 2))
    for layer, block in zip(recording, model.layers, strict=True):
        assert layer.mechanism is block.attention.mechanism
        assert layer.mask is mask
        assert layer.bias is None
        weights = layer.weights()
        assert weights.shape == (2, HEADS, 7, 7)
        assert torch.equal(weights > 0, mask.dense(7, 7).expand_as(weights))
        assert_close(weights.sum(-1), torch.ones(2, HEADS, 7))
        assert_close(layer.weights(rows=[5, 0, -1]), weights[:, :, [5, 0, 6]])
        observation = layer.observe(top=3, rows=[2])
        assert_close(observation.output, weights @ layer.value)
        assert_close(observation.rows, weights[:, :, [2]])
        assert_close(observation.top_weights, weights.topk(3).values)
        assert_close(observation.received, weights.sum(2))


def test_weights_agree_with_torch():
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    ours, tokens = regard.MultiHeadAttention.from_torch(theirs), torch.randn(2, 7, WIDTH)
    with regard.record(ours) as recording:
        ours(tokens)
    _, weights = theirs(tokens, tokens, tokens, average_attn_weights=False)
    assert_close(recording[0].weights(), weights.detach(), rtol=0, atol=1e-6)


def test_recorded_tensors_are_detached():
    model, tokens = Encoder(), torch.randn(2, 7, WIDTH, requires_grad=True)
    with regard.record(model) as recording:
        model(tokens).sum().backward()
    for layer in recording:
        assert not any(tensor.requires_grad for tensor in (layer.query, layer.key, layer.value))
        assert not layer.weights().requires_grad
        assert not layer.observe().output.requires_grad


def test_records_only_while_open():
    model, tokens = Encoder(), torch.randn(1, 3, WIDTH)
    with regard.record(model) as recording:
        model(tokens)
        assert len(recording) == 2
        with regard.record(model.layers[1]) as inner:
            model(tokens)
    model(tokens)
    assert len(recording) == 4
    assert [layer.name for layer in inner] == ["attention"]
    assert all(not module._forward_pre_hooks for module in model.modules())


def test_stops_recording_after_an_error():
    model = Encoder()
    with pytest.raises(ShapeError), regard.record(model):
        model(torch.randn(1, 3, 5))
    assert all(not module._forward_pre_hooks for module in model.modules())


def test_weights_are_without_dropout():
    layer = regard.MultiHeadAttention(WIDTH, HEADS, dropout=0.9).train()
    with regard.record(layer) as recording:
        layer(torch.randn(1, 7, WIDTH))
    (call,), state = recording, torch.get_rng_state()
    assert_close(call.weights().sum(-1), torch.ones(1, HEADS, 7))
    assert_close(call.observe().output, call.weights() @ call.value)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "position", [positions.Rotary(4), positions.ALiBi(HEADS), positions.ShawRelative(4, 2)], ids=repr
)
def test_weights_include_positions(position):
    layer, tokens = (
        regard.MultiHeadAttention(WIDTH, HEADS, position=position).double(),
        torch.randn(1, 7, WIDTH).double(),
    )
    with regard.record(layer) as recording:
        output = layer(tokens)
    assert_close(layer.output_projection(recording[0].observe().output.transpose(1, 2).flatten(2)), output)
    assert_close(recording[0].weights(), recording[0].observe(rows=list(range(7))).rows)


def test_each_decoding_step_is_recorded():
    block, tokens = decoder_block(WIDTH, HEADS, 7, position=positions.ALiBi(HEADS)), torch.randn(1, 5, WIDTH)
    layer, cache = block.attention, KeyValueCache.empty()
    with torch.no_grad(), regard.record(layer) as recording:
        for piece in tokens.split([2, 1, 2], dim=1):
            _, cache = layer(piece, mask=masks.causal(), cache=cache)
        layer(tokens, mask=masks.causal())
    assert [tuple(call.weights().shape[2:]) for call in recording] == [(2, 2), (1, 3), (2, 5), (5, 5)]
    pieces = [nn.functional.pad(call.weights(), (0, 5 - call.key.shape[2])) for call in recording[:3]]
    assert_close(torch.cat(pieces, dim=2), recording[3].weights())


@pytest.mark.usefixtures("without_shape_checks")
def test_a_compiled_layer():
    layer, tokens = regard.MultiHeadAttention(WIDTH, HEADS).eval(), torch.randn(1, 3, WIDTH)
    compiled = torch.compile(layer, backend="eager")
    with torch.no_grad():
        compiled(tokens)
        with regard.record(compiled) as recording, regard.record(layer) as plain:
            compiled(tokens)
    assert len(recording) == len(plain) == 1
    assert torch.equal(recording[0].weights(), plain[0].weights())


def test_layer_names():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.my_mechanism = regard.mechanism("dot_product", heads=HEADS, head_dim=4)
            self.inner = regard.MultiHeadAttention(WIDTH, HEADS)

        def forward(self, tokens):
            split = self.inner(tokens).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            return self.my_mechanism(query=split, key=split, value=split, mask=masks.causal())

    model = Named()
    with regard.record(model) as recording:
        model(torch.randn(1, 3, WIDTH))
        model(torch.randn(1, 5, WIDTH))
    assert [layer.name for layer in recording] == ["inner", "my_mechanism"] * 2
    assert recording["inner"] is recording[2]  # the last call
    assert recording[-1].mask == masks.causal()
    with regard.record(model.inner) as inner_recording:
        model.inner(torch.randn(1, 3, WIDTH))
    assert [layer.name for layer in inner_recording] == [""]


def test_messages():
    with (
        pytest.raises(OptionError, match=r"(?s)Linear has no attention layer.*none among.*regard\.MultiHeadAttention"),
        regard.record(nn.Linear(2, 2)),
    ):
        pass
    model = Encoder()
    with regard.record(model) as recording:
        with pytest.raises(OptionError, match=r"(?s)'layers\.9'.*was called.*the model was not called"):
            recording["layers.9"]
        model(torch.randn(1, 3, WIDTH))
    with pytest.raises(OptionError, match=r"(?s)one of layers\.0\.attention, layers\.1\.attention.*'layers\.9'.*with"):
        recording["layers.9"]
    with pytest.raises(OptionError, match=r"(?s)rows names queries.*from -3 to 2"):
        recording[0].weights(rows=[3])
