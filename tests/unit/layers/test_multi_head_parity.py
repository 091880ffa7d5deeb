"""MultiHeadAttention against nn.MultiheadAttention and the oracle, and as an nn.Module."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import regard
from capabilities import causal_or_none, scale_head_dim
from oracles import blocks as oracle
from regard import masks, positions
from regard.layers import MultiHeadAttention

WIDTH, HEADS = 15, 3


def linear(module: nn.Linear) -> oracle.Linear:
    bias = None if module.bias is None else module.bias.detach().double().numpy()
    return oracle.Linear(module.weight.detach().double().numpy().T, bias)


def to_oracle(layer: MultiHeadAttention) -> oracle.MultiHead:
    projections = (layer.query_projection, layer.key_projection, layer.value_projection, layer.output_projection)
    return oracle.MultiHead(*map(linear, projections), layer.heads, layer.key_value_heads)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("key_value_heads", [None, 1])
def test_agrees_with_the_oracle(bias, key_value_heads):
    layer = MultiHeadAttention(WIDTH, HEADS, bias=bias, key_value_heads=key_value_heads).double()
    tokens, context = torch.randn(2, 7, WIDTH).double(), torch.randn(2, 11, WIDTH).double()
    ours, (theirs, _) = layer(tokens), oracle.multi_head(tokens.numpy(), to_oracle(layer))
    np.testing.assert_allclose(ours.detach(), theirs, atol=1e-13)
    mask = masks.padding([11, 5])
    theirs, _ = oracle.multi_head(tokens.numpy(), to_oracle(layer), context.numpy(), mask.dense(7, 11).numpy())
    np.testing.assert_allclose(layer(tokens, context, mask=mask).detach(), theirs, atol=1e-13)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kdim", "vdim"), [(None, None), (7, 11), (7, None), (None, 11)])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_from_torch_gives_the_same_output(bias, kdim, vdim, batch_first, dtype):
    theirs = nn.MultiheadAttention(
        WIDTH, HEADS, dropout=0.5, bias=bias, kdim=kdim, vdim=vdim, batch_first=batch_first, dtype=dtype
    ).eval()
    for parameter in theirs.parameters():  # biases start at 0, which would hide a missing one
        nn.init.normal_(parameter, std=0.3)
    ours = regard.MultiHeadAttention.from_torch(theirs, batch_first=True)
    assert not ours.training
    query, key, value = (torch.randn(2, n, size or WIDTH, dtype=dtype) for n, size in ((5, None), (7, kdim), (7, vdim)))
    attn_mask, padding = torch.rand(5, 7) < 0.3, torch.arange(7) >= torch.tensor([[7], [4]])
    attn_mask[:, 0] = False
    inputs = (query, key, value) if batch_first else (side.transpose(0, 1) for side in (query, key, value))
    expected, _ = theirs(*inputs, key_padding_mask=padding, attn_mask=attn_mask)
    expected = expected if batch_first else expected.transpose(0, 1)
    got = ours(query, key, value, mask=masks.from_multihead_attention(attn_mask, padding))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-14)


def test_from_torch_copies_the_weights():
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    ours = MultiHeadAttention.from_torch(theirs)
    before = ours.query_projection.weight.clone()
    nn.init.zeros_(theirs.in_proj_weight)
    assert torch.equal(ours.query_projection.weight, before)
    assert ours.training


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_from_torch_refuses_unsupported_options(option):
    with pytest.raises(
        regard.errors.RefusedError, match=rf"(?s){option}.*expected: a module without.*{option}=True.*to do"
    ):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(WIDTH, HEADS, **{option: True}))


def test_fused_weights_load_inside_a_larger_model():
    theirs = nn.ModuleDict({"attention": nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)})
    ours = nn.ModuleDict({"attention": MultiHeadAttention(WIDTH, HEADS)})
    state = theirs.state_dict()
    names = set(state)
    ours.load_state_dict(state)
    assert set(state) == names  # the caller's layer is unchanged
    tokens = torch.randn(2, 5, WIDTH)
    expected = theirs["attention"](tokens, tokens, tokens)[0]
    torch.testing.assert_close(ours["attention"](tokens), expected, rtol=0, atol=1e-6)
    with pytest.raises(regard.errors.ShapeError, match=r"(?s)in_proj_weight does not split.*45 rows.*\(36, 15\)"):
        ours.load_state_dict({**state, "attention.in_proj_weight": torch.zeros(36, WIDTH)})


@pytest.mark.parametrize("mechanism", [entry.name for entry in regard.catalogue()])
def test_copy_pickle_and_state_dict(mechanism):
    size = scale_head_dim(mechanism, WIDTH // HEADS)

    def make():
        return MultiHeadAttention(WIDTH, HEADS, mechanism=mechanism, position=_position(mechanism), head_dim=size)

    layer, tokens = make(), torch.randn(2, 5, WIDTH)
    mask = causal_or_none(layer.mechanism)
    expected, buffer = layer(tokens, mask=mask), io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    fresh = make()
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), fresh):
        assert torch.equal(other(tokens, mask=mask), expected)
        other.load_state_dict(layer.state_dict())
        nn.init.zeros_(other.output_projection.weight)
        assert torch.equal(layer(tokens, mask=mask), expected)


def _position(mechanism):
    """Return a position that is trained or has tensors, if the mechanism adds a bias."""
    return positions.ALiBi(HEADS) if next(row for row in regard.catalogue() if row.name == mechanism).bias else None


def test_copy_loads_fused_weights():
    source = nn.MultiheadAttention(WIDTH, HEADS)
    copied = copy.deepcopy(MultiHeadAttention(WIDTH, HEADS))
    copied.load_state_dict(source.state_dict())
    assert torch.equal(copied.query_projection.weight, source.in_proj_weight[:WIDTH])


@pytest.mark.parametrize(
    ("mechanism", "position"),
    [
        *((row.name, None) for row in regard.catalogue()),
        *(
            (row.name, one)
            for row in regard.catalogue()
            if row.bias
            for one in (positions.Rotary(2), positions.ALiBi(3))
        ),
    ],
)
def test_autocast(mechanism, position):
    layer = MultiHeadAttention(12, 3, mechanism=mechanism, position=position, head_dim=scale_head_dim(mechanism, 2))
    tokens = torch.randn(2, 5, 12)
    causal = causal_or_none(layer.mechanism)
    mask = masks.padding([5, 3]) if causal is None else causal & masks.padding([5, 3])
    exact = layer(tokens, mask=mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(tokens, mask=mask)
    assert output.dtype == torch.bfloat16
    # Each of a few matrix products rounds to bfloat16's 8 bits.
    torch.testing.assert_close(
        output.float(), exact, rtol=0, atol=8 * 2**-8 * float(exact.detach().abs().max().clamp(min=1))
    )
    parameters = list(layer.parameters())
    expected = torch.autograd.grad(exact.square().sum(), parameters, allow_unused=True)
    gradients = torch.autograd.grad(output.float().square().sum(), parameters, allow_unused=True)
    for gradient, other in zip(gradients, expected, strict=True):
        assert gradient is None if other is None else gradient.isfinite().all()


@pytest.mark.parametrize("impl", ["auto", "reference", "native", "sdpa"])
def test_autocast_does_not_convert_inputs_of_attention(impl):
    query, key, value = torch.randn(3, 2, 3, 5, 7)
    plain = regard.attention(query, key, value, impl=impl)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert regard.attention(query, key, value, impl=impl).dtype == torch.float32
        torch.testing.assert_close(regard.attention(query, key, value, impl="sdpa"), plain, rtol=0, atol=1e-6)


def test_dropout_applies_in_training_only():
    layer = MultiHeadAttention(WIDTH, HEADS, dropout=0.5)
    tokens = torch.randn(2, 7, WIDTH)
    assert not torch.equal(layer(tokens), layer(tokens))
    layer.eval()
    assert torch.equal(layer(tokens), layer(tokens))


@pytest.mark.parametrize("impl", ["reference", "native", "sdpa"])
def test_dropout_keeps_the_mean(impl):
    query, key = torch.zeros(1, 1, 4001, 2), torch.zeros(1, 1, 7, 2)
    value = torch.randn(1, 1, 7, 3)
    mean = regard.attention(query, key, value, dropout=0.3, impl=impl).mean(2)
    # 4,001 rows: the standard error is below |v| sqrt(0.3 / 0.7 / 7 / 4001)
    spread = float(value.abs().max()) * (0.3 / 0.7 / 7 / 4001) ** 0.5
    torch.testing.assert_close(mean, value.mean(2), rtol=0, atol=5 * spread)


@pytest.mark.filterwarnings("ignore")  # warnings of torch.compile, which differ between releases
def test_compiles(without_shape_checks):
    query, key, value = torch.randn(3, 2, 3, 5, 7)
    mask = masks.causal() & masks.padding([5, 3])
    compiled = torch.compile(lambda *given: regard.attention(*given, mask=mask), backend="eager", fullgraph=False)
    torch.testing.assert_close(compiled(query, key, value), regard.attention(query, key, value, mask=mask))


def test_output_gate():
    torch.manual_seed(2)
    layer = MultiHeadAttention(12, 3, output_gate=True, head_dim=5).eval()
    tokens, outputs = torch.randn(2, 7, 12), []
    layer.output_projection.register_forward_pre_hook(lambda module, inputs: outputs.append(inputs[0]))
    gated, cache = layer(tokens), layer.empty_cache()
    gate, layer.gate_projection = layer.gate_projection, None
    layer(tokens)
    expected = outputs[1] * torch.sigmoid(gate(tokens))
    torch.testing.assert_close(outputs[0], expected)
    layer.gate_projection = gate
    parts = []
    for token in tokens.split(1, dim=1):
        part, cache = layer(token, mask=masks.causal(), cache=cache)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=1), layer(tokens, mask=masks.causal()), atol=1e-5, rtol=1e-5)
    assert gated.shape == tokens.shape
