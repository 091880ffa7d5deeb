"""Long sequences: heads are computed in rounds; and a window that hides most keys."""

from functools import lru_cache

import pytest
import torch

import regard
from regard import masks

BATCH, HEADS, KEY_HEADS, LENGTH, HEAD_DIM = 2, 26, 13, 1031, 61
"""Packed for the backward pass, they need more than one round of memory (round_bytes in pack_layout.h)."""


MASKS = {
    "window": masks.window(100, 70),
    "itself": masks.window(0, 0),
    "causal": masks.causal(),
    "padded window": masks.window(31, 7) & masks.padding([1031, 401]),
    "dense": None,
}
SOME, ALL = (0, 6, 12), tuple(range(KEY_HEADS))
"""Key heads that are compared: in the default run the first, middle and last of each batch entry, since the reference
takes the most time. A round ends between them."""


def tensors(dtype):
    """Numbers that bfloat16 represents exactly, so that all dtypes share the reference."""
    generator = torch.Generator().manual_seed(7)
    shapes = [(BATCH, heads, LENGTH, HEAD_DIM) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    return [torch.randn(shape, generator=generator).bfloat16().to(dtype).requires_grad_() for shape in shapes]


def upstream(dtype):
    """A gradient of the output whose elements differ."""
    shape = BATCH, HEADS, LENGTH, HEAD_DIM
    return torch.linspace(-1, 1, BATCH * HEADS * LENGTH * HEAD_DIM).reshape(shape).bfloat16().to(dtype)


def run_with_gradients(inputs, gradient, mask, impl):
    """Return the output and the gradients."""
    output = regard.attention(*inputs, mask=mask, impl=impl)
    return [output.detach(), *torch.autograd.grad(output, inputs, gradient)]


def heads_of(key_heads, tensor):
    """Select from (batch, heads or key heads, ...) only these key heads."""
    return tensor.detach().unflatten(1, (KEY_HEADS, -1))[:, list(key_heads)].flatten(1, 2)


@lru_cache(maxsize=1)  # the next test is the same with another dtype
def reference(mask, key_heads):
    *inputs, gradient = (heads_of(key_heads, tensor) for tensor in (*tensors(torch.float32), upstream(torch.float32)))
    return run_with_gradients([tensor.requires_grad_() for tensor in inputs], gradient, MASKS[mask], "reference")


@pytest.mark.parametrize(
    ("mask", "key_heads", "dtype"),
    [
        pytest.param("causal", SOME, torch.float32, id="causal, some heads"),
        pytest.param("padded window", SOME, torch.bfloat16, id="padded window, some heads"),
        *(
            pytest.param(mask, ALL, dtype, id=f"{mask}, {dtype}", marks=pytest.mark.slow)
            for mask in MASKS
            for dtype in (torch.float32, torch.bfloat16)
        ),
    ],
)
def test_long_sequences_agree_with_the_reference(mask, key_heads, dtype, poison_scratch_memory):
    actual = run_with_gradients(tensors(dtype), upstream(dtype), MASKS[mask], "native")
    for ours, theirs in zip(actual, reference(mask, key_heads), strict=True):
        close = 64 * torch.finfo(dtype).eps
        torch.testing.assert_close(
            heads_of(key_heads, ours).float(), theirs, rtol=close, atol=close * max(1.0, float(theirs.abs().max()))
        )


def test_same_bits_with_any_number_of_threads():
    inputs, mask, threads = tensors(torch.float32), masks.window(100, 70), torch.get_num_threads()
    answers = []
    try:
        for count in (1, 2, 7):
            torch.set_num_threads(count)
            answers.append(run_with_gradients(inputs, upstream(torch.float32), mask, "native"))
    finally:
        torch.set_num_threads(threads)
    for others in answers[1:]:
        assert all(torch.equal(one, other) for one, other in zip(answers[0], others, strict=True))


def test_tiles_of_queries_that_reach_some_ranges_of_keys_alone(poison_scratch_memory):
    """The backward pass divides the keys of few heads into ranges, and reads no sums of those that a tile cannot reach.

    Here a tile reaches one range, two with a gap between them, or none.
    """
    documents = torch.arange(1031) // 97 % 8
    mask = masks.documents(documents, query_ids=documents.where(torch.arange(1031) < 800, 9)) & masks.padding([901])
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(1, heads, 1031, 13, generator=generator).requires_grad_() for heads in (2, 1, 1)]
    gradient = torch.randn(1, 2, 1031, 13, generator=generator)
    actual = run_with_gradients(inputs, gradient, mask, "native")
    exact = [part.detach().double().requires_grad_() for part in inputs]
    expected = run_with_gradients(exact, gradient.double(), mask, "reference")
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
