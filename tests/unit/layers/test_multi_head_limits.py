"""Edge cases of MultiHeadAttention: initialization, empty inputs, loading weights, and errors."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard import masks, positions
from regard.errors import DtypeError, OptionError, RefusedError, ShapeError
from regard.layers import FeedForward

WIDTH, HEADS = 12, 3


def test_initial_weights():
    # Glorot 2010: uniform up to sqrt(6 / (fan in + fan out)).
    layer = regard.MultiHeadAttention(64, 4, key_value_heads=2)
    for projection, outputs in ((layer.query_projection, 64), (layer.key_projection, 32)):
        bound = (6 / (64 + outputs)) ** 0.5
        assert 0.95 * bound < projection.weight.abs().max() <= bound
        assert projection.bias.abs().max() == 0


def test_empty_rows_give_the_output_bias():
    layer = regard.MultiHeadAttention(WIDTH, HEADS)
    nn.init.normal_(layer.output_projection.bias)
    output = layer(torch.randn(2, 5, WIDTH), mask=masks.padding([5, 0]))
    assert torch.equal(output[1], layer.output_projection.bias.expand(5, WIDTH))


def test_no_tokens():
    layer = regard.MultiHeadAttention(WIDTH, HEADS, position=positions.Rotary(4))
    assert layer(torch.zeros(0, 5, WIDTH)).shape == (0, 5, WIDTH)
    assert layer(torch.zeros(2, 0, WIDTH)).shape == (2, 0, WIDTH)
    assert torch.equal(layer(torch.randn(2, 3, WIDTH), torch.zeros(2, 0, WIDTH)), torch.zeros(2, 3, WIDTH))


def test_half_precision():
    layer, tokens = regard.MultiHeadAttention(WIDTH, HEADS, position=positions.Rotary(4)), torch.randn(2, 7, WIDTH)
    exact = layer(tokens).detach()
    actual = layer.to(torch.bfloat16)(tokens.bfloat16()).detach()
    # A few roundings to 8 bits, of numbers of the output's size.
    assert_close(actual.float(), exact, rtol=0, atol=2**-5 * exact.abs().max().item())


def test_value_width_defaults_to_the_key_width():
    layer = regard.MultiHeadAttention(WIDTH, HEADS, key_width=7)
    assert layer.value_projection.in_features == 7
    assert layer(torch.randn(2, 5, WIDTH), torch.randn(2, 3, 7)).shape == (2, 5, WIDTH)
    assert regard.MultiHeadAttention(WIDTH, HEADS, value_width=7).key_projection.in_features == WIDTH


def test_repr_shows_its_sizes():
    layer = regard.MultiHeadAttention(12, 3, key_value_heads=1)
    assert "width=12, heads=3, key_value_heads=1, head_dim=4" in repr(layer)


class TestFromTorch:
    @pytest.mark.parametrize("training", [True, False])
    def test_mode_and_dropout(self, training):
        theirs = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.25, batch_first=True).train(training)
        ours = regard.MultiHeadAttention.from_torch(theirs)
        assert ours.training is ours.mechanism.training is training
        assert ours.mechanism.dropout == 0.25

    @pytest.mark.parametrize("sizes", [{}, {"kdim": 7, "vdim": 5}])
    def test_gradients(self, sizes):
        theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64, **sizes)
        ours = regard.MultiHeadAttention.from_torch(theirs)
        widths = (WIDTH, sizes.get("kdim", WIDTH), sizes.get("vdim", WIDTH))
        leaves = [torch.randn(2, 5, width, dtype=torch.float64, requires_grad=True) for width in widths]
        actual = [
            torch.autograd.grad(output.square().sum(), leaves)
            for output in (theirs(*leaves, need_weights=False)[0], ours(*leaves))
        ]
        for one, other in zip(*actual, strict=True):
            assert_close(one, other)

    def test_loading_does_not_change_the_state_dict(self):
        state = nn.MultiheadAttention(WIDTH, HEADS).state_dict()
        names = list(state)
        assert regard.MultiHeadAttention(WIDTH, HEADS).load_state_dict(state) == ([], [])
        assert list(state) == names

    def test_fused_grouped_heads(self):
        # 6 heads of 2 for queries, 2 for keys, 2 for values.
        layer = regard.MultiHeadAttention(WIDTH, 6, key_value_heads=2, bias=False)
        fused, out = torch.randn(12 + 4 + 4, WIDTH), torch.randn(WIDTH, WIDTH)
        layer.load_state_dict({"in_proj_weight": fused, "out_proj.weight": out})
        assert torch.equal(layer.query_projection.weight, fused[:12])
        assert torch.equal(layer.key_projection.weight, fused[12:16])
        assert torch.equal(layer.value_projection.weight, fused[16:])
        assert torch.equal(layer.output_projection.weight, out)

    @pytest.mark.usefixtures("without_shape_checks")
    def test_refuses_layers_without_batch_first(self):
        theirs = nn.MultiheadAttention(WIDTH, HEADS)  # torch's default
        with pytest.raises(RefusedError, match=r"(?s)\(length, batch, width\).*batch_first=False.*batch_first=True"):
            regard.MultiHeadAttention.from_torch(theirs)
        for wrong in (False, "yes", 1):
            with pytest.raises(RefusedError, match="only order"):
                regard.MultiHeadAttention.from_torch(theirs, batch_first=wrong)

    def test_batch_first_option_accepts_a_layer_without_it(self):
        theirs, tokens = nn.MultiheadAttention(WIDTH, HEADS).eval(), torch.randn(2, 7, WIDTH)
        ours = regard.MultiHeadAttention.from_torch(theirs, batch_first=True)
        length_first = tokens.transpose(0, 1)
        expected = theirs(length_first, length_first, length_first, need_weights=False)[0].transpose(0, 1)
        torch.testing.assert_close(ours(tokens), expected)

    @pytest.mark.parametrize("extra", ["add_bias_kv", "add_zero_attn"])
    def test_refuses_extra_keys(self, extra):
        with pytest.raises(RefusedError, match=rf"(?s)is not supported.*{extra}=True.*append"):
            regard.MultiHeadAttention.from_torch(nn.MultiheadAttention(WIDTH, HEADS, **{extra: True}))

    def test_refuses_fused_weights_of_another_size(self):
        layer = nn.ModuleDict({"inner": regard.MultiHeadAttention(WIDTH, HEADS)})
        with pytest.raises(ShapeError, match=r"(?s)inner\.in_proj_weight.*36 rows = 12 \+ 12 \+ 12.*\(30, 12\)"):
            layer.load_state_dict({"inner.in_proj_weight": torch.zeros(30, WIDTH)})

    @pytest.mark.usefixtures("without_shape_checks")
    def test_refuses_other_modules(self):
        with pytest.raises(
            OptionError, match=r"(?s)expected: an nn\.MultiheadAttention.*got: +TransformerEncoderLayer"
        ):
            regard.MultiHeadAttention.from_torch(nn.TransformerEncoderLayer(WIDTH, HEADS, batch_first=True))


@pytest.mark.usefixtures("without_shape_checks")
class TestMessages:
    @pytest.mark.parametrize(
        ("options", "facts"),
        [
            ({"width": 0}, r"wrong width.*1 or more.*got: +0"),
            ({"width": 12.0}, r"wrong width.*got: +12\.0"),
            ({"heads": True}, r"wrong heads.*got: +True"),
            ({"heads": -3}, r"wrong heads.*got: +-3"),
            ({"heads": 5}, r"not divisible by heads.*width=12, heads=5.*1, 2, 3, 4, 6, 12 heads.*head_dim="),
            ({"key_value_heads": 2}, r"not divisible by key_value_heads.*divisor of 3.*got: +2"),
            ({"key_value_heads": 0}, r"wrong key_value_heads.*got: +0"),
            ({"head_dim": 0}, r"wrong head_dim.*got: +0"),
            ({"head_dim": 2.5}, r"wrong head_dim.*got: +2\.5"),
            ({"key_width": 0}, r"wrong key_width.*got: +0"),
            ({"value_width": -1}, r"wrong value_width.*got: +-1"),
            ({"dropout": 1.0}, r"dropout.*0 <= dropout < 1.*got: +1\.0"),
            (
                {"mechanism": "dotproduct"},
                r"unknown mechanism 'dotproduct'.*additive, .*dot_product.*mean 'dot_product'",
            ),
            ({"mechanism": 3}, r"neither a name nor a mechanism.*regard\.catalogue.*got: +3"),
            (
                {"position": positions.Sinusoidal(12)},
                r"Sinusoidal is not a position inside.*Rotary.*added to the embed",
            ),
            ({"position": positions.Learned(5, 12)}, r"Learned is not a position inside attention"),
            ({"position": "rotary"}, r"str is not a position inside attention"),
        ],
        ids=str,
    )
    def test_constructor_options(self, options, facts):
        with pytest.raises(OptionError, match=f"(?s){facts}"):
            regard.MultiHeadAttention(**{"width": WIDTH, "heads": HEADS, **options})

    def test_forward_arguments(self):
        layer, tokens = regard.MultiHeadAttention(WIDTH, HEADS, key_width=7), torch.zeros(2, 5, WIDTH)
        memory = torch.zeros(2, 3, 7)
        for inputs, facts in [
            ((tokens[0], memory), r"query tokens.*\(batch, length, 12\).*got: +\(5, 12\)"),
            ((memory, memory), r"query tokens.*\(batch, length, 12\).*got: +\(2, 3, 7\)"),
            ((tokens,), r"key tokens.*\(batch, length, 7\).*got: +\(2, 5, 12\)"),
            ((tokens, memory, tokens), r"value tokens.*\(batch, length, 7\)"),
            ((tokens, memory, memory[:, :2]), r"different lengths"),
            ((tokens, memory[:1]), r"different batch sizes"),
        ]:
            with pytest.raises(ShapeError, match=f"(?s){facts}"):
                layer(*inputs)
        with pytest.raises(DtypeError, match=r"(?s)key tokens.*different dtypes.*float32.*got: +torch\.float64"):
            layer(tokens, memory.double())
        for mask in (torch.ones(5, 3, dtype=torch.bool), "causal"):
            with pytest.raises(OptionError, match=r"(?s)mask is not a regard mask.*masks\."):
                layer(tokens, memory, mask=mask)
        with pytest.raises(ShapeError, match=r"(?s)another batch size.*batch of 2.*padding\(\[3, 2, 1\]\)"):
            layer(tokens, memory, mask=masks.padding([3, 2, 1]))

    def test_mechanisms_and_positions_of_other_sizes(self):
        tokens = torch.zeros(2, 5, WIDTH)
        mechanism = regard.mechanism("dot_product", heads=2, head_dim=6)
        with pytest.raises(ShapeError, match=r"(?s)does not fit DotProduct.*\(batch, 2, queries, 6\).*\(2, 3, 5, 4\)"):
            regard.MultiHeadAttention(WIDTH, HEADS, mechanism=mechanism)(tokens)
        with pytest.raises(ShapeError, match=r"(?s)rotary.*another head_dim.*length, 6\)"):
            regard.MultiHeadAttention(WIDTH, HEADS, position=positions.Rotary(6))(tokens)
        with pytest.raises(ShapeError, match=r"(?s)ALiBi.*3 heads.*got: +4 heads"):
            regard.MultiHeadAttention(WIDTH, HEADS, position=positions.ALiBi(4))(tokens)


class _CountCasts(TorchDispatchMode):
    """Counts casts of tensors of one shape."""

    def __init__(self, shape):
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if function is torch.ops.aten._to_copy.default and tuple(arguments[0].shape) == self.shape:
            self.count += 1
        return function(*arguments, **(keywords or {}))


def test_autocast_casts_the_tokens_of_self_attention_once():
    """And not for queries, keys and values again; nor for both products of a gated feed-forward layer."""
    tokens = torch.randn(2, 5, 12)
    for layer in (regard.MultiHeadAttention(12, 3), FeedForward(12, 7, activation="swiglu")):
        with torch.autocast("cpu", torch.bfloat16), _CountCasts((2, 5, 12)) as casts:
            layer(tokens)
        assert casts.count == 1
