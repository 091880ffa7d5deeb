"""Encoder blocks in one native call for each sublayer: against the modules in float64, and when modules are called."""

from copy import deepcopy
from functools import partial
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import regard
from any_threads import assert_same_bits
from regard import masks
from regard.kernels.extension import native
from regard.kernels.operators import sublayer_op
from regard.kernels.support import is_portable
from regard.layers import (
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    PostNorm,
    PreNorm,
    RMSNorm,
    encoder,
    sublayer_step,
)
from regard.layers.quantized_linear import Int8Linear
from regard.positions import ALiBi, Rotary, ShawRelative

pytestmark = pytest.mark.skipif(native is None or is_portable(), reason="modules are used without vector instructions")

WIDTH, HEADS, KEY_HEADS, HEAD_DIM, INNER = 38, 6, 3, 10, 54
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 3e-2}
LENGTHS = (1, 8, 9, 16, 17, 67, 131)  # on both sides of what the kernels of few tokens compute, and of a tile
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def make_block(*, residual=PostNorm, activation="gelu", position=None, norm=nn.LayerNorm, dropout=0.0, **options):
    made = EncoderBlock(
        attention=MultiHeadAttention(
            WIDTH, HEADS, key_value_heads=KEY_HEADS, head_dim=HEAD_DIM, position=position, **options
        ),
        feed_forward=FeedForward(WIDTH, INNER, activation=activation),
        attention_residual=residual(norm(WIDTH), dropout=dropout),
        feed_forward_residual=residual(norm(WIDTH), dropout=dropout),
    )
    with torch.no_grad():
        for number, parameter in enumerate(made.parameters()):
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    return made.eval()


@pytest.fixture
def calls(monkeypatch):
    """The names of the sublayers that were computed in one native call."""
    found = []

    def count(name, compute, *given):
        found.append(name)
        return compute(*given)

    for name in ("feed_forward", "attention"):
        monkeypatch.setattr(sublayer_op, name, partial(count, name, getattr(sublayer_op, name)))
    monkeypatch.setattr(sublayer_step, "multiplies_many", lambda dtype: True)  # also where libraries are faster
    return found


def draw(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@torch.no_grad()
def check(layer, tokens, calls, *, mask=None, native_calls=2):
    layer = layer.to(tokens.dtype)
    found = layer(tokens, mask=mask)
    assert len(calls) == native_calls
    expected = deepcopy(layer).double()(tokens.double(), mask=mask)
    assert len(calls) == native_calls, "float64 is computed by modules"
    scale = expected.abs().max().item()
    assert (found.double() - expected).abs().max().item() <= TOLERANCE[tokens.dtype] * scale
    return found


@DTYPES
class TestEqualToModules:
    @pytest.mark.parametrize("length", LENGTHS)
    @pytest.mark.parametrize("activation", ["gelu", "swiglu"])
    def test_lengths(self, calls, length, activation, dtype):
        check(make_block(activation=activation), draw(1, length, WIDTH, dtype=dtype), calls)

    @pytest.mark.parametrize("residual", [PostNorm, PreNorm])
    @pytest.mark.parametrize("norm", [nn.LayerNorm, RMSNorm])
    @pytest.mark.parametrize("batch", [2, 11])
    def test_norms_and_batches(self, calls, residual, norm, batch, dtype):
        check(make_block(residual=residual, norm=norm), draw(batch, 7, WIDTH, dtype=dtype), calls)

    @pytest.mark.parametrize("length", [5, 29])
    @pytest.mark.parametrize("position", [Rotary(HEAD_DIM), ALiBi(HEADS)])
    def test_positions(self, calls, position, length, dtype):
        check(make_block(position=position), draw(2, length, WIDTH, dtype=dtype), calls)

    @pytest.mark.parametrize("length", [5, 29])
    @pytest.mark.parametrize(
        "mask", [masks.padding([5, 3, 0]), masks.padding([1, 4, 2], side="left"), masks.window(2, 1), masks.causal()]
    )
    def test_masks(self, calls, mask, length, dtype):
        check(make_block(), draw(3, length, WIDTH, dtype=dtype), calls, mask=mask)


@pytest.mark.parametrize("length", LENGTHS)
@torch.no_grad()
def test_weights_of_few_bits(calls, length):
    """The native call computes what the layers of such weights compute one after the other."""
    layer = make_block()
    for module in (layer.attention, layer.feed_forward):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Int8Linear.from_linear(child))
    tokens = draw(1, length, WIDTH)
    found = layer(tokens)
    assert len(calls) == 2
    expected = layer.feed_forward_residual(
        layer.attention_residual(tokens, layer.attention), lambda inner: layer.feed_forward(inner)
    )
    assert (found - expected).abs().max() <= TOLERANCE[torch.float32] * expected.abs().max()


class TestModulesAreCalled:
    @pytest.mark.parametrize(
        "part", ["attention", "attention_residual", "attention.query_projection", "feed_forward.up"]
    )
    def test_that_have_hooks(self, calls, part):
        layer, seen = make_block(), []
        layer.get_submodule(part).register_forward_hook(lambda *_: seen.append(part))
        with torch.no_grad():
            layer(draw(1, 5, WIDTH))
        assert seen == [part]
        assert len(calls) == 1

    def test_in_training(self, calls):
        with torch.no_grad():
            make_block(dropout=0.5).train()(draw(1, 5, WIDTH))
        assert not calls

    def test_with_gradients(self, calls):
        tokens = draw(1, 5, WIDTH).requires_grad_()
        make_block()(tokens).sum().backward()
        assert not calls
        assert tokens.grad is not None

    def test_for_positions_that_the_kernel_does_not_compute(self, calls):
        check(make_block(position=ShawRelative(HEAD_DIM, 4)), draw(1, 5, WIDTH), calls, native_calls=1)

    def test_while_they_are_recorded(self, calls):
        layer = make_block()
        with torch.no_grad(), regard.record(layer):
            layer(draw(1, 5, WIDTH))
        assert "attention" not in calls


@DTYPES
def test_bits_do_not_depend_on_threads(calls, dtype):
    layer, tokens = make_block().to(dtype), draw(3, 29, WIDTH, dtype=dtype)
    with torch.no_grad():
        assert_same_bits(lambda: layer(tokens), threads=(1, 2, 5))
    assert len(calls) == 6


@pytest.mark.parametrize("length", [5, 29])
@torch.no_grad()
def test_hidden_tokens_and_memory_have_no_influence(calls, length):
    layer, tokens, outputs = make_block(), draw(2, length, WIDTH), []
    for number in (0.0, float("nan"), float("inf")):
        tokens[0, 3:] = number
        native.poison(True)
        try:
            outputs.append(layer(tokens, mask=masks.padding([3, length])))
        finally:
            native.poison(False)
    assert len(calls) == 6
    assert all(torch.equal(output[0, :3], outputs[0][0, :3]) for output in outputs)
    assert all(torch.equal(output[1], outputs[0][1]) for output in outputs)


@given(st.integers(1, 3), st.integers(1, 40), st.sampled_from([torch.float32, torch.bfloat16]), st.booleans())
@torch.no_grad()
def test_any_sizes(batch, length, dtype, pre):
    layer = make_block(residual=PreNorm if pre else PostNorm).to(dtype)
    tokens = draw(batch, length, WIDTH, dtype=dtype, seed=length)
    with mock.patch.object(sublayer_step, "multiplies_many", return_value=True):  # also where libraries are faster
        assert encoder.can_read_text(tokens)
        found = layer(tokens)
    expected = deepcopy(layer).double()(tokens.double())
    assert (found.double() - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max()
