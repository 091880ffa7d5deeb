"""The cross-entropy kernel, against torch's in float64.

With wide the dtype of sums, x the logits and n the number of classes: lse is the logarithm of a sum of n terms and the
mean a sum of n, so the error of a loss is at most (n + 16) eps(wide) max(1, max |x - max x|). A gradient is a
difference of numbers of at most 1 with errors of that size, and is rounded to its dtype. Nothing depends on max |x|:
adding a constant to all logits of a row changes neither.
"""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from any_threads import assert_same_bits
from hypothesis_examples import examples
from long_lengths import many
from regard.errors import RefusedError
from regard.kernels import extension, results, support
from regard.kernels.operators import cross_entropy_op as module
from regard.kernels.operators.cross_entropy_op import cross_entropy

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
OPERATOR = torch.ops.regard.cross_entropy.default
IGNORED = 0


def make_inputs(dtype=torch.float32, rows=29, classes=1009, scale=3.0):
    """Random logits, and targets of which some are ignored."""
    logits = (scale * torch.randn(rows, classes)).to(dtype)
    targets = torch.randint(classes, (rows,))
    targets[::5] = IGNORED
    return logits, targets


def float64_reference(logits, targets, smoothing, upstream=None):
    """Compute the losses in float64, and the gradient of the logits."""
    wide = logits.detach().double().requires_grad_()
    losses = functional.cross_entropy(wide, targets, label_smoothing=smoothing, ignore_index=IGNORED, reduction="none")
    upstream = torch.ones_like(losses) if upstream is None else upstream.double()
    return losses.detach(), *torch.autograd.grad(losses, wide, upstream)


def tolerance(logits, upstream=1.0):
    eps, classes = torch.finfo(results.accumulation_dtype(logits.dtype)).eps, logits.shape[1]
    wide = logits.detach().double()
    spread = (wide.amax(1) - wide.amin(1)).nan_to_num().max().item()
    return (classes + 16) * eps * max(1.0, spread) * upstream


@pytest.fixture(params=["kernel", "torch"])
def call_path(request, monkeypatch):
    """Run each test with regard's kernel and with torch's operations."""
    if request.param == "torch":
        monkeypatch.setattr(module, "is_portable", lambda: True)
    elif support.is_portable():
        monkeypatch.setattr(module, "is_portable", lambda: False)
    return request.param


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("call_path")
class TestValues:
    @pytest.mark.parametrize(("rows", "classes"), [(29, 1009), (7, 31), (13, 17), (11, 3), (3, 8209)])
    def test_losses_and_gradients(self, rows, classes, dtype, smoothing):
        logits, targets = make_inputs(dtype, rows, classes)
        logits.requires_grad_()
        upstream = torch.randn(rows).to(results.accumulation_dtype(dtype))
        losses = cross_entropy(logits, targets, smoothing=smoothing, ignored=IGNORED)
        (gradient,) = torch.autograd.grad(losses, logits, upstream)
        expected, expected_gradient = float64_reference(logits, targets, smoothing, upstream)
        assert losses.dtype == results.accumulation_dtype(dtype)
        assert gradient.dtype == dtype
        torch.testing.assert_close(losses.double(), expected, rtol=0, atol=tolerance(logits))
        torch.testing.assert_close(
            gradient.double(),
            expected_gradient,
            rtol=torch.finfo(dtype).eps,
            atol=tolerance(logits, upstream.abs().max().item()) + torch.finfo(dtype).smallest_normal,
        )

    def test_single_class_has_a_loss_of_0(self, dtype, smoothing):
        logits = torch.randn(5, 1).to(dtype).requires_grad_()
        losses = cross_entropy(logits, torch.zeros(5, dtype=torch.long), smoothing=smoothing, ignored=-100)
        assert torch.equal(losses, torch.zeros_like(losses))
        assert not torch.autograd.grad(losses.sum(), logits)[0].any()

    def test_no_rows(self, dtype, smoothing):
        logits, targets = make_inputs(dtype, rows=0)
        logits.requires_grad_()
        losses = cross_entropy(logits, targets, smoothing=smoothing, ignored=IGNORED)
        assert losses.shape == (0,)
        assert torch.autograd.grad(losses.sum(), logits)[0].shape == logits.shape


