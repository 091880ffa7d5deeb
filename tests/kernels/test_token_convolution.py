"""Convolutions of tokens: the kernel against sums over windows in float64, at both sides of its internal borders."""

import pytest
import torch

from kernels.opcheck_cases import parametrize_opcheck
from regard.kernels.implementations.token_convolution import CONVOLUTION, convolve_tokens
from regard.kernels.reference.token_convolution import convolve_in_torch

CASES = [  # queries, keys, channels, filter size; blocks have 256 rows, tiles 64, parts of filters 1,024
    (1, 1, 1, 1),
    (63, 64, 3, 5),
    (64, 63, 17, 3),
    (65, 65, 16, 131),
    (257, 131, 5, 7),
    (256, 257, 33, 65),
    (1031, 1031, 2, 9),
    (5, 131, 4, 3),
    (131, 5, 4, 3),
]


def make_inputs(queries, keys, channels, size, *, heads=(4, 4), dtype=torch.float64):
    generator = torch.Generator().manual_seed(queries + keys)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    value = random(2, keys, heads[1], channels).transpose(1, 2)
    return [random(2, heads[0], queries, channels), random(heads[0], size), value]


def sum_windows(base, filters, value, offset):
    """Add the sum over the window of each query, by indices."""
    queries, keys, size = base.shape[2], value.shape[2], filters.shape[1]
    value = value.repeat_interleave(base.shape[1] // value.shape[1], dim=1)
    places = torch.arange(queries)[:, None] + offset + torch.arange(size) - size // 2
    inside = (places >= 0) & (places < keys)
    windows = value[:, :, places.clamp(0, keys - 1)] * inside[..., None]
    return base + torch.einsum("hs,bhqsc->bhqc", filters, windows)


def with_gradients(function, inputs, offset, dtype):
    leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in inputs]
    output = function(*leaves, offset)
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return [output.detach(), *torch.autograd.grad(output, leaves, direction.to(dtype))]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("function", [convolve_tokens, convolve_in_torch])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_windows(case, function, dtype, poison_scratch_memory):
    inputs, offset = make_inputs(*case, dtype=dtype), case[1] - case[0]
    ours = with_gradients(function, inputs, offset, dtype)
    expected = with_gradients(sum_windows, inputs, offset, torch.float64)
    for computed, exact in zip(ours, expected, strict=True):
        allowed = (1e-13 if dtype == torch.float64 else 1e-5) * float(exact.abs().max().clamp(min=1))
        assert computed.dtype == dtype
        assert (computed.double() - exact).abs().max() < allowed


@pytest.mark.parametrize("heads", [(4, 1), (4, 2)])
def test_heads_share_values(heads):
    inputs = make_inputs(67, 71, 5, 7, heads=heads)
    ours, expected = (with_gradients(each, inputs, 4, torch.float64) for each in (convolve_tokens, sum_windows))
    for computed, exact in zip(ours, expected, strict=True):
        torch.testing.assert_close(computed, exact, rtol=1e-12, atol=1e-12)


def test_same_bits_with_any_number_of_threads():
    inputs, before, results = make_inputs(2053, 2053, 3, 5, dtype=torch.float32), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(with_gradients(convolve_tokens, inputs, 0, torch.float32))
    finally:
        torch.set_num_threads(before)
    assert all(
        torch.equal(first, other) for others in results[1:] for first, other in zip(results[0], others, strict=True)
    )


def test_second_derivatives():
    leaves = [tensor.contiguous().requires_grad_() for tensor in make_inputs(5, 7, 2, 3, heads=(2, 1))]
    assert torch.autograd.gradgradcheck(lambda *tensors: convolve_tokens(*tensors, 2), leaves, fast_mode=True)


@parametrize_opcheck(["tokens"], default_kinds=("tokens",))
def test_passes_opcheck(name, utilities, without_shape_checks):
    leaves = [tensor.requires_grad_() for tensor in make_inputs(5, 7, 2, 3, heads=(2, 1), dtype=torch.float32)]
    torch.library.opcheck(CONVOLUTION.torch_op, (*leaves, 2), test_utils=utilities)
