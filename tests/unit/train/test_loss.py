"""The training loss, against the formula of Szegedy et al. 2016 and against torch's loss in float64."""

import pytest
import torch
from torch.nn import functional

from regard.train.loss import smoothed_cross_entropy

BATCH, LENGTH, VOCABULARY = 3, 7, 211


def make_inputs(dtype=torch.float64):
    logits = torch.randn(BATCH, LENGTH, VOCABULARY).to(dtype).requires_grad_()
    wanted = torch.randint(1, VOCABULARY, (BATCH, LENGTH))
    wanted[1, 5:], wanted[2, 3:] = 0, 0
    return logits, wanted


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
def test_the_sum_as_it_is_written(smoothing):
    logits, wanted = make_inputs()
    loss = smoothed_cross_entropy(logits, wanted, smoothing=smoothing, ignored=0)
    expected = 0.0
    for row, places in zip(logits.detach(), wanted.tolist(), strict=True):
        for scores, word in zip(row, places, strict=True):
            weights = scores.exp() / scores.exp().sum()
            spread = smoothing / VOCABULARY * -weights.log().sum()
            expected += 0.0 if word == 0 else (1 - smoothing) * -weights[word].log() + spread
    torch.testing.assert_close(loss, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_its_mean_is_torchs(dtype):
    """In half precision the logits are rounded, not the loss."""
    logits, wanted = make_inputs(dtype)
    loss = smoothed_cross_entropy(logits, wanted, smoothing=0.1, ignored=0) / (wanted > 0).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    wide = logits.detach().double().requires_grad_()
    expected = functional.cross_entropy(wide.flatten(0, 1), wanted.flatten(), label_smoothing=0.1, ignore_index=0)
    eps = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    torch.testing.assert_close(loss.double(), expected, rtol=(VOCABULARY + 16) * eps, atol=0)
    torch.testing.assert_close(
        gradient.double(), torch.autograd.grad(expected, wide)[0], rtol=torch.finfo(dtype).eps, atol=VOCABULARY * eps
    )


def test_padding_may_hold_anything():
    logits, wanted = make_inputs()
    with torch.no_grad():
        logits[wanted == 0] = torch.nan
    loss = smoothed_cross_entropy(logits, wanted, smoothing=0.1, ignored=0)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.isfinite()
    assert not gradient[wanted == 0].any()
    assert gradient[wanted > 0].isfinite().all()


def test_of_padding_alone():
    logits, wanted = make_inputs()
    loss = smoothed_cross_entropy(logits, torch.zeros_like(wanted), smoothing=0.1, ignored=0)
    assert loss == 0
    assert not torch.autograd.grad(loss, logits)[0].any()


def test_under_autocast_the_sum_is_not_rounded():
    hidden, words = torch.randn(BATCH, LENGTH, 17), torch.randn(VOCABULARY, 17)
    _, wanted = make_inputs()
    with torch.autocast("cpu", torch.bfloat16):
        logits = functional.linear(hidden, words)
        loss = smoothed_cross_entropy(logits, wanted, smoothing=0.1, ignored=0)
    assert logits.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    expected = smoothed_cross_entropy(logits.float(), wanted, smoothing=0.1, ignored=0)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
