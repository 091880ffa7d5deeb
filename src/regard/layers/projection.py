"""A linear layer and the activation after it, by what multiplies fastest on this CPU.

    y = activation(x W^T + b)              x (.., in), W (out, in), b (out) -> y (.., out)
    dx = dy W,  dW = dy^T x,  db = sum dy  the gradients of x W^T + b

Regard's own kernels multiply (``kernels/operators``):

    few tokens      ``projection_op``: a decoding step takes as long as reading the weights, and both libraries below
                    read them at half of the rate that memory allows
    many tokens     ``linear_op``: on AMD CPUs in float32, and in bfloat16 where products of pairs are fast, or no
                    AVX-512 is. With gradients it computes y and dx on AMD CPUs without AVX-512
    dW and db       ``weight_gradient_op``, beside oneDNN, which would first copy columns to rows

What they do not compute is left to a library. torch multiplies float32 by MKL, which on an AMD CPU with AVX-512 uses
half of the vector width, and makes further passes over the result for the bias (in bfloat16) and for the activation.
oneDNN, which comes with torch, does all of it in one pass on a CPU with AVX-512; in training for the three products, in
float32 (torch itself uses it in bfloat16). With an activation that oneDNN has, and in bfloat16, it is always used. What
else it is used for is one of ``MATMUL_LIBRARIES``, unless the environment variable REGARD_LINEAR names another:

    onednn          all products: on AMD Zen 5, where it is twice as fast as MKL
    onednn-large    large products: AMD Zen 4 needs two cycles for a whole vector, so that MKL's halves cost it little
                    (oneDNN is 1.15 times as fast)
    torch           none: on an Intel CPU, where MKL uses the whole vector width (oneDNN: 0.98 times as fast), and
                    without AVX-512

A name alone, such as "onednn", leaves out the own kernels; "onednn+own" is oneDNN and the own kernels. Weights are
packed in each call, which costs little from some 16 rows on, so no packed copy can become stale.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, TypeGuard, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import unknown_name_error
from regard.kernels.autograd_function import Function
from regard.kernels.operators.activation_op import NATIVE_ACTIVATIONS, activate
from regard.kernels.operators.linear_op import can_multiply, multiplies, multiply
from regard.kernels.operators.projection_op import can_project, project
from regard.kernels.operators.weight_gradient_op import can_compute_weight_gradient, weight_gradient
from regard.kernels.tracing import any_requires_grad, is_eager_backward, is_plain_call
from regard.layers.plain_module import has_global_hooks, is_unmodified
from regard.layers.quantized_linear import QuantizedLinear

_MIN_PRODUCTS_OF_OWN = 2**16
"""Number of multiplications from which the own kernel for many tokens is faster than torch, on AMD Zen 4."""
_MIN_ROWS = {torch.float32: 16, torch.bfloat16: 2}
_MIN_PRODUCTS = 2**21
_MIN_ROWS_TRAINED = {torch.float32: 32}
_MIN_PRODUCTS_TRAINED = 2**23
"""Number of multiplications from which oneDNN is faster; measured on AMD Zen 5 for widths from 64 to 4,096."""
_ROWS_AT_ONCE = 2048
"""Rows that the gradient of a weight sums in one product; with 16,384 rows of width 512 it takes 1.6 times as long."""
_BESIDE_OWN = "+own"
MATMUL_LIBRARIES = ("onednn", "onednn-large", "torch")
_OF_ZEN_5 = ("avx_vnni", "avx512_vp2intersect")
"""Instructions that AMD's CPUs with AVX-512 have from Zen 5 on."""
_MIN_LARGE_PRODUCTS, _MIN_LARGE_WIDTH = 2**26, 384
"""Number of multiplications that "onednn-large" takes to be large, and in training also the least width: from there on
oneDNN takes 0.7 to 0.95 of the time on AMD Zen 4, and with gradients 0.75 to 1.05 (of width 256 as long as MKL).
"""


