"""The mixture of experts: against NumPy, token by token; its gradients; what a token does not depend on; refusals."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import OptionError, ShapeError
from regard.layers import MixtureOfExperts


def make(width: int, inner: int, experts: int, chosen: int, seed: int = 1, scale: float = 1.0) -> MixtureOfExperts:
    """A layer in float64 whose biases are not zero; a large ``scale`` drives gates and values beyond their limits."""
    torch.manual_seed(seed)
    layer = MixtureOfExperts(width, inner, experts=experts, chosen=chosen).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=scale)
    return layer


def compute_token(layer: MixtureOfExperts, token: np.ndarray) -> np.ndarray:
    """The equations at the top of the layer's file for one token (width,), with loops instead of tensors."""
    weights = {name: one.detach().numpy() for name, one in layer.named_parameters()}
    logits = weights["router.weight"] @ token + weights["router.bias"]
    best = sorted(range(len(logits)), key=lambda expert: -logits[expert])[: layer.chosen]
    powers = {expert: math.exp(logits[expert] - logits[best[0]]) for expert in best}
    output = np.zeros_like(token)
    for expert in best:
        both = token @ weights["experts.gate_up_proj"][expert] + weights["experts.gate_up_proj_bias"][expert]
        inner = []
        for gate, up in zip(both[::2], both[1::2], strict=True):
            gate, up = min(gate, 7.0), max(-7.0, min(up, 7.0))
            inner.append((up + 1) * gate / (1 + math.exp(-1.702 * gate)))
        hidden = np.array(inner) @ weights["experts.down_proj"][expert] + weights["experts.down_proj_bias"][expert]
        output += powers[expert] / sum(powers.values()) * hidden
    return output


@given(
    width=st.integers(1, 7),
    inner=st.integers(1, 5),
    experts=st.integers(1, 7),
    data=st.data(),
    scale=st.sampled_from([0.3, 4.0]),
)
def test_against_loops(width, inner, experts, data, scale):
    chosen = data.draw(st.integers(1, experts))
    layer = make(width, inner, experts, chosen, seed=data.draw(st.integers(0, 99)), scale=scale)
    tokens = torch.randn(2, 3, width, dtype=torch.float64)
    actual = layer(tokens).detach()
    for place in np.ndindex(2, 3):
        expected = compute_token(layer, tokens[place].numpy())
        np.testing.assert_allclose(actual[place].numpy(), expected, rtol=1e-10, atol=1e-10)


def test_gradients():
    """Against finite differences: of the tokens, the router, and the weights and biases of the experts."""
    layer = make(5, 3, 4, 2, scale=0.5)
    tokens = torch.randn(1, 7, 5, dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def call(tokens, *parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (tokens,))

    assert torch.autograd.gradcheck(call, (tokens, *parameters))


def test_an_expert_without_tokens_has_no_gradient():
    layer = make(5, 3, 3, 1)
    with torch.no_grad():
        layer.router.weight.zero_()
        layer.router.bias.copy_(torch.tensor([0.0, 2.0, 1.0]))
    layer(torch.randn(2, 3, 5, dtype=torch.float64)).sum().backward()
    moved = layer.experts.down_proj.grad.abs().amax(dim=(1, 2)) > 0
    assert moved.tolist() == [False, True, False]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_token_does_not_depend_on_others(poison):
    """Whatever another token is, and whichever experts it shares: to rounding, since products may be blocked anew."""
    layer = make(11, 5, 4, 2)
    tokens = torch.randn(1, 13, 11, dtype=torch.float64)
    expected = layer(tokens)
    poisoned = tokens.clone()
    poisoned[0, 6] = poison
    actual = layer(poisoned)
    others = [place for place in range(13) if place != 6]
    torch.testing.assert_close(actual[:, others], expected[:, others], rtol=1e-12, atol=1e-12)
    alone = torch.cat([layer(tokens[:, place : place + 1]) for place in range(13)], dim=1)
    torch.testing.assert_close(alone, expected, rtol=1e-12, atol=1e-12)


def test_no_tokens():
    layer = make(5, 3, 4, 2)
    assert layer(torch.zeros(2, 0, 5, dtype=torch.float64)).shape == (2, 0, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_data_types(dtype):
    """The result has the data type of the tokens, and is the one in float64 to its rounding."""
    layer = make(13, 7, 5, 3, scale=0.3).to(dtype)
    tokens = torch.randn(2, 5, 13).to(dtype)
    expected = copy.deepcopy(layer).double()(tokens.double())
    actual = layer(tokens)
    assert actual.dtype == dtype
    tolerance = 32 * torch.finfo(dtype).eps
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


def test_refusals():
    with pytest.raises(OptionError, match="cannot use more experts than there are"):
        MixtureOfExperts(5, 3, experts=2, chosen=3)
    with pytest.raises(ShapeError, match="do not fit the mixture of experts"):
        make(5, 3, 2, 1)(torch.zeros(1, 2, 4, dtype=torch.float64))
