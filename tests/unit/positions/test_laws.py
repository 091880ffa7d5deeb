"""Properties of positions, from mathematics and publications: distances, rotations, slopes, gradients."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb as neox_rotary
from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions
from transformers.models.t5.modeling_t5 import T5Attention

import regard
from regard import masks, positions
from regard.conformance.oracles import positions as oracle
from regard.conformance.oracles import rotary as rotary_oracle
from regard.contract import Frame


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def make_bias(position, queries, keys, heads=3):
    """Return the bias that a position adds to the scores of queries of zeros."""
    frame = Frame(queries, keys)
    query = torch.zeros(1, heads, queries, 5, dtype=torch.float64)
    return position.scores(query, frame, frame.all_rows(), 1.0)


class AttentionWithBias(nn.Module):
    """Attention whose bias parameters can be replaced by functional_call."""

    def __init__(self, bias):
        super().__init__()
        self.bias = bias

    def forward(self, query, key, value):
        return regard.attention(query, key, value, bias=self.bias)


class TestSinusoidal:
    def test_products_depend_only_on_distance(self):
        vectors = positions.Sinusoidal(14).double()(23)
        products = vectors @ vectors.T
        for distance in (1, 5, 11):
            diagonal = products.diagonal(distance)
            assert_close(diagonal, diagonal[:1].expand_as(diagonal))

    def test_base(self):
        actual = positions.Sinusoidal(6, base=500.0).double()(7)
        assert_close(actual, torch.from_numpy(oracle.sinusoidal(7, 6, base=500.0)), rtol=0, atol=1e-13)

    def test_agrees_with_gptj(self):
        theirs, ours = create_sinusoidal_positions(31, 10), positions.Sinusoidal(10)(31)
        assert_close(torch.cat([ours[:, 0::2], ours[:, 1::2]], dim=1), theirs, rtol=0, atol=1e-5)

    def test_offset_continues(self):
        sinusoidal = positions.Sinusoidal(6)
        assert torch.equal(sinusoidal(5, offset=8), sinusoidal(13)[8:])
        assert sinusoidal(0).shape == (0, 6)

    def test_dtype_follows_the_module_without_stored_tensors(self):
        sinusoidal = positions.Sinusoidal(6)
        assert sinusoidal(3).dtype == torch.float32
        assert sinusoidal.to(torch.bfloat16)(3).dtype == torch.bfloat16
        assert sinusoidal.state_dict() == {}


class TestLearned:
    def test_only_used_positions_get_gradients(self):
        learned = positions.Learned(11, 3)
        learned(4, offset=5).sum().backward()
        assert learned.weight.grad.sum(1).tolist() == [0.0] * 5 + [3.0] * 4 + [0.0] * 2

    def test_initial_deviation(self):
        assert positions.Learned(1009, 101, deviation=0.5).weight.std().item() == pytest.approx(0.5, rel=0.02)

    def test_all_positions_and_none(self):
        learned = positions.Learned(7, 2)
        assert torch.equal(learned(7), learned.weight)
        assert learned(0, offset=7).shape == (0, 2)


class TestRotary:
    @pytest.mark.parametrize("layout", ["halves", "pairs"])
    def test_products_depend_only_on_distance(self, layout):
        rotary, query, key = positions.Rotary(6, layout=layout), randn(1, 6), randn(1, 6)
        here = rotary(query, offset=5) @ rotary(key, offset=2).T
        there = rotary(query, offset=1005) @ rotary(key, offset=1002).T
        assert_close(here, there)
        assert_close(rotary(query, offset=7).norm(), query.norm())

    @pytest.mark.parametrize("offset", [0, 1009, -2])
    def test_offset_and_base(self, offset):
        tokens, theta = randn(2, 3, 7, 10), rotary_oracle.frequencies(10, base=700.0)
        expected = rotary_oracle.rotate(tokens.numpy(), theta, offset=offset)
        actual = positions.Rotary(10, base=700.0)(tokens, offset=offset)
        assert_close(actual, torch.from_numpy(expected), rtol=0, atol=1e-11)

    def test_any_leading_dimensions(self):
        rotary, tokens = positions.Rotary(6), randn(2, 3, 5, 7, 6)
        assert torch.equal(rotary(tokens)[1, 2, 4], rotary(tokens[1, 2, 4]))
        assert rotary(tokens[0, 0, 0, :0]).shape == (0, 6)

    def test_gradient_is_rotated_back(self):
        # The derivative of a rotation is the rotation: its transpose takes the gradient to the opposite angle.
        rotary, upstream, tokens = positions.Rotary(6), randn(1, 6), randn(1, 6).requires_grad_()
        rotary(tokens, offset=7).backward(upstream)
        assert_close(tokens.grad, rotary(upstream, offset=-7))

    def test_partial_rotation_agrees_with_gpt_neox(self):
        query, key = torch.randn(2, 3, 7, 14), torch.randn(2, 3, 7, 14)
        angles = torch.arange(7.0)[:, None] * torch.from_numpy(rotary_oracle.frequencies(6)).float()
        cosine, sine = (f(torch.cat([angles, angles], dim=-1))[None] for f in (torch.cos, torch.sin))
        theirs, _ = neox_rotary(query, key, cosine, sine)
        assert_close(positions.Rotary(14, rotated=6)(query), theirs, rtol=0, atol=2e-6)

    def test_half_precision(self):
        tokens = torch.randn(5, 8)
        actual = positions.Rotary(8)(tokens.bfloat16(), offset=1009)
        assert actual.dtype == torch.bfloat16
        # Four numbers, two products and their sum are each rounded, with relative errors up to 2^-9.
        atol = 2**-6 * tokens.abs().max().item()
        assert_close(actual.float(), positions.Rotary(8)(tokens, offset=1009), rtol=0, atol=atol)


class TestALiBi:
    def test_published_slopes(self):
        # Press 2022, section 3: 8 heads have 1/2, 1/4, .., 1/256; 16 start at 2^-0.5 with that ratio.
        bias = positions.ALiBi(8).table(-1, 0)
        assert bias[:, 0].tolist() == [-(2.0**-head) for head in range(1, 9)]
        assert bias[:, 1].abs().tolist() == [0.0] * 8
        assert_close(positions.ALiBi(16).table(-1, -1)[:, 0], -(2.0 ** -(torch.arange(1.0, 17.0).double() / 2)))

    @pytest.mark.parametrize("heads", [5, 8, 12])
    def test_agrees_with_bloom(self, heads):
        # Bloom adds slope * key, which with a causal mask differs by a constant per row; softmax is invariant to it.
        theirs = build_alibi_tensor(torch.ones(1, 7), heads, torch.float64).view(1, heads, 1, 7)
        hidden = ~masks.causal().dense(7, 7)
        ours, theirs = (
            bias.expand(1, heads, 7, 7).masked_fill(hidden, -torch.inf).softmax(-1)
            for bias in (make_bias(positions.ALiBi(heads), 7, 7, heads), theirs)
        )
        assert_close(ours, theirs, rtol=0, atol=1e-7)


class TestT5:
    @pytest.mark.parametrize("bidirectional", [True, False])
    def test_agrees_with_t5(self, bidirectional):
        config = T5Config(num_heads=3, d_model=15, d_kv=5, is_decoder=not bidirectional)
        theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
        ours = positions.T5Buckets(3, bidirectional=bidirectional)
        ours.load_state_dict({"weight": theirs.relative_attention_bias.weight})
        ours, theirs = ours.double(), theirs.double()
        for queries, keys in [(5, 5), (2, 7), (1, 149), (149, 149)]:
            expected = theirs.compute_bias(queries, keys, past_seen_tokens=keys - queries)
            assert torch.equal(make_bias(ours, queries, keys), expected)

    @pytest.mark.parametrize(("buckets", "max_distance"), [(4, 2), (7, 11), (13, 31)])
    def test_buckets_of_odd_sizes_agree_with_t5(self, buckets, max_distance):
        distances = torch.arange(-101, 102)
        actual = positions.T5Buckets(1, buckets=buckets, max_distance=max_distance).bucket(distances)
        assert torch.equal(actual, T5Attention._relative_position_bucket(distances, True, buckets, max_distance))
        assert actual.max() < buckets

    def test_gradients(self):
        t5 = positions.T5Buckets(2, buckets=6, max_distance=5).double()
        tokens = tuple(randn(1, 2, 5, 3) for _ in range(3))

        def output(weight):
            return torch.func.functional_call(AttentionWithBias(t5), {"bias.weight": weight}, tokens)

        assert torch.autograd.gradcheck(output, t5.weight.detach().requires_grad_())


@pytest.mark.parametrize("position", [positions.ALiBi(3), positions.T5Buckets(3)], ids=repr)
class TestDistanceBias:
    def test_bias_of_every_pair_depends_only_on_distance(self, position):
        by_distance = dict(zip(range(-20, 21), position.table(-20, 20).double().T, strict=True))
        for queries, keys in [(5, 5), (2, 7), (7, 3), (1, 11), (0, 5), (5, 0), (0, 0)]:
            bias = make_bias(position, queries, keys)
            assert bias.shape == (1, 3, queries, keys)
            for (i, j), distance in np.ndenumerate(oracle.distances(queries, keys).reshape(queries, keys)):
                assert_close(bias[0, :, i, j], by_distance[int(distance)])

    def test_selected_rows(self, position):
        query = torch.zeros(1, 3, 2, 5, dtype=torch.float64)
        some = position.scores(query, Frame(5, 11), torch.tensor([3, 1]), 1.0)
        assert torch.equal(some, make_bias(position, 5, 11)[:, :, [3, 1]])


class TestShaw:
    @pytest.mark.parametrize(("queries", "keys", "max_distance"), [(5, 5, 2), (2, 7, 0), (7, 3, 1), (13, 13, 16)])
    def test_value_vectors_of_another_size(self, queries, keys, max_distance):
        query, key, value = randn(2, 3, queries, 5), randn(2, 3, keys, 5), randn(2, 3, keys, 2)
        shaw = positions.ShawRelative(5, max_distance, value_dim=2).double()
        sides = (query, key, value, shaw.key_vectors.detach(), shaw.value_vectors.detach())
        expected, weights = oracle.shaw(*(side.numpy() for side in sides))
        observation = regard.observe(query, key, value, bias=shaw, rows=[queries - 1, 0])
        assert_close(regard.attention(query, key, value, bias=shaw).detach(), torch.from_numpy(expected))
        assert_close(observation.output.detach(), torch.from_numpy(expected))
        assert_close(observation.rows.detach(), torch.from_numpy(weights[:, :, [queries - 1, 0]]))

    def test_gradients(self):
        shaw = positions.ShawRelative(3, 2, value_dim=2).double()
        key, value = randn(1, 1, 5, 3), randn(1, 1, 5, 2)

        def output(query, keys, values):
            weights = {"bias.key_vectors": keys, "bias.value_vectors": values}
            return torch.func.functional_call(AttentionWithBias(shaw), weights, (query, key, value))

        leaves = (randn(1, 2, 5, 3), shaw.key_vectors, shaw.value_vectors)
        assert torch.autograd.gradcheck(output, tuple(leaf.detach().requires_grad_() for leaf in leaves))