@final
class Activation(NamedTuple):
    """Elementwise activation: its function, and oneDNN's name and algorithm of it (None if it has none)."""

    apply: Callable[[Tensor], Tensor]
    onednn_name: tuple[str, str] | None


ACTIVATIONS = {
    "identity": Activation(lambda tensor: tensor, ("none", "")),
    "relu": Activation(functional.relu, ("relu", "")),
    "gelu": Activation(partial(activate, activation="gelu"), ("gelu", "none")),
    "gelu_tanh": Activation(partial(activate, activation="gelu_tanh"), ("gelu", "tanh")),
    "silu": Activation(partial(activate, activation="silu"), ("swish", "")),
    "sigmoid": Activation(functional.sigmoid, ("sigmoid", "")),
    "relu_squared": Activation(lambda tensor: functional.relu(tensor).square(), None),
    "quick_gelu": Activation(partial(activate, activation="quick_gelu"), None),
}


def linear_activation(tokens: Tensor, projection: nn.Module, activation: str = "identity") -> Tensor:
    """Compute ``projection(tokens)`` and apply the named activation: (.., in) -> (.., out)."""
    form = ACTIVATIONS[activation]
    if (
        isinstance(projection, QuantizedLinear)
        and is_unmodified(projection)
        and projection.can_activate(tokens, activation)
    ):
        return projection.activate(tokens, activation)
    if not is_plain_linear(projection):
        return form.apply(projection(tokens))
    weight, bias = _read_parameters(projection)
    if uses_own_kernel() and can_project(tokens, weight, bias):
        output = project(tokens, weight, bias)
        return output if activation == "identity" else form.apply(output)
    if _uses_own_product(tokens, weight, bias):
        fused = activation if activation in NATIVE_ACTIVATIONS else "identity"
        output = multiply(tokens, weight, bias, fused)
        return output if fused == activation else form.apply(output)
    if _trains_by_own_product(tokens, weight, bias):
        return form.apply(_OwnLinear.apply(tokens, weight, bias))
    if not _should_use_onednn(tokens, projection, form) or _find_onednn() is None:
        return form.apply(projection(tokens))
    if any_requires_grad(tokens, weight, bias):
        return form.apply(_OneDNNLinear.apply(tokens, weight, bias))
    if form.onednn_name is None:
        return form.apply(projection(tokens))
    return _onednn_linear(tokens, weight, bias, *form.onednn_name)


