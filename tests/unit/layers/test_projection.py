"""A linear layer with its activation: results against float64, and when the oneDNN path is and is not used.

Also in training. The error of a matrix product whose sums have K terms is at most (K + 4) eps times the product of the
absolute values: Higham 2002, "Accuracy and stability of numerical algorithms", section 3.5.
"""

import copy
import io
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from regard.layers import projection
from regard.layers.projection import ACTIVATIONS, linear_activation

ROWS, SMALLER, LARGER = 17, 359, 367
"""Prime, and large enough for the oneDNN path."""
MANY = 89
"""Number of rows that is enough for it in training."""

FORMULAS = {
    "identity": lambda x: x,
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "relu_squared": lambda x: x.clamp(min=0) ** 2,
    "quick_gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
}
"""Hendrycks and Gimpel 2016; Elfwing et al. 2018; So et al. 2021."""


def make_linear(dtype=torch.float32, bias=True):
    return nn.Linear(SMALLER, LARGER, bias=bias).to(dtype)


def expected(tokens, linear, activation="identity"):
    bias = 0 if linear.bias is None else linear.bias.detach().double()
    return FORMULAS[activation](tokens.detach().double() @ linear.weight.detach().double().T + bias)


@pytest.fixture
def onednn_calls(monkeypatch):
    """List the calls that use the oneDNN path, on any machine: torch in float64 replaces oneDNN.

    The replacement also multiplies bfloat16, on any processor.
    """
    calls = []

    def compute(tokens, weight, bias, name, scalars, algorithm):
        calls.append(name)
        output = functional.linear(tokens.double(), weight.double(), None if bias is None else bias.double())
        activation = next(form.apply for form in ACTIVATIONS.values() if form.onednn_name == (name, algorithm))
        return activation(output).to(tokens.dtype)

    monkeypatch.setattr(projection, "_find_onednn", lambda: compute)
    monkeypatch.setattr(projection, "can_multiply", lambda *_: False)  # the kernel has its own tests
    monkeypatch.setattr(projection, "matmul_library", lambda: "onednn")
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    return calls


class TestValues:
    """Results on this machine, by oneDNN or torch."""

    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
    @pytest.mark.parametrize("activation", ACTIVATIONS)
    @torch.no_grad()
    def test_activations(self, activation, dtype, tolerance, bias):
        linear, tokens = make_linear(dtype, bias), torch.randn(3, ROWS, SMALLER, dtype=dtype)
        output = linear_activation(tokens, linear, activation)
        assert output.dtype == dtype
        torch.testing.assert_close(
            output.double(), expected(tokens, linear, activation), atol=tolerance, rtol=tolerance
        )

    @torch.no_grad()
    def test_strided_tokens_and_weights(self):
        linear, tokens = make_linear(), torch.randn(ROWS, SMALLER, 3).permute(2, 0, 1)
        linear.weight = nn.Parameter(torch.randn(SMALLER, LARGER).t() / 19)
        torch.testing.assert_close(
            linear_activation(tokens, linear).double(), expected(tokens, linear), atol=1e-5, rtol=1e-5
        )

    @pytest.mark.parametrize("shape", [(0, ROWS), (3, 0)])
    @torch.no_grad()
    def test_no_tokens(self, shape):
        assert linear_activation(torch.randn(*shape, SMALLER), make_linear()).shape == (*shape, LARGER)

    @torch.no_grad()
    def test_nonfinite_token_affects_only_its_row(self):
        linear, tokens = make_linear(), torch.randn(3, ROWS, SMALLER)
        clean = linear_activation(tokens, linear, "gelu")
        tokens[1, 5, 7] = float("nan")
        output = linear_activation(tokens, linear, "gelu")
        assert output[1, 5].isnan().all()
        output[1, 5] = clean[1, 5]
        assert torch.equal(output, clean)


