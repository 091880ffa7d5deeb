"""Linear layers with weights of few bits: the native kernels against float64, at sizes that divide nothing.

A token is rounded by groups of inputs as the equations say, here in float64, and multiplied by the weights that the
stored ones stand for. What is left are sums of one float32 product a group: (groups + 8) eps of the sum of their sizes.
A number within 1e-4 of the middle between two bytes may be rounded to either.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from long_lengths import many
from regard.kernels.extension import native
from regard.kernels.operators.integer_linear_op import can_multiply_integers, multiply_integers
from regard.kernels.operators.projection_op import MAX_TOKENS
from regard.layers.quantized_linear import Int4Linear, Int8Linear
from sampled_parameters import parametrize_sample

pytestmark = pytest.mark.skipif(native is None, reason="the kernels are not built")

EPS = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8}
GROUP = 64
FORMATS = [Int8Linear, Int4Linear]
KERNELS = {
    "few": lambda *arrays, **options: native.project(*arrays, **options),
    "many": lambda *arrays, **options: native.linear(*arrays, **options),
}


def make_layer(form, inputs, outputs, dtype, *, bias=True, seed=0):
    torch.manual_seed(seed)
    linear = nn.Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        linear.weight[:: max(1, outputs // 3)] *= 100  # rows and groups of other sizes
        linear.weight[:, : inputs // 3] += 1
    layer = form.from_linear(linear)
    layer.bias = None if layer.bias is None else layer.bias.to(dtype)
    return layer


def run_native(kernel, tokens, layer, threads=1):
    output = tokens.new_full((tokens.shape[0], layer.out_features), float("nan"))
    KERNELS[kernel](tokens, layer.weight, layer.scale, layer.bias, output, threads=threads)
    return output


def dense(layer):
    """The weights in float64, by what csrc/linear/projection_kernels.h says of their bytes."""
    stored, scale = layer.weight.numpy().astype(np.int64), layer.scale.double().numpy()
    o, k = np.indices((layer.out_features, layer.in_features))
    group, place = k // GROUP, k % GROUP // 4 * 64 + o % 16 * 4 + k % 4
    if isinstance(layer, Int8Linear):
        return stored[o // 16, group, place] * scale[o // 16, group, o % 16]
    numbers = stored[o // 16, group // 2, place] >> 4 * (group % 2) & 15
    return numbers * scale[o // 16, group, o % 16] + scale[o // 16, group, 16 + o % 16]


def sizes_of_parts(layer):
    """Bounds of s |w| + |m| of each weight, in float64."""
    if isinstance(layer, Int8Linear):
        return np.abs(dense(layer))
    o, k = np.indices((layer.out_features, layer.in_features))
    scale = np.abs(layer.scale.double().numpy())
    return 15 * scale[o // 16, k // GROUP, o % 16] + scale[o // 16, k // GROUP, 16 + o % 16]


def round_tokens(tokens):
    """The rounded tokens, and how far a number that is near the middle of two bytes may be from them."""
    x = tokens.double().numpy()
    rounded, doubt = np.zeros_like(x), np.zeros_like(x)
    for first in range(0, x.shape[1], GROUP):
        part = x[:, first : first + GROUP]
        step = np.abs(part).max(axis=1, keepdims=True) / 127
        numbers = np.divide(part, step, out=np.zeros_like(part), where=step > 0)
        rounded[:, first : first + GROUP] = np.rint(numbers) * step
        doubt[:, first : first + GROUP] = (np.abs(np.abs(numbers - np.trunc(numbers)) - 0.5) < 1e-4) * step
    return rounded, doubt


def check(kernel, tokens, layer, found=None):
    matrix = dense(layer)
    rounded, doubt = round_tokens(tokens)
    added = 0 if layer.bias is None else layer.bias.double().numpy()
    expected = rounded @ matrix.T + added
    # The products of a group and its minimum are summed apart: the sizes of the terms are those of the parts.
    size = np.abs(rounded) @ sizes_of_parts(layer).T + np.abs(added)
    bound = (tokens.shape[1] / GROUP + 8) * 2.0**-23 * size + doubt @ np.abs(matrix.T)
    bound = bound + (EPS[tokens.dtype] * np.abs(expected) if tokens.dtype == torch.bfloat16 else 0)
    output = (run_native(kernel, tokens, layer) if found is None else found).double().numpy()
    assert (np.abs(output - expected) <= bound).all()


@parametrize_sample(
    "kernel, form, rows, sizes, dtype",
    list(KERNELS),
    FORMATS,
    [1, 2, 3, 4, 5, 7, MAX_TOKENS, 19, 47, 49, 97],
    [
        (1, 1),
        (13, 7),
        (63, 64),
        (64, 65),
        (65, 63),
        (127, 3),
        (129, 5),
        (255, 17),
        (257, 3),
        (513, 67),
        (769, 131),
        (128, 15),
        (191, 16),
        (193, 31),
        (61, 33),
        (67, 48),
        (59, 49),
    ],
    [torch.float32, torch.bfloat16],
    one_in=7,
)
def test_against_float64(kernel, form, rows, sizes, dtype):
    check(kernel, torch.randn(rows, sizes[0]).to(dtype), make_layer(form, *sizes, dtype))


@pytest.mark.parametrize("kernel", list(KERNELS))
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("rows", [15, 16, 17, 31, 32, 33, 48, 49, 96])
def test_borders_of_strips_and_registers(kernel, form, rows):
    for sizes in [(191, 15), (64, 16), (193, 17), (128, 33), (65, 49), (320, 65), (449, 96)]:
        check(kernel, torch.randn(rows, sizes[0]), make_layer(form, *sizes, torch.float32))


@given(
    st.sampled_from(list(KERNELS)), st.sampled_from(FORMATS), st.integers(1, 60),
    st.one_of(st.tuples(st.integers(1, 300), st.integers(1, 40)), st.tuples(many, st.integers(1, 5))),
    st.booleans(), st.booleans(), st.integers(0, 2**20),
)  # fmt: skip
def test_any_sizes(kernel, form, rows, sizes, half, bias, seed):
    dtype = torch.bfloat16 if half else torch.float32
    layer = make_layer(form, *sizes, dtype, bias=bias, seed=seed)
    check(kernel, torch.randn(rows, sizes[0]).to(dtype), layer)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kernel", list(KERNELS))
def test_largest_bytes_of_equal_sign(kernel, form):
    """All products are as large as they can be: sums of bytes in 16 bits would overflow."""
    layer = make_layer(form, 512, 5, torch.float32)
    layer.weight.fill_(127 if form is Int8Linear else 255)  # also of the outputs that fill the panel up
    for sign in (1.0, -1.0):
        check(kernel, torch.full((3, 512), sign), layer)
        if form is Int8Linear:
            layer.weight.neg_()


@pytest.mark.parametrize("form", FORMATS)
def test_groups_of_zeros_and_of_tiny_and_huge_numbers(form):
    tokens = torch.randn(5, 769)
    tokens[0] = 0
    tokens[1, :256] = 0
    tokens[2, 64:600] *= 1e-40  # subnormal numbers
    tokens[3, :300] *= 1e30
    tokens[4, 3] = 1e4  # an outlier rounds its own group alone
    layer = make_layer(form, 769, 31, torch.float32)
    for kernel in KERNELS:
        check(kernel, tokens, layer)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kernel", list(KERNELS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_depend_on_neither_threads_nor_other_tokens(kernel, form, dtype):
    tokens, layer = torch.randn(101, 331).to(dtype), make_layer(form, 331, 1031, dtype)
    together = run_native(kernel, tokens, layer)
    for threads in (2, 3, 7, 64, 128):
        assert torch.equal(run_native(kernel, tokens, layer, threads=threads), together)
    for row in (0, 1, 47, 48, 100):
        assert torch.equal(run_native(kernel, tokens[row : row + 1], layer)[0], together[row])
    for rows in (2, 3, 4, 5, 6, 7, 11, 13, 16, 17, 23, 47, 49):
        assert torch.equal(run_native(kernel, tokens[:rows], layer), together[:rows])


@pytest.mark.parametrize("form", FORMATS)
def test_few_and_many_tokens_have_the_same_bits(form):
    tokens, layer = torch.randn(61, 331), make_layer(form, 331, 67, torch.float32)
    assert torch.equal(run_native("few", tokens, layer), run_native("many", tokens, layer))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kernel", list(KERNELS))
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_nonfinite_token_makes_its_row_nan_and_no_other(kernel, form, bad):
    tokens, layer = torch.randn(5, 467), make_layer(form, 467, 71, torch.float32)
    clean = run_native(kernel, tokens, layer)
    tokens[2, 466] = bad
    found = run_native(kernel, tokens, layer)
    assert found[2].isnan().all()
    rows = [0, 1, 3, 4]
    assert torch.equal(found[rows], clean[rows])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kernel", list(KERNELS))
def test_memory_around_the_arrays_is_not_read(kernel, form):
    """The arrays lie in larger ones that are NaN, or bytes of 1s, around them; scratch memory is NaN."""
    tokens, layer = torch.randn(3, 331), make_layer(form, 331, 13, torch.float32)
    expected = run_native(kernel, tokens, layer)

    def embed(tensor):
        around = torch.full((tensor.numel() * tensor.itemsize + 512,), 255, dtype=torch.uint8).view(tensor.dtype)
        first = 256 // tensor.itemsize
        return around[first : first + tensor.numel()].view(tensor.shape).copy_(tensor)

    for name in ("weight", "scale", "bias"):
        setattr(layer, name, embed(getattr(layer, name)))
    around = torch.full((3 * 13 + 128,), 7.0)
    output = around[64:-64].view(3, 13)
    native.poison(True)
    try:
        KERNELS[kernel](embed(tokens), layer.weight, layer.scale, layer.bias, output)
    finally:
        native.poison(False)
    assert torch.equal(output, expected)
    assert torch.equal(around[:64], torch.full((64,), 7.0))
    assert torch.equal(around[-64:], torch.full((64,), 7.0))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kernel", list(KERNELS))
def test_weights_at_any_address(kernel, form):
    tokens, layer = torch.randn(17, 131), make_layer(form, 131, 19, torch.float32)
    expected = run_native(kernel, tokens, layer)
    stored = torch.empty(layer.weight.numel() + 1, dtype=layer.weight.dtype)
    layer.weight = stored[1:].view(layer.weight.shape).copy_(layer.weight)
    assert torch.equal(run_native(kernel, tokens, layer), expected)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "sigmoid", "relu_squared", "quick_gelu"])
@pytest.mark.parametrize("form", FORMATS)
def test_activation_of_many_tokens(form, activation):
    tokens, layer = torch.randn(53, 131), make_layer(form, 131, 67, torch.float32)
    plain = run_native("many", tokens, layer).double()
    expected = {
        "relu": plain.relu(), "gelu": nn.functional.gelu(plain), "silu": nn.functional.silu(plain),
        "gelu_tanh": nn.functional.gelu(plain, approximate="tanh"), "sigmoid": plain.sigmoid(),
        "relu_squared": plain.relu() ** 2, "quick_gelu": plain / (1 + torch.exp(-1.702 * plain)),
    }[activation]  # fmt: skip
    found = multiply_integers(tokens, layer.weight, layer.scale, layer.bias, 67, activation)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


def test_no_tokens_no_inputs_and_no_outputs():
    for kernel in KERNELS:
        layer = make_layer(Int8Linear, 5, 3, torch.float32)
        assert run_native(kernel, torch.ones(0, 5), layer).shape == (0, 3)
    for inputs, outputs in ((0, 3), (5, 0)):
        linear = nn.Linear(1, 1, bias=False)
        linear.in_features, linear.out_features = inputs, outputs
        linear.weight = nn.Parameter(torch.empty(outputs, inputs))
        layer = Int8Linear.from_linear(linear)
        assert layer.dense_weight().shape == (outputs, inputs)
        found = layer(torch.randn(2, inputs))
        assert torch.equal(found, torch.zeros(2, outputs))


@pytest.mark.parametrize("kernel", list(KERNELS))
def test_arguments_that_do_not_fit(kernel):
    tokens, output = torch.randn(3, 130), torch.empty(3, 5)
    int8, int4 = (make_layer(form, 130, 5, torch.float32) for form in FORMATS)
    for weight, scale, message in (
        (int8.weight, None, "scale"),
        (int8.weight, int8.scale[1:], "scale"),
        (int8.weight, int8.scale[..., 1:].contiguous(), "scale"),
        (int8.weight, int8.scale.float(), "scale"),
        (int8.weight, int4.scale, "scale"),
        (int8.weight[:, 1:].contiguous(), int8.scale, "weight"),
        (int8.weight[1:], int8.scale, "weight"),
        (int8.weight.mT.contiguous().mT, int8.scale, "weight"),
        (int8.weight.int(), int8.scale, "weight"),
        (int4.weight, None, "scale"),
        (int4.weight, int8.scale, "scale"),
        (int4.weight[:, 1:].contiguous(), int4.scale, "weight"),
        (int4.weight, int4.scale[..., 1:].contiguous(), "scale"),
        (int4.weight, int4.scale.float(), "scale"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            KERNELS[kernel](tokens, weight, scale, None, output)


@torch.no_grad()
def test_when_they_are_used(monkeypatch):
    monkeypatch.setattr("regard.kernels.operators.integer_linear_op.is_fast", lambda: True)
    layer = make_layer(Int8Linear, 131, 67, torch.float32)
    tokens, arguments = torch.randn(2, 3, 131), (131, layer.weight, layer.scale, layer.bias)
    assert can_multiply_integers(tokens, *arguments)
    assert can_multiply_integers(torch.randn(131), *arguments)
    assert not can_multiply_integers(tokens[:0], *arguments)
    assert not can_multiply_integers(tokens[..., 1:], *arguments)
    assert not can_multiply_integers(tokens.double(), *arguments)
    assert not can_multiply_integers(tokens.bfloat16(), *arguments)  # the bias is float32
    with torch.enable_grad():
        assert not can_multiply_integers(tokens.clone().requires_grad_(), *arguments)


@pytest.mark.parametrize("rows", [(), (7,), (2, 3), (2, 3, 5)])
def test_tokens_of_any_number_of_dimensions_and_layout(rows):
    layer = make_layer(Int4Linear, 70, 31, torch.float32)
    tokens = torch.randn(*rows, 140)[..., ::2]
    found = multiply_integers(tokens, layer.weight, layer.scale, layer.bias, 31)
    assert found.shape == (*rows, 31)
    check("few", tokens.reshape(-1, 70), layer, found.reshape(-1, 31))


def test_memory_that_is_not_aligned():
    layer = make_layer(Int8Linear, 71, 31, torch.bfloat16)
    storage = torch.randn(61 * 71 + 1).bfloat16()
    tokens = storage[1:].view(61, 71)
    check("many", tokens, layer, multiply_integers(tokens, layer.weight, layer.scale, layer.bias, 31))
