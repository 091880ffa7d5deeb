"""RMS norm, sandwich norms, and norms of queries and keys, against their equations in NumPy and float64."""

import numpy as np
import pytest
import torch

import regard
from regard import masks, positions
from regard.errors import OptionError, ShapeError
from regard.layers import KeyValueCache, RMSNorm, SandwichNorm


def expected_norm(tokens, weight, epsilon, offset):
    tokens = tokens.double().numpy()
    return tokens / np.sqrt((tokens**2).mean(-1, keepdims=True) + epsilon) * (offset + weight.double().numpy())


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
class TestRMSNorm:
    def test_equation(self, dtype, offset):
        norm = RMSNorm(7, epsilon=0.01, offset=offset)
        with torch.no_grad():
            norm.weight.normal_(std=0.1)
        norm = norm.to(dtype)
        tokens = torch.randn(2, 3, 7).to(dtype)
        expected = torch.from_numpy(expected_norm(tokens, norm.weight.detach(), 0.01, offset))
        output = norm(tokens)
        assert output.dtype == dtype
        torch.testing.assert_close(output.double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)

    def test_initial_gain_is_1_and_a_row_of_zeros_stays(self, dtype, offset):
        norm = RMSNorm(7, offset=offset).to(dtype)
        tokens = torch.zeros(1, 7, dtype=dtype, requires_grad=True)
        output = norm(tokens)
        output.sum().backward()
        assert torch.equal(output, torch.zeros_like(output))
        assert tokens.grad.isfinite().all()
        assert torch.allclose(norm(torch.ones(1, 7, dtype=dtype)), torch.ones(1, 7, dtype=dtype), atol=1e-3)


def test_gradients_of_rms_norm():
    for offset in (0.0, 1.0):
        norm = RMSNorm(5, offset=offset).double()
        tokens = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
        norm(tokens).sin().sum().backward()
        ours, tokens.grad = tokens.grad, None
        scale = (tokens.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        (tokens * scale * (offset + norm.weight)).sin().sum().backward()
        torch.testing.assert_close(ours, tokens.grad)


def test_refusals_of_rms_norm():
    with pytest.raises(ShapeError, match=r"\(.., 7\)"):
        RMSNorm(7)(torch.zeros(2, 5))
    with pytest.raises(OptionError, match="width"):
        RMSNorm(0)


def test_sandwich_norm():
    residual = SandwichNorm(RMSNorm(5), output_norm=RMSNorm(5))
    with torch.no_grad():
        residual.norm.weight.normal_()
        residual.output_norm.weight.normal_()
    tokens, one = torch.randn(2, 3, 5), torch.ones(5)
    inner = expected_norm(tokens, residual.norm.weight.detach(), 1e-6, 0.0)
    scaled = torch.from_numpy(2.0 * inner + one.numpy())
    expected = tokens.double() + torch.from_numpy(
        expected_norm(scaled, residual.output_norm.weight.detach(), 1e-6, 0.0)
    )
    torch.testing.assert_close(residual(tokens, lambda given: 2.0 * given + 1.0).double(), expected, atol=1e-5, rtol=0)
    with pytest.raises(OptionError, match="output_norm"):
        SandwichNorm(RMSNorm(5), output_norm=None)


class TestNormsOfQueriesAndKeys:
    @pytest.fixture
    def layer(self):
        layer = regard.MultiHeadAttention(
            20,
            4,
            key_value_heads=2,
            head_dim=6,
            position=positions.Rotary(6),
            query_norm=RMSNorm(6),
            key_norm=RMSNorm(6, offset=1.0),
        ).eval()
        with torch.no_grad():
            layer.query_norm.weight.normal_()
            layer.key_norm.weight.normal_()
        return layer

    def test_are_applied_to_each_head_before_the_rotation(self, layer):
        tokens = torch.randn(2, 5, 20)
        with torch.no_grad(), regard.record(layer) as seen:
            layer(tokens)
        for side, norm, offset in (("query", layer.query_norm, 0.0), ("key", layer.key_norm, 1.0)):
            projected = getattr(layer, f"{side}_projection")(tokens).detach().unflatten(-1, (-1, 6)).transpose(1, 2)
            plain = torch.from_numpy(expected_norm(projected, norm.weight.detach(), 1e-6, offset)).float()
            torch.testing.assert_close(getattr(seen[0], side), layer.position(plain), atol=1e-5, rtol=0)

    def test_steps_with_a_cache_and_a_memory_give_the_same(self, layer):
        tokens = torch.randn(2, 5, 20)
        cache, parts = KeyValueCache.empty(), []
        with torch.no_grad():
            whole = layer(tokens, mask=masks.causal())
            for token in tokens.split(1, dim=1):
                part, cache = layer(token, mask=masks.causal(), cache=cache)
                parts.append(part)
            torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-6, rtol=1e-5)
            memory = layer.project_memory(tokens)
            torch.testing.assert_close(layer.attend_memory(tokens, memory), layer(tokens), atol=1e-6, rtol=1e-5)

    def test_bias_of_the_output_alone(self):
        layer = regard.MultiHeadAttention(20, 4, bias=False, output_bias=True)
        assert layer.query_projection.bias is None
        assert layer.output_projection.bias is not None
        assert regard.MultiHeadAttention(20, 4, output_bias=False).output_projection.bias is None

    def test_refusals(self):
        with pytest.raises(OptionError, match="query_norm"):
            regard.MultiHeadAttention(20, 4, query_norm=5)
        with pytest.raises(OptionError, match="one projection for queries and keys"):
            regard.MultiHeadAttention(20, 4, mechanism="reformer", key_norm=RMSNorm(5))