class TestOneDnnPath:
    """When the oneDNN path is used."""

    @torch.no_grad()
    def test_without_gradients(self, onednn_calls):
        linear, tokens = make_linear(), torch.randn(ROWS, SMALLER)
        torch.testing.assert_close(linear_activation(tokens, linear, "gelu"), functional.gelu(linear(tokens)))
        assert onednn_calls == ["gelu"]

    def test_with_frozen_weights(self, onednn_calls):
        linear_activation(torch.randn(ROWS, SMALLER), make_linear().requires_grad_(False))
        assert onednn_calls == ["none"]

    def test_not_in_training_with_few_rows(self, onednn_calls):
        linear, tokens = make_linear(), torch.randn(ROWS, SMALLER, requires_grad=True)
        linear_activation(tokens, linear, "silu").sum().backward()
        assert not onednn_calls
        assert all(tensor.grad is not None for tensor in (tokens, linear.weight, linear.bias))

    @pytest.mark.parametrize(
        ("rows", "dtype"), [(15, torch.float32), (1, torch.bfloat16), (ROWS, torch.float64), (ROWS, torch.float16)]
    )
    @torch.no_grad()
    def test_not_if_torch_is_faster_or_the_dtype_unsupported(self, onednn_calls, rows, dtype):
        linear_activation(torch.randn(rows, SMALLER, dtype=dtype), make_linear(dtype))
        assert not onednn_calls

    @torch.no_grad()
    def test_not_without_bfloat16_support(self, onednn_calls, monkeypatch):
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
        linear_activation(torch.randn(ROWS, SMALLER, dtype=torch.bfloat16), make_linear(torch.bfloat16), "gelu")
        assert not onednn_calls

    def test_only_with_an_activation_if_products_are_no_faster(self, onednn_calls, monkeypatch):
        monkeypatch.setattr(projection, "matmul_library", lambda: "torch")
        linear = make_linear()
        linear_activation(torch.randn(MANY, SMALLER), linear, "gelu")  # trained
        with torch.no_grad():
            linear_activation(torch.randn(MANY, SMALLER), linear)
            assert not onednn_calls
            linear_activation(torch.randn(MANY, SMALLER), linear, "gelu")
            linear_activation(torch.randn(MANY, SMALLER, dtype=torch.bfloat16), make_linear(torch.bfloat16))
        assert onednn_calls == ["gelu", "none"]

    @pytest.mark.parametrize(
        ("rows", "inputs", "outputs", "trained", "used"),
        [
            (513, 512, 257, False, True),
            (511, 512, 256, False, False),  # too few products
            (257, 512, 512, True, True),
            (256, 512, 511, True, False),
            (4099, 256, 2048, True, False),  # too narrow
        ],
    )
    def test_large_products_where_it_is_a_little_faster(
        self, onednn_calls, monkeypatch, rows, inputs, outputs, trained, used
    ):
        monkeypatch.setattr(projection, "matmul_library", lambda: "onednn-large")
        linear = nn.Linear(inputs, outputs, bias=False).requires_grad_(trained)
        linear_activation(torch.randn(rows, inputs), linear)
        assert bool(onednn_calls) == used

    @pytest.mark.parametrize(
        ("instructions", "library"),
        [
            (["sse4a", "avx_vnni", "avx512_vp2intersect"], "onednn"),
            (["sse4a"], "onednn-large"),
            (["avx_vnni", "avx512_vp2intersect"], "torch"),
            ([], "torch"),
        ],
        ids=["Zen 5", "Zen 4", "Intel", "other"],
    )
    def test_the_library_follows_from_the_processor(self, onednn_calls, monkeypatch, instructions, library):
        """It is not measured, so a busy machine multiplies as an idle one does."""
        monkeypatch.undo()
        monkeypatch.delenv("REGARD_LINEAR", raising=False)
        monkeypatch.setattr(projection, "_find_onednn", lambda: lambda *_: None)
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(instructions, True), raising=False)
        for choice in (projection.is_amd, projection.matmul_library):
            choice.cache_clear()
        assert projection.matmul_library() == library
        for choice in (projection.is_amd, projection.matmul_library):
            choice.cache_clear()

    @torch.no_grad()
    def test_not_in_narrow_layers(self, onednn_calls):
        linear_activation(torch.randn(ROWS, 13), nn.Linear(13, 11))
        assert not onednn_calls

    @torch.no_grad()
    def test_not_with_an_unsupported_activation(self, onednn_calls):
        linear_activation(torch.randn(ROWS, SMALLER), make_linear(), "relu_squared")
        assert not onednn_calls

    @torch.no_grad()
    def test_not_if_disabled(self, onednn_calls, monkeypatch):
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
        linear_activation(torch.randn(ROWS, SMALLER), make_linear())
        assert not onednn_calls

    @torch.no_grad()
    def test_not_with_sparse_weights(self, onednn_calls):
        linear, tokens = make_linear(bias=False), torch.randn(ROWS, SMALLER)
        output = linear(tokens)
        linear.weight = nn.Parameter(linear.weight.to_sparse())
        torch.testing.assert_close(linear_activation(tokens, linear), output)
        assert not onednn_calls

    @torch.no_grad()
    def test_not_under_autocast(self, onednn_calls):
        with torch.autocast("cpu", torch.bfloat16):
            assert linear_activation(torch.randn(ROWS, SMALLER), make_linear()).dtype == torch.bfloat16
        assert not onednn_calls

    @torch.no_grad()
    def test_not_under_vmap(self, onednn_calls):
        linear, tokens = make_linear(), torch.randn(3, ROWS, SMALLER)
        output = torch.func.vmap(lambda one: linear_activation(one, linear))(tokens)
        torch.testing.assert_close(output, linear(tokens))
        assert not onednn_calls

    @torch.no_grad()
    def test_not_with_forward_derivatives(self, onednn_calls):
        linear, tokens, tangent = make_linear(), torch.randn(ROWS, SMALLER), torch.randn(ROWS, SMALLER)
        with torch.autograd.forward_ad.dual_level():
            output = linear_activation(torch.autograd.forward_ad.make_dual(tokens, tangent), linear)
            found = torch.autograd.forward_ad.unpack_dual(output).tangent
        torch.testing.assert_close(found, tangent @ linear.weight.T)
        assert not onednn_calls

    @torch.no_grad()
    def test_not_in_a_traced_graph(self, onednn_calls):
        linear, tokens = make_linear(), torch.randn(ROWS, SMALLER)
        compiled = torch.compile(lambda one: linear_activation(one, linear, "gelu"), fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(tokens), functional.gelu(linear(tokens)))
        assert not onednn_calls


