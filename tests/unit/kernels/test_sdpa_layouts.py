"""Promise 1 in ``sdpa``, bit for bit, in any memory layout: hidden values may be NaN, Inf or huge."""

import pytest
import torch

import regard
from memory_layouts import LAYOUTS
from regard import masks
from regard.kernels import same_layout

HIDDEN = 5  # keys, the last ones
SHAPES = [(2, 3, 13, 5), pytest.param((1, 2, 17, 16), marks=pytest.mark.slow)]


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def _masks(batch, length):
    padding = masks.padding([length - HIDDEN] * batch)
    cells = torch.arange(length).expand(1, 1, length, length) < length - HIDDEN
    return [padding, padding & masks.causal(), masks.keep(cells), masks.causal(), masks.window(3, 3)]


IN_EACH_DTYPE = ("contiguous", "unaligned", "amid an element")  # the others are marked slow


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        (layout, dtype)
        if dtype == torch.float32 or layout in IN_EACH_DTYPE
        else pytest.param(layout, dtype, marks=pytest.mark.slow)
        for layout in LAYOUTS
        for dtype in DTYPES
        if layout != "negated" or dtype.itemsize > 2
    ],
)
def test_masked_values_change_no_bit(layout, dtype, shape):
    """Compares outputs of rows that do not see it, and gradients of a loss over those rows."""
    batch, _, length, _ = shape
    for mask in _masks(batch, length):
        sees = mask.dense(length, length)[..., -HIDDEN:].any(-1, keepdim=True).expand(batch, 1, length, 1)
        clean = [torch.randn(shape, dtype=dtype) for _ in range(3)]
        upstream = torch.randn(shape, dtype=dtype) * ~sees
        results = []
        for side, fill in ((1, 0.5), (1, torch.nan), (2, torch.inf), (1, torch.finfo(dtype).max)):
            inputs = [tensor.clone() for tensor in clean]
            inputs[side][:, :, -HIDDEN:] = fill
            leaves = [LAYOUTS[layout](tensor).requires_grad_() for tensor in inputs]
            output = regard.attention(*leaves, mask=mask, impl="sdpa")
            gradients = torch.autograd.grad(output, leaves, upstream)
            results.append([output.detach().masked_fill(sees, 0.0), *gradients])
        for result in results[1:]:
            assert all(torch.equal(one, other) for one, other in zip(results[0], result, strict=True)), mask


def test_elements_that_share_memory():
    """Overlapping windows of a signal: a NaN is in several tokens, and only those tokens are non-finite."""
    signal = torch.randn(2, 3, 17)
    outputs = []
    for fill in (0.0, torch.nan):
        signal[:, :, 13:] = fill
        windows = signal.unfold(2, 5, 1).detach().requires_grad_()  # 13 of them; the NaN is in those from 9 on
        output = regard.attention(windows, windows, windows, mask=masks.causal(), impl="sdpa")[:, :, :9]
        outputs.append((output, *torch.autograd.grad(output.sum(), windows)))
    assert all(torch.equal(one, other) for one, other in zip(*outputs, strict=True))


class TestCopies:
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_have_the_layout_of_the_tensor(self, layout):
        tensor = LAYOUTS[layout](torch.randn(2, 3, 7, 5))
        where = (tensor > 1).any(-1, keepdim=True)
        copy = same_layout.zero_where(same_layout.copy_if_overlapping(tensor), where)
        assert torch.equal(copy, tensor.masked_fill(where, 0.0))
        if layout != "negated":
            assert copy.stride() == tensor.stride()
            assert copy.data_ptr() % 64 == tensor.data_ptr() % 64

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_are_differentiable_twice(self, layout):
        tensor = LAYOUTS[layout](torch.randn(1, 2, 3, 2, dtype=torch.float64)).detach()
        others = torch.randn(1, 2, 3, 2, dtype=torch.float64)
        where = (tensor > 0).any(-1, keepdim=True)

        def function(values, other):  # a leaf must not be expanded here, since finite differences write to it
            tensor = LAYOUTS[layout](values)
            return same_layout.replace_where(
                same_layout.zero_where(tensor.resolve_neg(), where).square(), where, other.sin()
            )

        values = tensor.contiguous().requires_grad_()
        assert torch.autograd.gradcheck(function, (values, others.requires_grad_()))
        assert torch.autograd.gradgradcheck(function, (values, others))

    def test_expanded_element_with_two_values(self):
        tensor = torch.ones(1).expand(3)
        assert same_layout.zero_where(tensor, torch.tensor([True, False, True])).tolist() == [0.0, 1.0, 0.0]

    def test_an_expanded_leaf_has_a_gradient_for_each_element(self):
        leaf = torch.ones(1, 1, 1, 2).expand(1, 3, 1, 2).requires_grad_()
        upstream = torch.arange(6.0).view(1, 3, 1, 2)
        where = torch.zeros(1, 3, 1, 1, dtype=torch.bool)
        (gradient,) = torch.autograd.grad(same_layout.zero_where(leaf, where), leaf, upstream)
        assert torch.equal(gradient, upstream)

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_may_be_written_into(self, layout):
        """As any output may be: autograd refuses that for a view that is made inside a function."""
        tensor = same_layout.copy_if_overlapping(LAYOUTS[layout](torch.randn(2, 3, 7, 5, requires_grad=True)))
        where = torch.zeros(2, 3, 7, 1, dtype=torch.bool)
        copy = same_layout.fill_where(tensor, where, torch.nan)
        if 0 not in copy.stride():
            copy[0, 1] = 0.0
            assert not copy[0, 1].any()

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_gradients_have_the_layout_of_the_incoming_gradient(self, layout):
        upstream = same_layout.copy_if_overlapping(LAYOUTS[layout](torch.randn(2, 3, 7, 5)))
        leaf = torch.randn(upstream.shape, requires_grad=True)
        where = (torch.arange(7) > 4)[:, None]
        gradients = []
        seen = leaf.view_as(leaf)
        seen.register_hook(gradients.append)
        torch.autograd.grad(same_layout.fill_where(seen, where, 1.0), leaf, upstream)
        (gradient,) = gradients
        assert torch.equal(gradient, upstream.masked_fill(where, 0.0))
        assert layout == "negated" or gradient.stride() == upstream.stride()
