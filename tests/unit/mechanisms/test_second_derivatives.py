"""Second derivatives of every mechanism: by torch.func, as the message says where autograd's are refused."""

import pytest
import torch
from torch.func import grad

import regard
from regard import masks
from regard.errors import RefusedError

WIDTH, HEADS, LENGTH, STEP = 12, 3, 7, 1e-5


def make_loss(row):
    """A function of tokens (1, LENGTH, WIDTH): the sum of squares of a layer's output."""
    torch.manual_seed(3)
    options = {"length": LENGTH} if "length" in row.options else {}
    options |= {"block": 3} if row.name == "bigbird" else {}
    layer = regard.MultiHeadAttention(WIDTH, HEADS, mechanism=row.name, mechanism_options=options).double()
    mask = masks.causal() if layer.mechanism.refuses_mask(masks.causal()) is None else None
    return lambda tokens: layer(tokens, mask=mask).square().sum()


@pytest.mark.parametrize("row", regard.catalogue(), ids=lambda row: row.name)
def test_second_derivatives_by_autograd_or_torch_func(row, without_shape_checks):
    loss = make_loss(row)
    generator = torch.Generator().manual_seed(5)
    tokens, direction = torch.randn(2, 1, LENGTH, WIDTH, dtype=torch.float64, generator=generator)

    def first(tokens):
        tokens = tokens.clone().requires_grad_()
        return torch.autograd.grad(loss(tokens), tokens)[0]

    expected = (first(tokens + STEP * direction) - first(tokens - STEP * direction)) / (2 * STEP)
    computed = grad(lambda tokens: (grad(loss)(tokens) * direction).sum())(tokens)
    torch.testing.assert_close(computed, expected, rtol=1e-5, atol=1e-6)
    found = differentiate_twice(loss, tokens, direction)
    if isinstance(found, str):
        assert 'use impl="reference" (in a layer mechanism_options={"impl": "reference"}), or torch.func' in found
    else:
        torch.testing.assert_close(found, computed, rtol=1e-9, atol=1e-9)


def differentiate_twice(loss, tokens, direction):
    """The second derivative by autograd, or the message of its refusal."""
    leaf = tokens.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
    try:
        return torch.autograd.grad((gradient * direction).sum(), leaf)[0]
    except RefusedError as error:
        return str(error)