def gradients(tokens, linear, upstream):
    """Return the gradients in float64, and for each the sum of the absolute values of its terms."""
    dy, x, w = (tensor.detach().double() for tensor in (upstream.flatten(0, -2), tokens.flatten(0, -2), linear.weight))
    result = {"tokens": (dy @ w).view(tokens.shape), "weight": dy.T @ x, "bias": dy.sum(dim=0)}
    sizes = {
        "tokens": (dy.abs() @ w.abs()).view(tokens.shape),
        "weight": dy.abs().T @ x.abs(),
        "bias": dy.abs().sum(dim=0),
    }
    return result, sizes


class TestTraining:
    """Gradients on this machine, by oneDNN or torch."""

    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("sizes", [(SMALLER, LARGER), (LARGER, SMALLER), (LARGER, LARGER)])
    @pytest.mark.parametrize("strided", [False, True])
    def test_gradients(self, sizes, bias, strided):
        linear = nn.Linear(*sizes, bias=bias)
        tokens, upstream = torch.randn(3, MANY, sizes[0]), torch.randn(3, MANY, sizes[1])
        if strided:
            tokens, upstream = (tensor.transpose(0, 2).contiguous().transpose(0, 2) for tensor in (tokens, upstream))
        tokens.requires_grad_()
        output = linear_activation(tokens, linear)
        output.backward(upstream)
        torch.testing.assert_close(output.double(), expected(tokens, linear), atol=1e-5, rtol=1e-5)
        found, largest = gradients(tokens, linear, upstream)
        terms = max(3 * MANY, *sizes)
        ours = {"tokens": tokens.grad} | {name: parameter.grad for name, parameter in linear.named_parameters()}
        for name, gradient in ours.items():
            bound = (terms + 4) * torch.finfo(torch.float32).eps * largest[name]
            assert ((gradient.double() - found[name]).abs() <= bound).all(), name
            assert gradient.is_contiguous() or name == "tokens"

    @pytest.mark.parametrize("sizes", [(SMALLER, LARGER), (LARGER, SMALLER)])
    def test_gradient_of_a_weight_with_rows_in_several_parts(self, sizes, onednn_calls, monkeypatch):
        monkeypatch.setattr(projection, "uses_own_kernel", lambda: False)
        linear, rows = nn.Linear(*sizes), 2 * projection._ROWS_AT_ONCE + 1
        tokens, upstream = torch.randn(rows, sizes[0]), torch.randn(rows, sizes[1])
        linear_activation(tokens, linear).backward(upstream)
        assert len(onednn_calls) == 1 + 3  # the output, and three parts
        found, largest = gradients(tokens, linear, upstream)
        bound = rows * torch.finfo(torch.float32).eps * largest["weight"]
        assert ((linear.weight.grad.double() - found["weight"]).abs() <= bound).all()
        assert linear.weight.grad.is_contiguous()

    @pytest.mark.parametrize("activation", ACTIVATIONS)
    def test_activations(self, activation):
        linear, tokens = make_linear(), torch.randn(MANY, SMALLER)
        wide = copy.deepcopy(linear).double()
        outputs = []
        for one, inputs in ((linear, tokens.requires_grad_()), (wide, tokens.detach().double().requires_grad_())):
            outputs.append(
                ACTIVATIONS[activation].apply(one(inputs))
                if one is wide
                else linear_activation(inputs, one, activation)
            )
            outputs[-1].square().sum().backward()
            outputs.append(inputs.grad)
        torch.testing.assert_close(outputs[0].double(), outputs[2], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(outputs[1].double(), outputs[3], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(linear.weight.grad.double(), wide.weight.grad, atol=1e-3, rtol=1e-4)

    def test_gradient_with_strides_of_0(self):
        """The gradient of a sum has strides of 0."""
        linear, tokens = make_linear(), torch.randn(MANY, SMALLER, requires_grad=True)
        linear_activation(tokens, linear).sum().backward()
        found, sizes = gradients(tokens, linear, torch.ones(MANY, LARGER))
        for name, gradient in (("tokens", tokens.grad), ("weight", linear.weight.grad), ("bias", linear.bias.grad)):
            assert ((gradient.double() - found[name]).abs() <= (LARGER + 4) * 2**-23 * sizes[name]).all(), name

    def test_gradients_accumulate(self):
        linear, tokens = make_linear(), torch.randn(MANY, SMALLER)
        linear_activation(tokens, linear).sum().backward()
        once = linear.weight.grad.clone()
        linear_activation(tokens, linear).sum().backward()
        torch.testing.assert_close(linear.weight.grad, 2 * once)

    def test_second_derivative(self):
        """Second derivative of sum (x W^T + b)^3, through the square of its gradient."""
        linear, inputs, results = make_linear(), torch.randn(MANY, SMALLER), []
        for dtype in (torch.float32, torch.float64):
            one, tokens = copy.deepcopy(linear).to(dtype), inputs.clone().to(dtype).requires_grad_()
            output = linear_activation(tokens, one) if dtype == torch.float32 else one(tokens)
            (first,) = torch.autograd.grad(output.pow(3).sum(), tokens, create_graph=True)
            first.square().sum().backward()
            results.append([gradient.double() for gradient in (tokens.grad, one.weight.grad, one.bias.grad)])
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5 * theirs.abs().max().item())

    def test_inplace_change_before_backward_raises(self):
        linear, tokens = make_linear(), torch.randn(MANY, SMALLER, requires_grad=True)
        output = linear_activation(tokens, linear)
        with torch.no_grad():
            linear.weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_under_checkpointing(self, reentrant):
        linear, inputs, results = make_linear(), torch.randn(MANY, SMALLER), []
        for run in (linear_activation, partial(checkpoint, linear_activation, use_reentrant=reentrant)):
            tokens, linear.weight.grad = inputs.clone().requires_grad_(), None
            run(tokens, linear, "relu").sum().backward()
            results.append((tokens.grad, linear.weight.grad))
        assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


class TestOneDnnPathInTraining:
    """When the oneDNN path is used with gradients."""

    @pytest.mark.parametrize(
        ("trained", "calls"),
        [
            (("tokens", "weight", "bias"), 3),
            (("weight",), 2),
            (("tokens",), 2),
            (("bias",), 1),
            (("weight", "bias"), 2),
        ],
    )
    def test_for_the_output_and_each_required_gradient(self, onednn_calls, trained, calls):
        linear, tokens = make_linear().requires_grad_(False), torch.randn(MANY, SMALLER)
        leaves = {"tokens": tokens, "weight": linear.weight, "bias": linear.bias}
        for name in trained:
            leaves[name].requires_grad_()
        linear_activation(tokens, linear, "gelu").sum().backward()
        assert onednn_calls == ["none"] * calls
        assert {name for name, leaf in leaves.items() if leaf.grad is not None} == set(trained)

    def test_with_any_activation(self, onednn_calls):
        linear_activation(torch.randn(MANY, SMALLER), make_linear(), "relu_squared")
        assert len(onednn_calls) == 1

    @pytest.mark.parametrize(("rows", "dtype"), [(31, torch.float32), (MANY, torch.bfloat16), (MANY, torch.float64)])
    def test_not_if_torch_is_as_fast(self, onednn_calls, rows, dtype):
        linear_activation(torch.randn(rows, SMALLER, dtype=dtype), nn.Linear(SMALLER, 997, dtype=dtype))
        assert not onednn_calls

    def test_not_for_second_derivatives(self, onednn_calls):
        tokens = torch.randn(MANY, SMALLER, requires_grad=True)
        output = linear_activation(tokens, make_linear())
        torch.autograd.grad(output.sum(), tokens, create_graph=True)
        assert len(onednn_calls) == 1

    def test_not_under_autocast(self, onednn_calls):
        with torch.autocast("cpu", torch.bfloat16):
            assert linear_activation(torch.randn(MANY, SMALLER), make_linear()).dtype == torch.bfloat16
        assert not onednn_calls

    def test_not_under_transforms(self, onednn_calls):
        linear, tokens = make_linear(), torch.randn(3, MANY, SMALLER)
        actual = torch.func.grad(lambda one: linear_activation(one, linear).square().sum())(tokens)
        tokens.requires_grad_()
        torch.testing.assert_close(actual, torch.autograd.grad(linear(tokens).square().sum(), tokens)[0])
        assert not onednn_calls

    def test_not_in_a_traced_graph(self, onednn_calls):
        linear = make_linear()
        compiled = torch.compile(lambda one: linear_activation(one, linear, "relu"), fullgraph=True, backend="eager")
        compiled(torch.randn(MANY, SMALLER)).sum().backward()
        assert linear.weight.grad is not None
        assert not onednn_calls

    @pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
    def test_not_with_backward_hooks(self, onednn_calls, register):
        linear, hook_calls = make_linear(), []
        handle = getattr(linear, register)(lambda *given: hook_calls.append(len(given)))
        linear_activation(torch.randn(MANY, SMALLER, requires_grad=True), linear).sum().backward()
        assert len(hook_calls) == 1
        assert not onednn_calls
        handle.remove()
        linear_activation(torch.randn(MANY, SMALLER), linear)
        assert len(onednn_calls) == 1

    def test_not_with_global_backward_hooks(self, onednn_calls):
        hook_calls = []
        handle = nn.modules.module.register_module_full_backward_hook(lambda *given: hook_calls.append(len(given)))
        try:
            linear_activation(torch.randn(MANY, SMALLER, requires_grad=True), make_linear()).sum().backward()
        finally:
            handle.remove()
        assert len(hook_calls) == 1
        assert not onednn_calls


class TestModifiedLayers:
    """Layers with hooks, adapters or wrappers work."""

    @pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
    @torch.no_grad()
    def test_hooks_are_called(self, onednn_calls, register):
        linear, hook_calls = make_linear(), []
        handle = getattr(linear, register)(lambda *given: hook_calls.append(len(given)))
        linear_activation(torch.randn(ROWS, SMALLER), linear, "gelu")
        assert len(hook_calls) == 1
        assert not onednn_calls
        handle.remove()
        linear_activation(torch.randn(ROWS, SMALLER), linear, "gelu")
        assert len(onednn_calls) == 1

    @torch.no_grad()
    def test_global_hooks_are_called(self, onednn_calls):
        hook_calls = []
        handle = nn.modules.module.register_module_forward_hook(lambda *given: hook_calls.append(len(given)))
        try:
            linear_activation(torch.randn(ROWS, SMALLER), make_linear())
        finally:
            handle.remove()
        assert len(hook_calls) == 1
        assert not onednn_calls

    @torch.no_grad()
    def test_replaced_forward(self, onednn_calls):
        linear = make_linear()
        linear.forward = lambda tokens: tokens * 0 + 3
        assert torch.equal(linear_activation(torch.randn(ROWS, SMALLER), linear), torch.full((ROWS, SMALLER), 3.0))
        assert not onednn_calls

    @torch.no_grad()
    def test_module_other_than_linear(self, onednn_calls):
        adapted = nn.Sequential(make_linear(), nn.Tanh())
        tokens = torch.randn(ROWS, SMALLER)
        torch.testing.assert_close(linear_activation(tokens, adapted, "relu"), adapted(tokens).relu())
        assert not onednn_calls

    @torch.no_grad()
    def test_parametrized_weights(self, onednn_calls):
        class Doubled(nn.Module):
            def forward(self, weight):
                return 2 * weight

        linear, tokens = make_linear(bias=False), torch.randn(ROWS, SMALLER)
        plain = linear_activation(tokens, linear)
        parametrize.register_parametrization(linear, "weight", Doubled())
        torch.testing.assert_close(linear_activation(tokens, linear), 2 * plain)
        assert len(onednn_calls) == 1


class TestChangedWeights:
    """Changed weights are used, however they change: no old weights are cached."""

    @pytest.fixture
    def linear(self):
        linear = make_linear()
        self.tokens = torch.randn(ROWS, SMALLER)
        self.check(linear)
        return linear

    @torch.no_grad()
    def check(self, linear):
        output = linear_activation(self.tokens, linear)
        torch.testing.assert_close(output.double(), expected(self.tokens, linear), atol=1e-5, rtol=1e-5)

    def test_after_a_training_step(self, linear):
        optimizer = torch.optim.AdamW(linear.parameters(), lr=0.1)
        linear_activation(self.tokens, linear).square().sum().backward()
        optimizer.step()
        self.check(linear)

    def test_after_loading(self, linear):
        linear.load_state_dict(make_linear().state_dict())
        self.check(linear)
        linear.load_state_dict(make_linear().state_dict(), assign=True)
        self.check(linear)

    def test_after_changes_without_a_version_counter(self, linear):
        linear.weight.data.mul_(3)
        self.check(linear)
        linear.weight.detach().numpy()[5] = 7
        self.check(linear)
        with torch.inference_mode():
            linear.bias.add_(1)
        self.check(linear)

    def test_in_a_copy(self, linear):
        other = copy.deepcopy(linear)
        with torch.no_grad():
            other.weight.mul_(2)
        self.check(other)
        self.check(linear)

    def test_in_a_saved_layer(self, linear):
        file = io.BytesIO()
        torch.save(linear, file)
        file.seek(0)
        self.check(torch.load(file, weights_only=False))
