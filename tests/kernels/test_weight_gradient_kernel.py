"""The gradients of the weight and the bias of a linear layer: the native kernel against float64, at prime sizes.

The error of a sum of K products in float32 is at most (K + 4) eps times the sum of their absolute values, in any order:
Higham 2002, "Accuracy and stability of numerical algorithms", section 3.5.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hypothesis_examples import examples
from long_lengths import many
from regard.kernels.extension import native
from regard.kernels.operators import weight_gradient_op
from regard.layers import projection
from regard.layers.projection import linear_activation

pytestmark = pytest.mark.skipif(native is None, reason="the kernels are not built")

EPS = 2.0**-23
MANY = 521
"""A prime number of rows that is enough for the kernel in a layer."""


def make_problem(rows, inputs, outputs, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, columns, generator=generator) for columns in (inputs, outputs))


def run_native(tokens, gradient, threads=1, *, bias=True):
    weight = torch.full((gradient.shape[1], tokens.shape[1]), torch.nan)
    of_bias = torch.full((gradient.shape[1],), torch.nan) if bias else None
    native.weight_gradient(tokens, gradient, weight, of_bias, threads=threads)
    return weight, of_bias


def check(weight, of_bias, tokens, gradient):
    x, dy = tokens.double().numpy(), gradient.double().numpy()
    bound = (len(x) + 4) * EPS
    assert (abs(weight.double().numpy() - dy.T @ x) <= bound * (abs(dy).T @ abs(x))).all()
    if of_bias is not None:
        assert (abs(of_bias.double().numpy() - dy.sum(0)) <= bound * abs(dy).sum(0)).all()


@given(
    st.integers(0, 300),
    st.integers(0, 140),
    st.integers(0, 140),
    st.booleans(),
    st.sampled_from([1, 2]),
    st.integers(0, 9),
)
def test_any_size(rows, inputs, outputs, bias, threads, seed):
    tokens, gradient = make_problem(rows, inputs, outputs, seed)
    check(*run_native(tokens, gradient, threads, bias=bias), tokens, gradient)


@examples(40, without_slow=4)
@given(many, st.integers(1, 900), st.integers(1, 300), st.sampled_from([1, 2]), st.integers(0, 9))
def test_many_rows(rows, inputs, outputs, threads, seed):
    tokens, gradient = make_problem(rows, inputs, outputs, seed)
    check(*run_native(tokens, gradient, threads), tokens, gradient)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1031, 127, 131), (521, 797, 811)])
def test_bits_do_not_depend_on_threads(rows, inputs, outputs):
    """The second one has more sums than fit the cache, so its blocks of rows are longer."""
    tokens, gradient = make_problem(rows, inputs, outputs)
    one = run_native(tokens, gradient)
    check(*one, tokens, gradient)
    for threads in (2, 3, 7):
        for mine, other in zip(run_native(tokens, gradient, threads), one, strict=True):
            assert torch.equal(mine, other)


@pytest.mark.usefixtures("poison_scratch_memory")
def test_unused_memory_has_no_influence():
    tokens, gradient = make_problem(MANY, 67, 71)
    check(*run_native(tokens, gradient), tokens, gradient)


def test_nonfinite_numbers_reach_their_own_row_or_column():
    tokens, gradient = make_problem(MANY, 67, 71)
    weight, of_bias = run_native(tokens, gradient)
    tokens[3, 5] = torch.nan
    gradient[7, 11] = torch.inf
    broken, of_broken_bias = run_native(tokens, gradient)
    assert broken[:, 5].isnan().all()
    assert not broken[11].isfinite().any()
    rows = torch.arange(71) != 11
    columns = torch.arange(67) != 5
    assert torch.equal(broken[rows][:, columns], weight[rows][:, columns])
    assert of_broken_bias[11] == torch.inf
    assert torch.equal(of_broken_bias[rows], of_bias[rows])


@pytest.mark.parametrize(
    ("tokens", "gradient", "weight", "bias", "error"),
    [
        (torch.ones(3, 5), torch.ones(4, 7), torch.ones(7, 5), None, ValueError),
        (torch.ones(3, 5), torch.ones(3, 7), torch.ones(5, 7), None, ValueError),
        (torch.ones(3, 5), torch.ones(3, 7), torch.ones(7, 5), torch.ones(5), ValueError),
        (torch.ones(5, 3).t(), torch.ones(3, 7), torch.ones(7, 5), None, ValueError),
        (torch.ones(3, 5).double(), torch.ones(3, 7), torch.ones(7, 5), None, TypeError),
    ],
)
def test_wrong_arguments_are_refused(tokens, gradient, weight, bias, error):
    with pytest.raises(error):
        native.weight_gradient(tokens, gradient, weight, bias)


class TestInLayers:
    """Which calls of a linear layer use the kernel."""

    @pytest.fixture(autouse=True)
    def with_onednn(self, monkeypatch):
        """In place of oneDNN, which not every machine has."""

        def compute(tokens, weight, bias, name, scalars, algorithm):
            assert name == "none"
            return nn.functional.linear(tokens, weight, bias)

        monkeypatch.setattr(projection, "_find_onednn", lambda: compute)
        monkeypatch.setattr(projection, "matmul_library", lambda: "onednn")
        monkeypatch.setattr(projection, "uses_own_kernel", lambda: True)

    @pytest.fixture
    def calls(self, monkeypatch):
        rows = []

        def compute(tokens, gradient, *, of_bias):
            rows.append(len(tokens))
            return weight_gradient_op.weight_gradient(tokens, gradient, of_bias=of_bias)

        monkeypatch.setattr(projection, "weight_gradient", compute)
        return rows

    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("strided", [True, False])
    def test_many_tokens(self, calls, bias, strided):
        linear = nn.Linear(257, 263, bias=bias)
        tokens, upstream = make_problem(3 * MANY, 257, 263)
        if strided:
            tokens, upstream = (tensor.t().contiguous().t() for tensor in (tokens, upstream))
        linear_activation(tokens.view(3, MANY, 257), linear).backward(upstream.view(3, MANY, 263))
        assert calls == [3 * MANY]
        check(linear.weight.grad, linear.bias.grad if bias else None, tokens, upstream)

    def test_few_tokens(self, calls):
        linear, tokens = nn.Linear(257, 263), torch.randn(weight_gradient_op.MIN_ROWS - 1, 257)
        linear_activation(tokens, linear).sum().backward()
        assert not calls

    def test_frozen_weight_with_a_trained_bias(self, calls):
        linear, tokens = nn.Linear(257, 263), torch.randn(MANY, 257)
        linear.weight.requires_grad_(False)
        linear_activation(tokens, linear).sum().backward()
        assert not calls
        assert linear.weight.grad is None
        torch.testing.assert_close(linear.bias.grad, torch.full((263,), float(MANY)))

    def test_frozen_bias(self, calls):
        linear, tokens = nn.Linear(257, 263), torch.randn(MANY, 257)
        linear.bias.requires_grad_(False)
        linear_activation(tokens, linear).sum().backward()
        assert calls == [MANY]
        assert linear.bias.grad is None

    def test_gradients_that_are_differentiated_again(self, calls):
        linear, tokens = nn.Linear(257, 263), torch.randn(MANY, 257)
        torch.autograd.grad(linear_activation(tokens, linear).sum(), linear.weight, create_graph=True)
        assert not calls
