"""Masks of models: bool, additive, biases; each is read once, and again if it was changed."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from regard import masks
from regard.errors import DtypeError, ShapeError
from regard.hf import read_mask as module
from regard.hf.read_mask import read_mask
from regard.masks import additive_mask
from regard.masks.visible_keys import VisibleKeys

CAUSAL = torch.ones(7, 7, dtype=torch.bool).tril()[None, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lowest", [None, torch.float16, torch.bfloat16, torch.float32])
def test_zeros_and_the_lowest_value_of_any_dtype_are_a_mask(dtype, lowest):
    ban = -torch.inf if lowest is None else torch.finfo(lowest).min
    additive = torch.zeros(1, 1, 7, 7).masked_fill(~CAUSAL, ban).to(dtype)
    assert read_mask(additive) == (VisibleKeys(masks.causal()), None)


def test_two_masks_that_were_added():
    lowest = torch.finfo(torch.float32).min
    additive = torch.zeros(1, 1, 7, 7).masked_fill(~CAUSAL, lowest)
    assert read_mask(additive + additive) == (VisibleKeys(masks.causal()), None)


def test_other_numbers_are_a_bias():
    bias = torch.randn(1, 3, 7, 7)
    visible, read = read_mask(bias.masked_fill(~CAUSAL, -torch.inf))
    assert visible == VisibleKeys(masks.causal())
    assert torch.equal(read, bias.masked_fill(~CAUSAL, 0.0))


def test_a_bias_that_is_trained_gets_gradients_where_it_is_visible():
    bias = torch.zeros(1, 3, 7, 7, requires_grad=True)
    visible, read = read_mask(bias.expand(5, 3, 7, 7).masked_fill(~CAUSAL, -torch.inf))
    assert visible == VisibleKeys(masks.causal())
    read.sum().backward()
    assert torch.equal(bias.grad != 0, CAUSAL.expand(1, 3, 7, 7))


def test_a_bias_without_hidden_cells():
    bias = torch.full((1, 3, 5, 7), -100.0)
    visible, read = read_mask(bias)
    assert visible == VisibleKeys(None)
    assert torch.equal(read, bias)


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        (torch.ones(1, 1, 7, 7, dtype=torch.long), DtypeError),
        (torch.ones(1, 1, 7, 7, dtype=torch.complex64), DtypeError),
        ("causal", DtypeError),
        ([[1.0]], DtypeError),
        (torch.ones(3, 7, dtype=torch.bool), ShapeError),
        (torch.ones(3, 7, 7), ShapeError),
    ],
)
def test_other_forms_are_refused(mask, error):
    with pytest.raises(error, match="attention_mask"):
        read_mask(mask)


@pytest.fixture
def count_readings(monkeypatch):
    """Count how often the values of a mask are read."""
    readings = []
    recognize = additive_mask.recognize
    monkeypatch.setattr(additive_mask, "recognize", lambda cells: readings.append(cells) or recognize(cells))
    return readings


@pytest.mark.parametrize("additive", [False, True])
def test_values_are_read_once(count_readings, additive):
    mask = torch.zeros(1, 1, 7, 7).masked_fill(~CAUSAL, -torch.inf) if additive else CAUSAL.clone()
    first = read_mask(mask)[0].mask
    assert all(read_mask(view)[0].mask is first for view in (mask, mask, mask[:, :, :, :]))
    assert len(count_readings) == 1


@pytest.mark.parametrize("inference", [False, True])
def test_values_are_read_again_after_a_change(inference):
    mask = CAUSAL.clone()
    assert read_mask(mask)[0].mask == masks.causal()
    with torch.inference_mode(inference):
        mask[..., 5, 2] = False
        assert torch.equal(read_mask(mask)[0].mask.dense(7, 7), mask)
        mask[:] = True
        assert read_mask(mask)[0] == VisibleKeys(None)


def test_a_tensor_of_inference_mode_may_change():
    with torch.inference_mode():
        mask = CAUSAL.clone()
        assert read_mask(mask)[0].mask == masks.causal()
        mask[:] = True
        assert read_mask(mask)[0] == VisibleKeys(None)


def test_slices_of_one_mask_are_told_apart():
    mask = CAUSAL.clone()
    assert read_mask(mask[:, :, :3])[0] == VisibleKeys(masks.causal(), 0, 3)
    assert read_mask(mask[:, :, 3:])[0] == VisibleKeys(masks.causal())
    assert read_mask(mask[:, :, :, 1:])[0].mask.dense(7, 6)[0, 0].tolist() == mask[0, 0, :, 1:].tolist()


def test_a_mask_is_freed():
    mask = CAUSAL.clone()
    mask[..., 5, 2] = False
    read_mask(mask), read_mask(mask[:, :, 2:])
    reference, kept = weakref.ref(mask), len(module._readings)
    del mask
    gc.collect()
    assert reference() is None
    assert len(module._readings) < kept


def test_readings_of_one_tensor_are_bounded():
    mask = CAUSAL.clone()
    for first in range(7):
        read_mask(mask[:, :, first:])
    assert len(module._readings[mask]) <= module._MAX_VIEWS
