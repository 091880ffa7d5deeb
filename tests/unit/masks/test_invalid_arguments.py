"""Masks with unusual arguments: repr, distant positions, and combination with None; ../test_garbage.py has the rest."""

import sys

import numpy as np
import pytest
import torch

from regard import masks
from regard.errors import RegardError


@pytest.fixture(autouse=True)
def _without_shape_checks(without_shape_checks) -> None:
    """Disable the suite's shape checks, so that the package raises its own errors."""


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (lambda: masks.global_tokens(torch.zeros(0, 5, dtype=torch.bool)), "global_tokens(bool (0, 5))"),
        (lambda: masks.global_tokens([]), "global_tokens([])"),
        (lambda: masks.global_tokens([3, 0, 3]), "global_tokens([0, 3])"),
        (lambda: masks.global_tokens(range(20)), "global_tokens([0, 1, 2, 3, 4, 5, 6, 7, ...])"),
        (lambda: masks.padding([]), "padding([])"),
        (lambda: masks.documents(torch.zeros(0, 5, dtype=torch.long)), "documents(0 in (0, 5))"),
        (lambda: masks.padding(torch.empty(3, dtype=torch.long, device="meta")), "padding(3 lengths)"),
        (lambda: masks.window(np.int64(3), sys.maxsize), "window(3, None)"),
        (lambda: masks.random_blocks(np.int64(3)), "random_blocks(3, block=64, seed=0)"),
    ],
)
def test_every_mask_can_be_printed(mask, text):
    assert repr(mask()) == text


def test_distant_global_token_needs_no_memory():
    mask = masks.global_tokens([1, 10**15])
    assert mask.dense(3, 3)[0, 0].int().tolist() == [[0, 1, 0], [1, 1, 1], [0, 1, 0]]


def test_uncalled_mask_function_is_named_in_the_error():
    with pytest.raises(RegardError, match=r"(?s)got: +the function causal.*call it: masks\.causal\(\)"):
        masks.window(2, 2) & masks.causal
    with pytest.raises(RegardError, match=r"(?s)got: +the function padding.*call it: masks\.padding\(\.\.\.\)"):
        masks.padding | masks.causal()


def test_numpy_arrays_cannot_be_combined_with_masks():
    with pytest.raises(RegardError, match="only masks can be combined by &"):
        np.ones((3, 5), dtype=bool) & masks.causal()
