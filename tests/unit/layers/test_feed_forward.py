"""The feed-forward layer against the oracle and its own equation."""

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from oracles import blocks as oracle
from regard.errors import OptionError
from regard.layers import ACTIVATIONS, FeedForward

# Shazeer 2020, equations 4 to 6, on a linear layer's output and its gate's; So 2021's squared relu; and Hendrycks and
# Gimpel 2016, section 2, the sigmoid approximation.
EQUATIONS = {
    "relu": lambda up: up.clamp(min=0),
    "gelu": lambda up: up * torch.special.ndtr(up),
    "gelu_tanh": lambda up: functional.gelu(up, approximate="tanh"),
    "silu": lambda up: up / (1 + (-up).exp()),
    "relu_squared": lambda up: up.clamp(min=0) ** 2,
    "quick_gelu": lambda up: up / (1 + (-1.702 * up).exp()),
    "glu": lambda up, gate: functional.glu(torch.cat([up, gate], dim=-1)),
    "reglu": lambda up, gate: gate.clamp(min=0) * up,
    "geglu": lambda up, gate: gate * torch.special.ndtr(gate) * up,
    "geglu_tanh": lambda up, gate: functional.gelu(gate, approximate="tanh") * up,
    "swiglu": lambda up, gate: gate / (1 + (-gate).exp()) * up,
}


def linear_of(layer):
    bias = None if layer.bias is None else layer.bias.detach().numpy()
    return oracle.Linear(layer.weight.detach().numpy().T, bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", oracle.ACTIVATIONS)
def test_oracle(activation, bias):
    layer, tokens = FeedForward(6, 11, activation=activation, bias=bias).double(), torch.randn(2, 5, 6).double()
    gate = None if layer.gate is None else linear_of(layer.gate)
    oracle_layer = oracle.FeedForward(linear_of(layer.up), linear_of(layer.down), activation, gate)
    assert_close(
        layer(tokens).detach(), torch.from_numpy(oracle.feed_forward(tokens.numpy(), oracle_layer)), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_equation(activation):
    layer, tokens = FeedForward(6, 11, activation=activation).double(), torch.randn(2, 5, 6).double()
    sides = [layer.up(tokens)] + ([] if layer.gate is None else [layer.gate(tokens)])
    assert_close(layer(tokens), layer.down(EQUATIONS[activation](*sides)))


def test_every_activation_has_an_equation():
    assert set(EQUATIONS) == set(ACTIVATIONS)


@pytest.mark.parametrize(("activation", "matrices"), [("relu", 2), ("swiglu", 3)])
def test_number_of_parameters(activation, matrices):
    layer = FeedForward(6, 11, activation=activation, bias=False)
    assert sum(parameter.numel() for parameter in layer.parameters()) == matrices * 6 * 11


def test_agrees_with_llama():
    theirs = LlamaMLP(LlamaConfig(hidden_size=6, num_attention_heads=2, intermediate_size=11, hidden_act="silu"))
    ours = FeedForward(6, 11, activation="swiglu", bias=False)
    for name in ("gate", "up", "down"):
        getattr(ours, name).load_state_dict(getattr(theirs, f"{name}_proj").state_dict())
    tokens = torch.randn(2, 5, 6)
    assert_close(ours(tokens), theirs(tokens))


def test_tokens_are_independent():
    layer, tokens = FeedForward(6, 11), torch.randn(2, 5, 6)
    assert_close(layer(tokens)[1, 3], layer(tokens[1:, 3:4])[0, 0])
    assert layer(tokens[:, :0]).shape == (2, 0, 6)


def test_dropout_applies_to_the_inner_layer_in_training():
    layer, tokens = FeedForward(6, 1009, dropout=0.25), torch.randn(1, 1, 6)
    layer.down = torch.nn.Identity()
    whole, dropped = layer.eval()(tokens), layer.train()(tokens)
    gone = (dropped == 0) & (whole != 0)
    assert_close(dropped[~gone], whole[~gone] / 0.75)
    assert 0.15 < gone.sum() / (whole != 0).sum() < 0.35


@pytest.mark.usefixtures("without_shape_checks")
def test_messages():
    with pytest.raises(OptionError, match=r"(?s)unknown activation 'swigloo'.*geglu, .*swiglu.*mean 'swiglu'"):
        FeedForward(6, 11, activation="swigloo")
    with pytest.raises(OptionError, match=r"(?s)dropout.*0 <= dropout < 1.*got: +-0\.1"):
        FeedForward(6, 11, dropout=-0.1)
    for sizes, name in (((0, 11), "width"), ((6, 0), "inner"), ((6.0, 11), "width")):
        with pytest.raises(OptionError, match=rf"(?s)wrong {name}.*1 or more"):
            FeedForward(*sizes)
