"""Long sequences: heads in rounds, and a window whose queries are out of reach of most keys."""

import pytest
import torch

import regard
from regard import masks

BATCH, HEADS, KEY_HEADS, LENGTH, HEAD_DIM = 2, 26, 13, 1031, 61
"""Packed, for the backward pass, they take more than one round of memory (round_bytes in pack_layout.h)."""


def tensors(dtype):
    generator = torch.Generator().manual_seed(7)
    shapes = [(BATCH, heads, LENGTH, HEAD_DIM) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def solved(given, mask, impl):
    """The output and the gradients, for an upstream gradient that differs from place to place."""
    output = regard.attention(*given, mask=mask, impl=impl)
    upstream = torch.linspace(-1, 1, output.numel()).reshape(output.shape).to(output)
    return [output, *torch.autograd.grad(output, given, upstream)]


@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(masks.window(100, 70), marks=pytest.mark.slow),
        pytest.param(masks.window(0, 0), marks=pytest.mark.slow),
        masks.causal(),
        masks.window(31, 7) & masks.padding([1031, 401]),
        pytest.param(None, marks=pytest.mark.slow),
    ],
    ids=["window", "itself", "causal", "padded window", "dense"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounds_give_what_the_reference_gives(mask, dtype, poisoned):
    given = tensors(dtype)
    exact = [tensor.detach().float().requires_grad_() for tensor in given]
    for ours, theirs in zip(solved(given, mask, "native"), solved(exact, mask, "reference"), strict=True):
        close = 64 * torch.finfo(dtype).eps
        torch.testing.assert_close(
            ours.float(), theirs, rtol=close, atol=close * max(1.0, float(theirs.detach().abs().max()))
        )


def test_the_same_bits_whatever_the_threads():
    given, mask, threads = tensors(torch.float32), masks.window(100, 70), torch.get_num_threads()
    answers = []
    try:
        for count in (1, 2, 7):
            torch.set_num_threads(count)
            answers.append(solved(given, mask, "native"))
    finally:
        torch.set_num_threads(threads)
    for others in answers[1:]:
        assert all(torch.equal(one, other) for one, other in zip(answers[0], others, strict=True))
