"""The kernel of the most probable class, against NumPy's in float64.

A log-probability is x_c - m - ln l with l a sum of n terms of at most 1, each with an error of a few eps: its error is
at most (n + 16) eps(wide) max(1, ln n), and that of the difference x_c - m, eps(wide) |x_c - m|.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from hypothesis_examples import examples
from regard.kernels import results, support
from regard.kernels.operators.likeliest_class_op import can_find, find_likeliest

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
NONE = torch.tensor([], dtype=torch.long)
pytestmark = pytest.mark.skipif(support.missing_reason is not None, reason="the kernels are not built")


def float64_reference(logits, banned):
    """The most probable allowed class of each row, and its log-probability among all classes."""
    wide = logits.double().numpy()
    top = wide.max(1)
    log_probability = wide - top[:, None] - np.log(np.exp(wide - top[:, None]).sum(1))[:, None]
    log_probability[:, banned.numpy()] = -np.inf
    classes = log_probability.argmax(1)
    return torch.from_numpy(classes), torch.from_numpy(log_probability[np.arange(len(wide)), classes])


def assert_close(found, expected, classes):
    eps = torch.finfo(found.dtype).eps
    allowed = (classes + 16) * eps * max(1.0, np.log(classes)) + eps * expected.abs()
    assert found.isfinite().all()
    assert ((found.double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize("classes", [1, 7, 16, 17, 1009, 1024, 1025, 50257])
@pytest.mark.parametrize("dtype", DTYPES)
def test_class_and_log_probability(dtype, classes):
    logits = (3 * torch.randn(5, classes)).to(dtype)
    found, log_probability = find_likeliest(logits, NONE)
    expected, of_expected = float64_reference(logits, NONE)
    assert log_probability.dtype == results.accumulation_dtype(dtype)
    assert torch.equal(found, expected)  # NumPy too finds the first of equal ones
    assert_close(log_probability, of_expected, classes)


@examples(60)
@given(
    rows=some.integers(1, 9),
    classes=some.integers(2, 2100),
    banned=some.sets(some.integers(0, 2099), max_size=5),
    scale=some.sampled_from([0.1, 3.0, 200.0]),
    seed=some.integers(0, 2**31),
    dtype=some.sampled_from(DTYPES),
)
def test_banned_classes_count_in_the_sum_alone(rows, classes, banned, scale, seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(rows, classes, generator=generator)).to(dtype)
    ids = torch.tensor(sorted(one % classes for one in banned), dtype=torch.long)
    if classes > len(set(ids.tolist())):
        logits[:, ids] += 2 * scale  # so that they would often be chosen
        found, log_probability = find_likeliest(logits, ids)
        expected, of_expected = float64_reference(logits, ids)
        assert torch.equal(found, expected)
        assert_close(log_probability, of_expected, classes)


@pytest.mark.parametrize("place", [0, 1023, 1024, 1040])
def test_the_first_of_equal_logits_is_chosen(place):
    logits = torch.zeros(1, 2050)
    logits[0, place:] = 1
    assert find_likeliest(logits, NONE)[0].item() == place
    assert find_likeliest(logits, torch.tensor([place]))[0].item() == place + 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_do_not_depend_on_each_other(dtype):
    logits = (5 * torch.randn(33, 1009)).to(dtype)
    together = find_likeliest(logits, NONE)
    logits[::2] = torch.nan
    for row in range(1, 33, 2):
        alone = find_likeliest(logits[row : row + 1], NONE)
        assert (alone[0][0], alone[1][0]) == (together[0][row], together[1][row])
    apart = find_likeliest(logits, NONE)
    assert torch.equal(apart[1][1::2], together[1][1::2])
    assert apart[1][::2].isnan().all()


def test_rows_without_a_choice():
    logits = torch.zeros(5, 40)
    logits[1] = -torch.inf
    logits[2, 7] = torch.inf
    logits[3, 39] = torch.nan
    logits[4, 3:] = -torch.inf
    classes, log_probability = find_likeliest(logits, torch.tensor([0, 1, 2]))
    assert ((classes >= 0) & (classes < 40)).all()
    assert log_probability[:4].isfinite().tolist() == [True, False, False, False]
    assert log_probability[4] == -torch.inf
    assert classes[0] == 3


def test_large_logits_lose_nothing():
    logits = torch.tensor([[1e4, 1e4 + 1, 1e4 + 2]])
    expected = torch.tensor([0.0, 1.0, 2.0]).double().log_softmax(0)[2]
    assert torch.isclose(find_likeliest(logits, NONE)[1].double(), expected, rtol=1e-6).all()


def test_strided_and_transposed_logits():
    logits = torch.randn(1009, 6)
    for view in (logits.T, logits[::2].T, logits.T[::2], logits.T.flip(1)):
        classes, log_probability = find_likeliest(view, NONE)
        expected, of_expected = float64_reference(view, NONE)
        assert torch.equal(classes, expected)
        assert_close(log_probability, of_expected, view.shape[1])


def test_wrong_calls_are_refused():
    with pytest.raises(ValueError, match="banned: an index is out of range"):
        find_likeliest(torch.zeros(2, 5), torch.tensor([5]))
    with pytest.raises(ValueError, match="banned: an index is out of range"):
        find_likeliest(torch.zeros(2, 5), torch.tensor([-1]))


def test_what_is_left_to_torch():
    logits = torch.zeros(2, 5)
    assert can_find(logits, NONE) == (not support.is_portable())
    assert not can_find(logits.int(), NONE)
    assert not can_find(logits[:0], NONE)
    assert not can_find(logits.to("meta"), NONE)
    assert not can_find(logits.to_sparse(), NONE)
    assert not can_find(logits.clone().requires_grad_(), NONE)
