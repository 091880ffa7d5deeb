"""The loss of a classifier: equations, class weights, and that padding and shards do not change it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from regard.tasks.label_validation import balanced_weights, label_loss

LOGITS = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]], dtype=torch.float64)
TRUTH = torch.tensor([[False, False, True], [True, False, False]])


def log_softmax(row):
    total = math.log(sum(math.exp(one) for one in row))
    return [one - total for one in row]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, [0.5, 1.0, 2.0]])
def test_one_label(smoothing, weights):
    expected = 0.0
    for row, label in zip(LOGITS.tolist(), (2, 0), strict=True):
        logs = log_softmax(row)
        own = (1 - smoothing) * -logs[label] + smoothing / 3 * -sum(logs)
        expected += own * (1.0 if weights is None else weights[label])
    tensor = None if weights is None else torch.tensor(weights)
    actual = label_loss(LOGITS, TRUTH, several=False, smoothing=smoothing, weights=tensor)
    assert actual.item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("weights", [None, [0.5, 1.0, 2.0]])
def test_several_labels(weights):
    expected = 0.0
    for row, own in zip(LOGITS.tolist(), TRUTH.tolist(), strict=True):
        for label, (logit, has) in enumerate(zip(row, own, strict=True)):
            share = 1 / (1 + math.exp(-logit))
            weight = 1.0 if weights is None else weights[label]
            expected -= weight * math.log(share) if has else math.log(1 - share)
    tensor = None if weights is None else torch.tensor(weights)
    assert label_loss(LOGITS, TRUTH, several=True, weights=tensor).item() == pytest.approx(expected, rel=1e-9)


def test_balanced_weights_give_labels_the_same_total():
    truth = np.eye(3, dtype=bool)[[0] * 6 + [1] * 3 + [2]]
    weights = balanced_weights(truth, several=False)
    assert weights.tolist() == pytest.approx([10 / 18, 10 / 9, 10 / 3])
    assert (weights * torch.tensor([6, 3, 1])).sum().item() == pytest.approx(10)
    assert balanced_weights(truth, several=True).tolist() == pytest.approx([4 / 6, 7 / 3, 9])


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_is_summed_in_float32(several, dtype):
    actual = label_loss(LOGITS.to(dtype), TRUTH, several=several)
    assert actual.dtype == torch.float32
    assert actual.item() == pytest.approx(
        label_loss(LOGITS.to(dtype).double(), TRUTH, several=several).item(), rel=1e-6
    )