def _read_parameters(projection: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of a plain linear layer, in a third of the time that its attributes take."""
    parameters = projection._parameters
    weight = parameters["weight"]
    assert weight is not None, "a plain linear layer has a weight"
    return weight, parameters["bias"]


@final
class _OwnLinear(Function):
    """Linear layer x W^T + b whose y and dx = dy W are computed by regard's kernel for many tokens."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute x W^T + b, (.., out)."""
        ctx.save_for_backward(tokens, weight)
        return multiply(tokens, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of the inputs; by torch if they will be differentiated again."""
        (gradient,), (tokens, weight) = gradients, ctx.saved_tensors
        of_tokens, of_weight, of_bias = ctx.needs_input_grad
        inputs, outputs = tokens.reshape(-1, tokens.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
        grad_tokens = None
        if of_tokens:
            grad_tokens = _multiply_columns(outputs, weight) if is_eager_backward(gradient) else outputs @ weight
            grad_tokens = grad_tokens.view(tokens.shape)
        return grad_tokens, outputs.t() @ inputs if of_weight else None, outputs.sum(dim=0) if of_bias else None


@final
class _OneDNNLinear(Function):
    """Linear layer x W^T + b with its gradients dx = dy W, dW = dy^T x and db = sum dy, by oneDNN."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute x W^T + b, (.., out)."""
        ctx.save_for_backward(tokens, weight)
        return _onednn_linear(tokens, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of the inputs; by torch if they will be differentiated again."""
        (gradient,), (tokens, weight) = gradients, ctx.saved_tensors
        eager = is_eager_backward(gradient)
        multiplied = _onednn_linear if eager else functional.linear
        of_tokens, of_weight, of_bias = ctx.needs_input_grad
        inputs, outputs = tokens.reshape(-1, tokens.shape[-1]), gradient.reshape(-1, gradient.shape[-1]).contiguous()
        grad_tokens = multiplied(outputs, weight.t()).view(tokens.shape) if of_tokens else None
        if of_weight and eager and uses_own_kernel() and can_compute_weight_gradient(inputs, outputs):
            return (grad_tokens, *weight_gradient(inputs, outputs, of_bias=of_bias))
        return (
            grad_tokens,
            _transposed_product(outputs, inputs, multiplied) if of_weight else None,
            outputs.sum(dim=0) if of_bias else None,
        )


def _multiply_columns(outputs: Tensor, weight: Tensor) -> Tensor:
    """Compute dy W by regard's kernel, which takes the columns of W as rows, or by torch where it cannot."""
    outputs, columns = outputs.contiguous(), weight.t().contiguous()
    return multiply(outputs, columns, None) if can_multiply(outputs, columns, None) else outputs @ weight


def _onednn_linear(
    left: Tensor, right: Tensor, bias: Tensor | None = None, activation: str = "none", algorithm: str = ""
) -> Tensor:
    """Compute activation(left right^T + bias) by oneDNN."""
    onednn = _find_onednn()
    assert onednn is not None, "callers check that oneDNN is available"
    return onednn(left, right, bias, activation, [], algorithm)


def _transposed_product(left: Tensor, right: Tensor, multiplied: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Compute left^T right such that oneDNN packs the larger matrix, which costs less than transposing it first.

    Rows are summed a few thousand at a time: oneDNN's packed panels of more rows exceed the cache.
    """
    swapped = left.shape[1] > right.shape[1]
    total: Tensor | None = None
    for some, others in zip(left.split(_ROWS_AT_ONCE), right.split(_ROWS_AT_ONCE), strict=True):
        part = multiplied(others.t(), some.t()) if swapped else multiplied(some.t(), others.t())
        total = part if total is None else total + part
    assert total is not None, "oneDNN is used from some number of rows on"
    return total.t().contiguous() if swapped else total


@cache
def _find_onednn() -> Callable[..., Tensor] | None:
    """Find oneDNN's linear operator, which torch has for its compiler; None if this torch or machine lacks it."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available():
        return None
    try:
        operator = cast("Callable[..., Tensor]", torch.ops.mkldnn._linear_pointwise.default)
        operator(torch.zeros(1, 1), torch.zeros(1, 1), None, "none", [], "")  # not a public API of torch: it may change
    except (AttributeError, RuntimeError, TypeError):
        return None
    return operator


@cache
def matmul_library() -> str:
    """Name of what multiplies float32 in training or without activation, one of ``MATMUL_LIBRARIES``.

    Set by REGARD_LINEAR, else by the CPU: a measurement would change with what else the machine does, and so the last
    bits of results. Raises OptionError for a name that this machine does not have.
    """
    named = os.environ.get("REGARD_LINEAR", "").removesuffix(_BESIDE_OWN)
    if named and named not in matmul_libraries():
        raise unknown_name_error("library in the environment variable REGARD_LINEAR", named, matmul_libraries())
    if named or _find_onednn() is None or not is_amd():
        return named or "torch"
    return "onednn" if any(map(_has_instruction, _OF_ZEN_5)) else "onednn-large"


def matmul_libraries() -> tuple[str, ...]:
    """The names of ``MATMUL_LIBRARIES`` that this machine has."""
    return ("torch",) if _find_onednn() is None else MATMUL_LIBRARIES


@cache
def is_amd() -> bool:
    """Whether the CPU is one of AMD's, on which MKL multiplies below the peak rate."""
    return _has_instruction("sse4a")  # which they alone have


def _has_instruction(name: str) -> bool:
    """Whether this CPU has an instruction, by its name in torch."""
    read = getattr(torch.cpu, "get_capabilities", None)  # which older torch lacks
    return read is not None and bool(read().get(name, False))


def linear_backend() -> str:
    """The library of linear layers, as in REGARD_LINEAR; "onednn+own" has our kernels beside oneDNN."""
    library = matmul_library()  # raises for an unknown name
    return os.environ.get("REGARD_LINEAR") or library + _BESIDE_OWN


def linear_backends() -> tuple[str, ...]:
    """Names of what can multiply on this machine."""
    return tuple(library + ending for library in matmul_libraries() for ending in ("", _BESIDE_OWN))


@cache
def uses_own_kernel() -> bool:
    """Whether regard's own kernels multiply tokens, and the gradients of weights.

    They do unless REGARD_LINEAR names a library alone, for all linear layers.
    """
    named = os.environ.get("REGARD_LINEAR", "")
    return not named or named.endswith(_BESIDE_OWN)


def is_plain_linear(projection: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether ``projection`` is an unmodified ``nn.Linear`` without hooks: not adapted, quantised or wrapped."""
    return (
        not torch.compiler.is_compiling()
        and type(projection) is nn.Linear
        and is_unmodified(projection)
        and not has_global_hooks()
        and "weight" in projection._parameters
        and "bias" in projection._parameters
    )


def _uses_own_product(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether regard's kernel for many tokens computes this call, and is expected to be faster than the libraries."""
    return (
        _count_rows(tokens) * weight.numel() >= _MIN_PRODUCTS_OF_OWN
        and uses_own_kernel()
        and not any_requires_grad(tokens, weight, bias)
        and can_multiply(tokens, weight, bias)
        and is_plain_call(tokens, weight, bias)
        and multiplies_many(tokens.dtype)
    )


def _trains_by_own_product(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether regard's kernel computes this call with gradients: where torch would by MKL, on an AMD CPU."""
    return (
        tokens.dtype is torch.float32
        and _count_rows(tokens) * weight.numel() >= _MIN_PRODUCTS_TRAINED
        and any_requires_grad(tokens, weight, bias)
        and is_amd()
        and matmul_library() == "torch"
        and uses_own_kernel()
        and can_multiply(tokens, weight, bias)
        and is_plain_call(tokens, weight, bias)
    )


def multiplies_many(dtype: torch.dtype) -> bool:
    """Whether regard's kernel for many tokens is expected to be faster than the libraries for this dtype."""
    return multiplies(dtype) and (dtype is not torch.float32 or matmul_library() != "torch" or is_amd())


def _count_rows(tokens: Tensor) -> int:
    return tokens.numel() // max(1, tokens.shape[-1])


def _should_use_onednn(tokens: Tensor, projection: nn.Linear, form: Activation) -> bool:
    """Whether oneDNN supports this call and is expected to be faster."""
    weight, bias = projection.weight, projection.bias
    trained = any_requires_grad(tokens, weight, bias)
    bare = trained or form is ACTIVATIONS["identity"]
    min_rows = (_MIN_ROWS_TRAINED if trained else _MIN_ROWS).get(tokens.dtype)
    products = _MIN_PRODUCTS_TRAINED if trained else _MIN_PRODUCTS
    if min_rows is None or tokens.dtype != weight.dtype or tokens.shape[-1:] != weight.shape[1:]:
        return False
    rows = _count_rows(tokens)
    return (
        rows >= min_rows
        and rows * weight.numel() >= products
        and all(tensor.is_cpu and tensor.layout is torch.strided for tensor in (tokens, weight))
        and is_plain_call(tokens, weight, bias)
        and bool(torch.backends.mkldnn.enabled)
        and (tokens.dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
        and (tokens.dtype != torch.float32 or not bare or _is_onednn_faster(rows, weight, trained=trained))
    )


def _is_onednn_faster(rows: int, weight: Tensor, *, trained: bool) -> bool:
    """Whether a bare product in float32 is left to oneDNN."""
    library = matmul_library()
    if library != "onednn-large":
        return library == "onednn"
    is_large = rows * weight.numel() >= _MIN_LARGE_PRODUCTS
    return is_large and (not trained or min(weight.shape) >= _MIN_LARGE_WIDTH)
