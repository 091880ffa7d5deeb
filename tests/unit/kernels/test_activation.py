"""Activations by the native kernel, against float64 by torch, which differs from it in every line."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from any_threads import assert_same_bits
from regard.kernels.extension import native
from regard.kernels.operators import activation_op
from regard.kernels.operators.activation_op import activate
from regard.kernels.support import is_portable

ORACLES = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": functional.silu,
}
UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9}
needs_kernel = pytest.mark.skipif(native is None or is_portable(), reason="torch computes without vector instructions")


@pytest.fixture
def calls(monkeypatch):
    found = []
    compute = activation_op._compute
    monkeypatch.setattr(activation_op, "_compute", lambda *given: found.append(given) or compute(*given))
    return found


def with_gradient(function, tokens, gradient):
    tokens = tokens.clone().requires_grad_()
    output = function(tokens)
    output.backward(gradient.to(output.dtype))
    return output.detach(), tokens.grad


def check(name, tokens, gradient):
    """Within a rounding of the result, and of the exponent, whose rounding is in the result too."""
    found = with_gradient(partial(activate, activation=name), tokens, gradient)
    expected = with_gradient(ORACLES[name], tokens.double(), gradient.double())
    size = tokens.double().abs()
    bound = 2 * UNIT[tokens.dtype] * (1 + size) + 8 * 2.0**-24 * (4 + size)
    for mine, theirs, factor in zip(found, expected, (1.0, gradient.double().abs()), strict=True):
        assert ((mine.double() - theirs).abs() <= bound * factor + 1e-30).all()


@needs_kernel
@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("name", ORACLES)
class TestValues:
    def test_everywhere(self, calls, name, dtype):
        tokens = torch.linspace(-30, 30, 40_009).to(dtype)  # a prime number of them
        check(name, tokens, torch.randn(40_009, generator=torch.Generator().manual_seed(1)).to(dtype))
        assert len(calls) == 2

    @given(count=st.integers(1, 70), scale=st.sampled_from([0.1, 1.0, 9.0]), seed=st.integers(0, 2**20))
    def test_any_count(self, name, dtype, count, scale, seed):
        generator = torch.Generator().manual_seed(seed)
        tokens, gradient = (torch.randn(2, count, generator=generator) * scale).to(dtype)
        check(name, tokens, gradient)

    def test_extremes(self, name, dtype):
        tokens = torch.tensor([0.0, 1e20, 3e38, float("inf"), -1e20, -3e38, -1e-30, 1e-30]).to(dtype)
        output, slope = with_gradient(partial(activate, activation=name), tokens, torch.ones_like(tokens))
        assert torch.equal(output[:4], tokens[:4])
        assert (output[4:].abs() <= 1e-29).all()
        halves = torch.tensor([0.5, 0.5, 0.5], dtype=dtype)
        assert torch.equal(slope[[0, 6, 7]], halves)
        assert torch.equal(slope[1:3], torch.ones(2, dtype=dtype))
        assert (slope[4:6].abs() <= 1e-29).all()

    def test_nan_stays_nan(self, name, dtype):
        tokens = torch.tensor([1.0, float("nan"), 2.0]).to(dtype)
        for one in with_gradient(partial(activate, activation=name), tokens, torch.ones_like(tokens)):
            assert one.isnan().tolist() == [False, True, False]

    def test_any_strides(self, calls, name, dtype):
        whole = torch.randn(7, 5, 11, generator=torch.Generator().manual_seed(2)).to(dtype)
        for view in (whole.transpose(0, 2), whole[:, ::2], whole[3:4].expand(2, 5, 11)):
            check(name, view, whole.new_ones(view.shape))
        assert len(calls) == 6

    def test_bits_do_not_depend_on_threads_or_neighbours(self, name, dtype):
        tokens = torch.randn(70_001, generator=torch.Generator().manual_seed(3)).to(dtype)
        compute = partial(with_gradient, partial(activate, activation=name), tokens, tokens)
        assert_same_bits(compute, threads=(1, 2, 5))
        assert torch.equal(activate(tokens[5:18], name), compute()[0][5:18])


@pytest.mark.parametrize("name", ORACLES)
class TestTransforms:
    def test_second_derivatives(self, name):
        tokens = torch.randn(13, dtype=torch.float32, generator=torch.Generator().manual_seed(4))

        def second(function, tokens):
            tokens = tokens.clone().requires_grad_()
            (first,) = torch.autograd.grad(function(tokens).square().sum(), tokens, create_graph=True)
            return torch.autograd.grad(first.sin().sum(), tokens)[0]

        expected = second(ORACLES[name], tokens.double())
        assert (second(partial(activate, activation=name), tokens) - expected).abs().max() <= 1e-5

    def test_batched_gradients(self, name):
        tokens = torch.randn(13, generator=torch.Generator().manual_seed(4)).requires_grad_()
        found = torch.autograd.functional.jacobian(partial(activate, activation=name), tokens, vectorize=True)
        expected = torch.autograd.functional.jacobian(ORACLES[name], tokens.double())
        assert (found - expected).abs().max() <= 1e-6

    @pytest.mark.parametrize(
        "transform", [lambda f: torch.func.vmap(f), lambda f: torch.func.jacrev(f), lambda f: torch.func.jacfwd(f)]
    )
    def test_functional_transforms(self, calls, name, transform):
        tokens = torch.randn(3, generator=torch.Generator().manual_seed(4))
        found = transform(partial(activate, activation=name))(tokens)
        assert torch.allclose(found, transform(ORACLES[name])(tokens), atol=1e-6)
        assert not calls

    def test_forward_mode(self, name):
        tokens, tangent = torch.randn(2, 13, generator=torch.Generator().manual_seed(4))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(tokens, tangent)
            found = torch.autograd.forward_ad.unpack_dual(activate(dual, name)).tangent
        _, expected = torch.func.jvp(ORACLES[name], (tokens,), (tangent,))
        assert torch.allclose(found, expected, atol=1e-6)

    def test_compiled(self, calls, name):
        tokens = torch.randn(13, generator=torch.Generator().manual_seed(4))
        compiled = torch.compile(partial(activate, activation=name), backend="eager", fullgraph=True)
        assert torch.allclose(compiled(tokens), ORACLES[name](tokens), atol=1e-6)
        assert not calls


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_dtypes_are_computed_by_torch(calls, name, dtype):
    tokens = torch.randn(13, generator=torch.Generator().manual_seed(4)).to(dtype)
    assert torch.equal(activate(tokens, name), ORACLES[name](tokens))
    assert not calls


def test_no_numbers(calls):
    assert activate(torch.empty(0, 3), "gelu").shape == (0, 3)
    assert not calls


def test_parameters_and_subclasses_are_computed_by_torch(calls):
    """A subclass may compute otherwise; nobody applies an activation to a parameter in a loop."""
    assert activate(nn.Parameter(torch.ones(3)), "silu").requires_grad
    assert not calls