@examples(40, without_slow=4)
@given(
    sizes=st.one_of(st.tuples(many, st.integers(1, 300)), st.tuples(st.integers(1, 20), st.integers(1, 9000))),
    dtype=st.sampled_from(DTYPES),
    smoothing=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**32),
)
def test_many_rows_and_many_classes(sizes, dtype, smoothing, seed):
    torch.manual_seed(seed)
    logits, targets = make_inputs(dtype, *sizes)
    logits.requires_grad_()
    losses = cross_entropy(logits, targets, smoothing=smoothing, ignored=IGNORED)
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    expected, expected_gradient = float64_reference(logits, targets, smoothing)
    torch.testing.assert_close(losses.double(), expected, rtol=0, atol=tolerance(logits))
    allowed = {"rtol": torch.finfo(dtype).eps, "atol": tolerance(logits) + torch.finfo(dtype).smallest_normal}
    torch.testing.assert_close(gradient.double(), expected_gradient, **allowed)


@pytest.mark.usefixtures("call_path")
class TestIgnoredRows:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_nonfinite_logits_have_no_effect(self, dtype):
        logits, targets = make_inputs(dtype)
        clean = logits.clone().requires_grad_()
        logits[::5] = torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0, 0.0])[:, None].repeat(2, 1)[:6].to(dtype)
        logits.requires_grad_()
        for one in (clean, logits):
            one.losses = cross_entropy(one, targets, smoothing=0.1, ignored=IGNORED)
            one.losses.sum().backward()
        assert torch.equal(logits.losses, clean.losses)
        assert torch.equal(logits.grad, clean.grad)
        assert not logits.grad[::5].any()
        assert logits.grad[1::5].any()

    def test_ignored_target_outside_the_classes(self):
        logits, targets = make_inputs()
        expected = cross_entropy(logits, targets, smoothing=0.1, ignored=IGNORED)
        targets[targets == IGNORED] = -100
        assert torch.equal(cross_entropy(logits, targets, smoothing=0.1, ignored=-100), expected)

    def test_all_rows_ignored(self):
        logits = torch.full((5, 7), torch.nan, requires_grad=True)
        losses = cross_entropy(logits, torch.zeros(5, dtype=torch.long), smoothing=0.1, ignored=0)
        assert not losses.any()
        assert not torch.autograd.grad(losses.sum(), logits)[0].any()


