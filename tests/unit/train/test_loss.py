"""The training loss, against the formula of Szegedy et al. 2016 and against torch's loss in float64."""

import pytest
import torch
from torch.nn import functional

from regard.train.loss import smoothed_cross_entropy

BATCH, LENGTH, VOCABULARY = 3, 7, 211


def make_inputs(dtype=torch.float64):
    logits = torch.randn(BATCH, LENGTH, VOCABULARY).to(dtype).requires_grad_()
    labels = torch.randint(1, VOCABULARY, (BATCH, LENGTH))
    labels[1, 5:], labels[2, 3:] = 0, 0
    return logits, labels


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
def test_sum_agrees_with_the_formula(smoothing):
    logits, labels = make_inputs()
    loss = smoothed_cross_entropy(logits, labels, smoothing=smoothing, ignored=0)
    expected = 0.0
    for row, places in zip(logits.detach(), labels.tolist(), strict=True):
        for scores, word in zip(row, places, strict=True):
            weights = scores.exp() / scores.exp().sum()
            spread = smoothing / VOCABULARY * -weights.log().sum()
            expected += 0.0 if word == 0 else (1 - smoothing) * -weights[word].log() + spread
    torch.testing.assert_close(loss, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_mean_agrees_with_torch(dtype):
    """In half precision the logits are rounded, not the loss."""
    logits, labels = make_inputs(dtype)
    loss = smoothed_cross_entropy(logits, labels, smoothing=0.1, ignored=0) / (labels > 0).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    wide = logits.detach().double().requires_grad_()
    expected = functional.cross_entropy(wide.flatten(0, 1), labels.flatten(), label_smoothing=0.1, ignore_index=0)
    eps = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    torch.testing.assert_close(loss.double(), expected, rtol=(VOCABULARY + 16) * eps, atol=0)
    torch.testing.assert_close(
        gradient.double(), torch.autograd.grad(expected, wide)[0], rtol=torch.finfo(dtype).eps, atol=VOCABULARY * eps
    )


def test_nonfinite_padding_has_no_effect():
    logits, labels = make_inputs()
    with torch.no_grad():
        logits[labels == 0] = torch.nan
    loss = smoothed_cross_entropy(logits, labels, smoothing=0.1, ignored=0)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.isfinite()
    assert not gradient[labels == 0].any()
    assert gradient[labels > 0].isfinite().all()


def test_loss_of_only_padding_is_0():
    logits, labels = make_inputs()
    loss = smoothed_cross_entropy(logits, torch.zeros_like(labels), smoothing=0.1, ignored=0)
    assert loss == 0
    assert not torch.autograd.grad(loss, logits)[0].any()


def test_sum_is_not_rounded_under_autocast():
    hidden, words = torch.randn(BATCH, LENGTH, 17), torch.randn(VOCABULARY, 17)
    _, labels = make_inputs()
    with torch.autocast("cpu", torch.bfloat16):
        logits = functional.linear(hidden, words)
        loss = smoothed_cross_entropy(logits, labels, smoothing=0.1, ignored=0)
    assert logits.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    expected = smoothed_cross_entropy(logits.float(), labels, smoothing=0.1, ignored=0)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
