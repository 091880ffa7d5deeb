"""The structure of a mask by its function equals that of its cells."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import masking_utils

from regard import masks
from regard.hf.attention_mask import attention_mask, bool_mask
from regard.hf.mask_function import recognize_function
from regard.hf.read_mask import read_mask
from regard.masks.visible_keys import VisibleKeys, recognize

windows = st.integers(1, 9)
functions = st.one_of(
    st.just(masking_utils.causal_mask_function),
    st.just(masking_utils.bidirectional_mask_function),
    windows.map(masking_utils.sliding_window_causal_mask_function),
    windows.map(masking_utils.sliding_window_bidirectional_mask_function),
    windows.map(masking_utils.sliding_window_overlay),
    st.just(masking_utils.and_masks(masking_utils.causal_mask_function)),
)


@st.composite
def arguments(draw) -> dict[str, object]:
    """Lengths, offsets, a function and padding, as a model passes them; keys may be unused, or past the tokens."""
    batch, queries, keys = draw(st.integers(1, 3)), draw(st.integers(1, 7)), draw(st.integers(1, 11))
    padding = None
    kv_offset = draw(st.integers(0, 3))
    if draw(st.booleans()):
        length = draw(st.integers(1, keys + kv_offset + 2))
        bounds = st.tuples(st.integers(0, length), st.integers(0, length))
        rows = [sorted(draw(bounds)) for _ in range(batch)]
        at = torch.arange(length)
        padding = torch.stack([(at >= first) & (at < stop) for first, stop in rows])
    return {
        "batch_size": batch,
        "q_length": queries,
        "kv_length": keys,
        "q_offset": draw(st.integers(0, 8)),
        "kv_offset": kv_offset,
        "mask_function": draw(functions),
        "attention_mask": padding,
    }


@given(arguments())
def test_equals_what_the_cells_say(given_arguments):
    found = recognize_function(**given_arguments)
    cells = bool_mask(**given_arguments)
    if found is not None:
        assert found == recognize(cells)
        queries, keys = cells.shape[2:]
        stop = keys if found.stop is None else found.stop
        inside = torch.zeros_like(cells)
        shown = True if found.mask is None else found.mask.dense(queries, stop - found.first)
        inside[..., found.first : stop] = shown
        assert torch.equal(inside, cells)


@pytest.mark.parametrize(
    "function",
    [
        masking_utils.or_masks(masking_utils.causal_mask_function),
        masking_utils.chunked_causal_mask_function(3, torch.zeros(2, dtype=torch.int)),
        masking_utils.and_masks(lambda batch, head, query, key: key != query, masking_utils.causal_mask_function),
        masking_utils.sliding_window_causal_mask_function(torch.tensor(3)),
    ],
    ids=["or", "chunked", "own", "tensor"],
)
def test_other_functions_are_read(function):
    sizes = {"batch_size": 2, "q_length": 7, "kv_length": 7, "mask_function": function}
    assert recognize_function(**sizes) is None
    expected = recognize(bool_mask(**sizes))
    found = read_mask(attention_mask(**sizes))[0]
    assert torch.equal(found.mask.dense(7, 7).expand(2, 1, 7, 7), expected.mask.dense(7, 7).expand(2, 1, 7, 7))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (masking_utils.causal_mask_function, masks.causal()),
        (masking_utils.sliding_window_causal_mask_function(3), masks.window(2, 0)),
        (masking_utils.bidirectional_mask_function, None),
    ],
    ids=["causal", "window", "all"],
)
def test_the_usual_masks_are_not_read(function, expected, monkeypatch):
    """If transformers changes its functions, this fails, and masks are read again."""
    monkeypatch.setattr(sys.modules["regard.hf.attention_mask"], "recognize", None)
    mask = attention_mask(batch_size=2, q_length=7, kv_length=7, mask_function=function)
    assert read_mask(mask) == (VisibleKeys(expected), None)