@pytest.mark.usefixtures("call_path")
class TestExtremes:
    @pytest.mark.parametrize("scale", [1e-30, 1e4, 1e30])
    def test_large_and_small_logits_do_not_overflow(self, scale):
        logits, targets = make_inputs(scale=scale)
        logits.requires_grad_()
        losses = cross_entropy(logits, targets, smoothing=0.1, ignored=IGNORED)
        (gradient,) = torch.autograd.grad(losses.sum(), logits)
        expected, expected_gradient = float64_reference(logits, targets, 0.1)
        torch.testing.assert_close(losses.double(), expected, rtol=1e-6, atol=tolerance(logits))
        torch.testing.assert_close(gradient.double(), expected_gradient, rtol=0, atol=tolerance(logits))

    def test_logits_of_minus_infinity(self):
        """Logits of -Inf, as for banned tokens. Without smoothing they have no effect."""
        logits, targets = make_inputs()
        logits[:, 7] = -torch.inf
        targets[targets == 7] = 8
        logits.requires_grad_()
        losses = cross_entropy(logits, targets, smoothing=0.0, ignored=IGNORED)
        (gradient,) = torch.autograd.grad(losses.sum(), logits)
        others = torch.cat((logits[:, :7], logits[:, 8:]), dim=1)
        expected, expected_gradient = float64_reference(others, targets - (targets > 7).long(), 0.0)
        torch.testing.assert_close(losses.double(), expected, rtol=0, atol=tolerance(others))
        assert not gradient[:, 7].any()
        torch.testing.assert_close(gradient[:, 8:].double(), expected_gradient[:, 7:], rtol=0, atol=tolerance(others))
        smoothed = cross_entropy(logits, targets, smoothing=0.1, ignored=IGNORED)
        assert smoothed[targets != IGNORED].eq(torch.inf).all()

    @pytest.mark.parametrize("number", [torch.nan, torch.inf])
    @pytest.mark.parametrize("column", [0, 500, 1008])
    def test_nonfinite_logit_affects_only_its_row(self, column, number):
        logits, targets = make_inputs()
        clean = cross_entropy(logits, targets, smoothing=0.1, ignored=IGNORED)
        logits[3, column] = number
        losses = cross_entropy(logits, targets, smoothing=0.1, ignored=IGNORED)
        assert losses[3].isnan()
        losses[3] = clean[3]
        torch.testing.assert_close(losses, clean, rtol=0, atol=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("call_path")
class TestLargeLogits:
    """Adding a constant to all logits of a row changes neither the loss nor its gradients.

    Large logits are rounded; the expected result is computed from the rounded logits by torch in float64.
    """

    @pytest.mark.parametrize("constant", [1e4, -1e4, 1e6, -1e9, 1e9, -3e38])
    def test_equal_logits(self, smoothing, dtype, constant):
        """By hand, of 8: 1/8 - 1 + smoothing * 7/8 at the target, and (1 - smoothing) / 8 elsewhere."""
        size = min(constant, 6e4, key=abs) if dtype == torch.float16 else constant
        logits = torch.full((3, 8), size, dtype=dtype, requires_grad=True)
        losses = cross_entropy(logits, torch.tensor([1, IGNORED, 7]), smoothing=smoothing, ignored=IGNORED)
        (gradient,) = torch.autograd.grad(losses.sum(), logits)
        expected = torch.full((3, 8), (1 - smoothing) / 8, dtype=torch.float64)
        expected[0, 1] = expected[2, 7] = -(1 - smoothing) * 7 / 8
        expected[1] = 0
        allowed = 8 * torch.finfo(losses.dtype).eps
        torch.testing.assert_close(gradient.double(), expected, rtol=torch.finfo(dtype).eps, atol=allowed)
        assert losses[0].item() == pytest.approx(math.log(8), rel=allowed)

    @pytest.mark.parametrize("classes", [31, 1009])
    @pytest.mark.parametrize("constant", [1e4, -1e6, 1e9])
    def test_agrees_with_float64_on_rounded_logits(self, smoothing, dtype, constant, classes):
        size = 3e4 if dtype == torch.float16 else constant
        spread = max(3.0, abs(size) * 8 * torch.finfo(dtype).eps)  # some differ, even with coarse numbers
        logits = (size + spread * torch.rand(29, classes, dtype=torch.float64)).to(dtype).requires_grad_()
        targets = torch.arange(29) % classes
        upstream = torch.randn(29).to(results.accumulation_dtype(dtype))
        losses = cross_entropy(logits, targets, smoothing=smoothing, ignored=IGNORED)
        (gradient,) = torch.autograd.grad(losses, logits, upstream)
        expected, expected_gradient = float64_reference(logits, targets, smoothing, upstream)
        allowed = tolerance(logits, upstream.abs().max().item())
        rtol, atol = torch.finfo(dtype).eps, allowed + torch.finfo(dtype).smallest_normal
        torch.testing.assert_close(gradient.double(), expected_gradient, rtol=rtol, atol=atol)
        # The exact sum over classes is 0: each number has its rounding error, and the sum adds its own.
        rounding = rtol * gradient.double().abs().sum(1) + classes * allowed
        assert (gradient.double().sum(1).abs() <= rounding).all()
        torch.testing.assert_close(losses.double(), expected, rtol=0, atol=tolerance(logits))

    def test_exactly_added_constant_changes_no_bit(self, smoothing, dtype):
        whole = torch.randint(-8, 8, (29, 31)).double()
        results = []
        for constant in (0.0, 2.0 ** (5 if dtype == torch.bfloat16 else 9)):
            logits = (whole + constant).to(dtype).requires_grad_()
            losses = cross_entropy(logits, torch.arange(29), smoothing=smoothing, ignored=IGNORED)
            results.append((losses, *torch.autograd.grad(losses.sum(), logits)))
        assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


class TestKernel:
    @pytest.fixture(autouse=True)
    def _restore_one_thread(self):
        yield
        torch.set_num_threads(1)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_same_bits_with_any_number_of_threads(self, dtype):
        logits, targets = make_inputs(dtype, rows=211)

        def compute():
            loss, normalizer = OPERATOR(logits, targets, 0.1, IGNORED)
            backward = torch.ops.regard.cross_entropy_backward.default
            return loss, normalizer, backward(loss, logits, targets, normalizer, 0.1, IGNORED)

        assert_same_bits(compute)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_every_element_is_written_and_no_other(self, dtype):
        for rows, classes in ((1, 1), (3, 7), (5, 33), (2, 17000)):
            logits, targets = make_inputs(dtype, rows, classes)
            around = torch.full((rows * classes + 64,), torch.nan, dtype=dtype)
            loss = torch.full((rows + 2,), torch.nan, dtype=results.accumulation_dtype(dtype))
            normalizer = torch.full((rows + 2, 2), torch.nan, dtype=results.accumulation_dtype(dtype))
            extension.native.cross_entropy(
                logits, targets, loss[1:-1], normalizer[1:-1], smoothing=0.1, ignored=IGNORED
            )
            extension.native.cross_entropy_backward(
                torch.ones_like(loss[1:-1]),
                logits,
                targets,
                normalizer[1:-1],
                around[32:-32].view(rows, classes),
                smoothing=0.1,
                ignored=IGNORED,
            )
            for whole, edge in ((around, 32), (loss, 1), (normalizer, 1)):
                assert whole[edge:-edge].isfinite().all()
                assert whole[:edge].isnan().all()
                assert whole[-edge:].isnan().all()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"targets": torch.tensor([1, 2, 7])}, "targets: one is out of range"),
            ({"targets": torch.tensor([1, 2, -2])}, "targets: one is out of range"),
            ({"targets": torch.ones(3)}, "targets: expected dtype int64, got float32"),
            ({"targets": torch.ones(2, dtype=torch.long)}, "targets: expected shape"),
            ({"logits": torch.ones(7, 3).t()}, "logits: expected contiguous"),
            ({"logits": torch.ones(3, 7, dtype=torch.long)}, "logits: expected a floating dtype, got int64"),
            ({"logits": torch.ones(3, 0)}, "logits: expected at least one class"),
            ({"logits": torch.ones(2, 3, 7)}, "logits: expected shape"),
            ({"loss": torch.empty(3, dtype=torch.float64)}, "loss: expected dtype float32, got float64"),
            ({"loss": torch.empty(6)[::2]}, "loss: expected contiguous"),
            ({"normalizer": torch.empty(3)}, "normalizer: expected shape"),
            ({"smoothing": 1.5}, "smoothing: expected 0 <= smoothing <= 1"),
            ({"smoothing": float("nan")}, "smoothing: expected 0 <= smoothing <= 1"),
            ({"threads": 0}, "threads: expected at least 1"),
        ],
    )
    def test_forward_refuses_mismatched_arguments(self, change, message):
        targets = torch.ones(3, dtype=torch.long)
        arrays = {"logits": torch.ones(3, 7), "targets": targets, "loss": torch.empty(3)}
        arrays["normalizer"] = torch.empty(3, 2)
        with pytest.raises((ValueError, TypeError), match=message):
            extension.native.cross_entropy(**arrays | change)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"grad_loss": torch.ones(2)}, "grad_loss: expected shape"),
            ({"grad_loss": torch.ones(1).expand(3)}, "grad_loss: expected contiguous"),
            ({"normalizer": torch.ones(3, 2, dtype=torch.float64)}, "normalizer: expected dtype float32"),
            ({"grad_logits": torch.ones(3, 8)}, "grad_logits: expected shape"),
            ({"grad_logits": torch.ones(3, 7).bfloat16()}, "grad_logits: expected dtype float32"),
            ({"grad_logits": torch.ones(7, 3).t()}, "grad_logits: expected contiguous"),
        ],
    )
    def test_backward_refuses_mismatched_arguments(self, change, message):
        arrays = {
            "grad_loss": torch.ones(3),
            "logits": torch.ones(3, 7),
            "targets": torch.ones(3, dtype=torch.long),
            "normalizer": torch.ones(3, 2),
            "grad_logits": torch.empty(3, 7),
        }
        with pytest.raises((ValueError, TypeError), match=message):
            extension.native.cross_entropy_backward(**arrays | change)


