"""Linear layers of many tokens: the native kernel against float64, at sizes that divide nothing.

The error of a sum of K products in float32 is at most (K + 4) eps times the sum of their absolute values, in any order:
Higham 2002, "Accuracy and stability of numerical algorithms", section 3.5. A result in bfloat16 is rounded once more.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from any_threads import assert_same_bits
from hypothesis_examples import examples
from long_lengths import many
from regard.kernels.extension import native
from regard.kernels.operators import linear_op
from regard.kernels.operators.linear_op import MIN_ROWS, can_multiply, multiplies, multiply
from regard.layers import projection
from regard.layers.projection import ACTIVATIONS, linear_activation

pytestmark = pytest.mark.skipif(native is None, reason="the kernels are not built")

EPS = {torch.float32: 0.0, torch.bfloat16: 2.0**-8}
"""Largest relative error of rounding a result."""
DTYPES = [dtype for dtype in EPS if multiplies(dtype)]
"""Those of this processor."""
FORMULAS = {
    "identity": lambda x: x,
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * 0.5 * torch.erfc(-x / 2**0.5),
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "relu_squared": lambda x: x.clamp(min=0) ** 2,
    "quick_gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
}
"""Hendrycks and Gimpel 2016; Elfwing et al. 2018; So et al. 2021."""


def make_problem(rows, inputs, outputs, dtype, *, bias=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens, weight = (torch.randn(size, inputs, generator=generator).to(dtype) for size in (rows, outputs))
    return tokens, weight, torch.randn(outputs, generator=generator).to(dtype) if bias else None


def run_native(tokens, weight, bias, threads=1, activation="identity"):
    output = tokens.new_full((tokens.shape[0], weight.shape[0]), torch.nan)
    native.linear(tokens, weight, None, bias, output, activation=activation, threads=threads)
    return output


def expect(tokens, weight, bias):
    """Return the output in float64 without an activation, and the largest error of its sums."""
    x, w, b = tokens.double(), weight.double(), 0 if bias is None else bias.double()
    size = x.abs() @ w.abs().T + (0 if bias is None else b.abs())
    return x @ w.T + b, (weight.shape[1] + 4) * 2.0**-23 * size


def check(output, tokens, weight, bias):
    expected, bound = expect(tokens, weight, bias)
    assert ((output.double() - expected).abs() <= bound + EPS[tokens.dtype] * (expected.abs() + bound)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [(1, 2, 1), (5, 26, 3), (53, 62, 17), (97, 134, 67), (131, 58, 131), (17, 1562, 61), (197, 1538, 199)],
)
def test_against_float64(rows, inputs, outputs, dtype):
    problem = make_problem(rows, inputs, outputs, dtype)
    check(run_native(*problem), *problem)


@given(
    st.integers(0, 110), st.integers(0, 150), st.integers(0, 140), st.sampled_from(DTYPES), st.booleans(),
    st.sampled_from([1, 2]), st.integers(0, 2**20),
)  # fmt: skip
def test_any_sizes(rows, pairs, outputs, dtype, bias, threads, seed):
    problem = make_problem(rows, 2 * pairs, outputs, dtype, bias=bias, seed=seed)
    check(run_native(*problem, threads), *problem)


@examples(40, without_slow=4)
@given(
    many, st.sampled_from([1, 383, 384, 385, 768, 1537]), st.integers(1, 400), st.sampled_from(DTYPES),
    st.sampled_from([1, 2]), st.integers(0, 2**20),
)  # fmt: skip
def test_many_rows(rows, pairs, outputs, dtype, threads, seed):
    problem = make_problem(rows, 2 * pairs, outputs, dtype, seed=seed)
    check(run_native(*problem, threads), *problem)


def test_odd_number_of_inputs():
    problem = make_problem(61, 131, 67, torch.float32)
    check(run_native(*problem), *problem)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", FORMULAS)
def test_activations(activation, dtype):
    """None of them has a slope above 2 where sums are within 1; the square is bounded there too."""
    tokens, weight, bias = make_problem(61, 62, 67, dtype)
    tokens, weight, bias = (tensor / 64 for tensor in (tokens, 8 * weight, 8 * bias))
    before, bound = expect(tokens, weight, bias)
    assert before.abs().max() < 1
    expected = FORMULAS[activation](before)
    found = run_native(tokens, weight, bias, activation=activation).double()
    rounding = 3 * EPS[dtype] + 2.0**-20  # of the result, and twice of what is squared
    assert ((found - expected).abs() <= 2 * bound + rounding * expected.abs() + 2.0**-24).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_depend_on_neither_threads_nor_other_tokens(dtype):
    tokens, weight, bias = make_problem(821, 1582, 137, dtype)
    one = run_native(tokens, weight, bias)
    check(one, tokens, weight, bias)
    for threads in (2, 3, 7):
        assert torch.equal(run_native(tokens, weight, bias, threads), one)
    for first, stop in ((0, 1), (1, 48), (5, 6), (400, 779), (820, 821)):
        assert torch.equal(run_native(tokens[first:stop].clone(), weight, bias), one[first:stop])
    assert torch.equal(run_native(tokens, weight[:71], bias[:71]), one[:, :71])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("poison_scratch_memory")
def test_unused_memory_has_no_influence(dtype):
    for outputs in (3, 17, 64, 67, 131):
        problem = make_problem(53, 70, outputs, dtype)
        check(run_native(*problem, threads=2), *problem)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nonfinite_numbers_reach_their_own_row_or_column(dtype):
    tokens, weight, bias = make_problem(61, 70, 71, dtype)
    clean = run_native(tokens, weight, bias)
    tokens[3, 5] = torch.nan
    weight[7, 69] = torch.inf
    broken = run_native(tokens, weight, bias)
    assert broken[3].isnan().all()
    assert not broken[:, 7].isfinite().any()
    rows, columns = torch.arange(61) != 3, torch.arange(71) != 7
    assert torch.equal(broken[rows][:, columns], clean[rows][:, columns])


@pytest.mark.parametrize(
    ("tokens", "weight", "bias", "output", "activation", "error"),
    [
        (torch.ones(3, 6), torch.ones(7, 4), None, torch.ones(3, 7), "identity", ValueError),
        (torch.ones(3, 6), torch.ones(7, 6), None, torch.ones(7, 3), "identity", ValueError),
        (torch.ones(3, 6), torch.ones(7, 6), torch.ones(6), torch.ones(3, 7), "identity", ValueError),
        (torch.ones(3, 6), torch.ones(7, 6), None, torch.ones(3, 7), "swish", ValueError),
        (torch.ones(6, 3).t(), torch.ones(7, 6), None, torch.ones(3, 7), "identity", ValueError),
        (torch.ones(3, 6), torch.ones(6, 7).t(), None, torch.ones(3, 7), "identity", ValueError),
        (torch.ones(3, 6), torch.ones(7, 6), None, torch.ones(1, 7).expand(3, 7), "identity", ValueError),
        (torch.ones(3, 6), torch.ones(7, 6).double(), None, torch.ones(3, 7), "identity", ValueError),
        (torch.ones(3, 6).double(), torch.ones(7, 6), None, torch.ones(3, 7), "identity", ValueError),
        (torch.ones(3, 6).half(), torch.ones(7, 6).half(), None, torch.ones(3, 7).half(), "identity", ValueError),
        (torch.ones(3, 5).bfloat16(), torch.ones(7, 5), None, torch.ones(3, 7), "relu", (ValueError, TypeError)),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(tokens, weight, bias, output, activation, error):
    with pytest.raises(error):
        native.linear(tokens, weight, None, bias, output, activation=activation)


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_that_is_not_aligned(dtype):
    """The kernel reads pairs of bfloat16 numbers: the operator copies tokens that begin in the middle of one."""
    tokens, weight, bias = make_problem(61, 70, 71, dtype)
    storage = torch.cat([torch.zeros(1, dtype=dtype), tokens.flatten()])
    check(multiply(storage[1:].view(61, 70), weight, bias), tokens, weight, bias)


class TestInLayers:
    """Which calls of a linear layer use the kernel."""

    @pytest.fixture(autouse=True)
    def on_this_machine(self, monkeypatch):
        """As where oneDNN is faster than MKL, which is where the kernel is faster than both."""
        monkeypatch.setattr(projection, "matmul_library", lambda: "onednn")
        monkeypatch.setattr(projection, "uses_own_kernel", lambda: True)

    @pytest.fixture
    def calls(self, monkeypatch):
        found = []

        def compute(tokens, weight, bias, activation):
            found.append(activation)
            return linear_op.multiply(tokens, weight, bias, activation)

        monkeypatch.setattr(projection, "multiply", compute)
        return found

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("activation", ACTIVATIONS)
    @torch.no_grad()
    def test_every_activation(self, calls, activation, dtype):
        linear, tokens = nn.Linear(62, 67, dtype=dtype), torch.randn(3, 31, 62, dtype=dtype)
        output = linear_activation(tokens, linear, activation)
        assert calls == [activation if activation in FORMULAS else "identity"]
        assert output.shape == (3, 31, 67)
        expected = ACTIVATIONS[activation].apply(
            nn.functional.linear(tokens.double(), linear.weight.double(), linear.bias.double())
        )
        torch.testing.assert_close(output.double(), expected, atol=1e-5 + 2 * EPS[dtype], rtol=1e-5 + 2 * EPS[dtype])

    @torch.no_grad()
    def test_strided_tokens(self, calls):
        linear, tokens = nn.Linear(61, 67), torch.randn(31, 61, 3).permute(2, 0, 1)
        torch.testing.assert_close(linear_activation(tokens, linear), linear(tokens), atol=1e-5, rtol=1e-5)
        assert calls == ["identity"]

    def test_not_with_gradients(self, calls):
        linear_activation(torch.randn(97, 61), nn.Linear(61, 67))
        assert not calls

    def test_with_frozen_weights(self, calls):
        linear_activation(torch.randn(97, 61), nn.Linear(61, 67).requires_grad_(False))
        assert calls == ["identity"]

    @pytest.mark.parametrize(
        ("tokens", "linear"),
        [
            (torch.randn(MIN_ROWS - 1, 61), nn.Linear(61, 67)),
            (torch.randn(97, 13), nn.Linear(13, 11)),  # too few products
            (torch.randn(97, 61).double(), nn.Linear(61, 67).double()),
            (torch.randn(97, 61).bfloat16(), nn.Linear(61, 67).bfloat16()),  # an odd number of inputs
            (torch.randn(0, 61), nn.Linear(61, 67)),
        ],
    )
    @torch.no_grad()
    def test_not_if_another_is_faster_or_it_cannot(self, calls, tokens, linear):
        linear_activation(tokens, linear)
        assert not calls

    @torch.no_grad()
    def test_not_where_mkl_is_as_fast(self, calls, monkeypatch):
        monkeypatch.setattr(projection, "matmul_library", lambda: "torch")
        monkeypatch.setattr(projection, "is_amd", lambda: False)
        linear_activation(torch.randn(97, 61), nn.Linear(61, 67), "gelu")
        assert not calls

    @torch.no_grad()
    def test_where_mkl_is_slow(self, calls, monkeypatch):
        monkeypatch.setattr(projection, "matmul_library", lambda: "torch")
        monkeypatch.setattr(projection, "is_amd", lambda: True)
        linear_activation(torch.randn(97, 61), nn.Linear(61, 67), "gelu")
        assert calls == ["gelu"]

    @torch.no_grad()
    def test_not_if_a_library_alone_is_named(self, calls, monkeypatch):
        monkeypatch.setattr(projection, "uses_own_kernel", lambda: False)
        linear_activation(torch.randn(97, 61), nn.Linear(61, 67))
        assert not calls

    @torch.no_grad()
    def test_not_under_autocast_or_transforms(self, calls):
        linear, tokens = nn.Linear(61, 67), torch.randn(3, 97, 61)
        with torch.autocast("cpu", torch.bfloat16):
            assert linear_activation(tokens, linear).dtype == torch.bfloat16
        torch.func.vmap(lambda one: linear_activation(one, linear))(tokens)
        torch.compile(lambda one: linear_activation(one, linear), fullgraph=True, backend="eager")(tokens)
        assert not calls


class TestWithGradients:
    """On an AMD CPU without AVX-512, where torch would multiply by MKL."""

    @pytest.fixture(autouse=True)
    def calls(self, monkeypatch):
        found = []

        def compute(*given):
            found.append(given)
            return linear_op.multiply(*given)

        monkeypatch.setattr(projection, "matmul_library", lambda: "torch")
        monkeypatch.setattr(projection, "is_amd", lambda: True)
        monkeypatch.setattr(projection, "uses_own_kernel", lambda: True)
        monkeypatch.setattr(projection, "_MIN_PRODUCTS_TRAINED", 1)
        monkeypatch.setattr(projection, "multiply", compute)
        return found

    @staticmethod
    def make(bias=True, frozen=()):
        generator = torch.Generator().manual_seed(7)
        shapes = {"tokens": (3, 31, 61), "weight": (67, 61), "bias": (67,)}
        drawn = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        if not bias:
            del drawn["bias"]
        return {name: tensor.requires_grad_(name not in frozen) for name, tensor in drawn.items()}

    @staticmethod
    def compute(leaves, activation="identity"):
        linear = nn.Linear(61, 67, bias="bias" in leaves)
        for name in ("weight", "bias"):
            if name in leaves:
                linear.register_parameter(name, nn.Parameter(leaves[name].detach(), leaves[name].requires_grad))
        output = linear_activation(leaves["tokens"], linear, activation)
        upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(8))
        asked = [one for one in (leaves["tokens"], *linear.parameters()) if one.requires_grad]
        return output, torch.autograd.grad(output, asked, upstream)

    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("frozen", [(), ("tokens",), ("weight", "bias"), ("tokens", "bias")])
    def test_equals_float64(self, calls, frozen, bias):
        leaves = self.make(bias, frozen)
        output, found = self.compute(leaves)
        assert len(calls) == (1 if "tokens" in frozen else 2)  # the gradient of the tokens is a product too
        wide = [leaf.detach().double().requires_grad_(leaf.requires_grad) for leaf in leaves.values()]
        expected = nn.functional.linear(*wide)
        torch.testing.assert_close(output.double(), expected, atol=1e-4, rtol=1e-5)
        upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(8)).double()
        asked = [one for one in wide if one.requires_grad]
        for mine, best in zip(found, torch.autograd.grad(expected, asked, upstream), strict=True):
            torch.testing.assert_close(mine.double(), best, atol=1e-4, rtol=1e-5)

    def test_activations_follow(self, calls):
        leaves = self.make()
        output, _ = self.compute(leaves, "gelu")
        expected = nn.functional.gelu(nn.functional.linear(*(leaf.double() for leaf in leaves.values())))
        torch.testing.assert_close(output.double(), expected, atol=1e-4, rtol=1e-5)
        assert len(calls) == 2

    def test_second_derivatives_are_torchs(self):
        linear, tokens = nn.Linear(61, 67), torch.randn(97, 61, requires_grad=True)
        (first,) = torch.autograd.grad(linear_activation(tokens, linear).square().sum(), tokens, create_graph=True)
        (found,) = torch.autograd.grad(first.sin().sum(), linear.weight)
        wide, weight = tokens.detach().double().requires_grad_(), linear.weight.detach().double().requires_grad_()
        output = nn.functional.linear(wide, weight, linear.bias.detach().double())
        (first,) = torch.autograd.grad(output.square().sum(), wide, create_graph=True)
        torch.testing.assert_close(
            found.double(), torch.autograd.grad(first.sin().sum(), weight)[0], atol=1e-3, rtol=1e-4
        )

    def test_bits_do_not_depend_on_threads(self):
        leaves = self.make()
        assert_same_bits(
            lambda: (lambda found: [found[0].detach(), found[1][0]])(self.compute(leaves)), threads=(1, 2, 5)
        )

    def test_not_for_few_products_or_in_half_precision_or_transforms(self, calls, monkeypatch):
        linear, tokens = nn.Linear(62, 67), torch.randn(3, 97, 62)
        linear_activation(tokens.bfloat16(), linear.bfloat16())
        linear = linear.float()
        with torch.autocast("cpu", torch.bfloat16):
            linear_activation(tokens, linear)
        torch.func.vmap(lambda one: linear_activation(one, linear))(tokens)
        torch.compile(lambda one: linear_activation(one, linear), fullgraph=True, backend="eager")(tokens)
        monkeypatch.setattr(projection, "_MIN_PRODUCTS_TRAINED", 2**30)
        linear_activation(tokens, linear)
        assert not calls


def test_tensors_that_the_kernel_does_not_take():
    tokens, weight, bias = make_problem(97, 62, 67, torch.float32)
    assert can_multiply(tokens, weight, bias)
    assert not can_multiply(tokens, torch.randn(62, 67).t(), bias)
    assert not can_multiply(tokens, weight, torch.randn(67, 2)[:, 0])
    assert not can_multiply(tokens[:, :61], weight, bias)
    assert not can_multiply(tokens.to_sparse(), weight, bias)
    assert not can_multiply(tokens.half(), weight.half(), None)
    assert not can_multiply(tokens, weight.bfloat16(), bias)