class TestOperator:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_passes_opcheck(self, dtype, without_shape_checks):
        logits, targets = make_inputs(dtype, rows=5, classes=7)
        torch.library.opcheck(OPERATOR, (logits, targets, 0.1, IGNORED))
        torch.library.opcheck(OPERATOR, (logits.requires_grad_(), targets, 0.1, IGNORED))

    def test_backward_passes_opcheck(self, without_shape_checks):
        logits, targets = make_inputs(rows=5, classes=7)
        loss, normalizer = OPERATOR(logits, targets, 0.1, IGNORED)
        torch.library.opcheck(
            torch.ops.regard.cross_entropy_backward.default, (loss, logits, targets, normalizer, 0.1, IGNORED)
        )

    @pytest.mark.parametrize("path", ["operator", "eager"])
    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    def test_gradients_agree_with_finite_differences(self, smoothing, path, without_shape_checks):
        logits, targets = make_inputs(torch.float64, rows=7, classes=19)
        function = OPERATOR if path == "operator" else module.CROSS_ENTROPY.compute_with_grad
        assert torch.autograd.gradcheck(
            lambda one: function(one, targets, smoothing, IGNORED)[0], logits.requires_grad_()
        )

    def test_strided_logits_and_gradients(self):
        logits, targets = make_inputs(rows=29, classes=31)
        upstream = torch.tensor(3.0).expand(29)
        results = []
        for one in (logits, logits.t().contiguous().t(), torch.stack((logits, logits), dim=2)[:, :, 0]):
            leaf = one.detach().requires_grad_()
            losses = cross_entropy(leaf, targets, smoothing=0.1, ignored=IGNORED)
            results.append((losses, *torch.autograd.grad(losses, leaf, upstream)))
        assert all(torch.equal(*pair) for other in results for pair in zip(results[0], other, strict=True))

    def test_only_the_logits_are_saved_at_their_size(self):
        logits, targets = make_inputs(torch.bfloat16)
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda same: same):
            module.CROSS_ENTROPY.compute_with_grad(logits.requires_grad_(), targets, 0.1, IGNORED)
        assert sorted(tensor.numel() for tensor in saved) == [29, 29 * 2, 29 * 1009]
        assert any(tensor.data_ptr() == logits.data_ptr() for tensor in saved)

    def test_second_derivatives_are_refused(self, without_shape_checks):
        logits, targets = make_inputs()
        losses, _ = module.CROSS_ENTROPY.compute_with_grad(logits.requires_grad_(), targets, 0.1, IGNORED)
        (first,) = torch.autograd.grad(losses.sum(), logits, create_graph=True)
        with pytest.raises(RefusedError, match=r"(?s)no second derivatives.*one backward pass.*functional"):
            first.sum().backward()

    @pytest.mark.parametrize("target", [-1, 1009])
    def test_a_target_out_of_range_is_refused(self, target, call_path):
        logits, targets = make_inputs()
        targets[1] = target
        with pytest.raises((ValueError, IndexError), match=r"out of (range|bounds)"):
            cross_entropy(logits, targets, smoothing=0.1, ignored=IGNORED)


def test_torch_func_uses_torch():
    logits, targets = make_inputs(torch.float64, rows=5, classes=7)
    loss = partial(cross_entropy, targets=targets, smoothing=0.1, ignored=IGNORED)
    _, expected = float64_reference(logits, targets, 0.1)
    torch.testing.assert_close(torch.func.grad(lambda one: loss(one).sum())(logits), expected, rtol=0, atol=1e-15)
