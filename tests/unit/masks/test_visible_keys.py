"""A mask recognized by its values hides the same cells, and is a band and padding wherever one equals it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard import masks
from regard.masks.dense_mask import Keep
from regard.masks.visible_keys import VisibleKeys, recognize


def cells_of(visible: VisibleKeys, batch: int, queries: int, keys: int) -> Tensor:
    """The bool tensor (batch, 1, queries, keys) that a result describes."""
    stop = keys if visible.stop is None else visible.stop
    cells = torch.zeros(batch, 1, queries, keys, dtype=torch.bool)
    if visible.mask is None:
        cells[..., visible.first : stop] = True
    else:
        visible.mask.check(batch, 1, queries, stop - visible.first)
        cells[..., visible.first : stop] = visible.mask.dense(queries, stop - visible.first)
    return cells


@st.composite
def structured_cells(draw: st.DrawFn) -> Tensor:
    """A band, and padding on both sides."""
    batch, queries, keys = (draw(st.integers(1, most)) for most in (3, 7, 11))
    offset = draw(st.integers(-3, keys))
    row, key = torch.arange(queries)[:, None] + offset, torch.arange(keys)
    cells = torch.ones(queries, keys, dtype=torch.bool)
    if draw(st.booleans()):
        cells &= key <= row
    if draw(st.booleans()):
        cells &= key > row - draw(st.integers(1, 6))
    cells = cells.expand(batch, 1, queries, keys).clone()
    for text in range(batch):
        cells[text, :, :, : draw(st.integers(0, 4))] = False
        cells[text, :, :, keys - draw(st.integers(0, 4)) :] = False
    return cells


@given(structured_cells())
def test_a_band_with_padding_keeps_its_cells(cells):
    found = recognize(cells)
    assert torch.equal(cells_of(found, *(cells.shape[dim] for dim in (0, 2, 3))), cells)


@given(st.data())
def test_any_cells_are_kept(data):
    batch, queries, keys = (data.draw(st.integers(1, most)) for most in (2, 4, 5))
    bits = data.draw(st.lists(st.booleans(), min_size=batch * queries * keys, max_size=batch * queries * keys))
    cells = torch.tensor(bits).reshape(batch, 1, queries, keys)
    assert torch.equal(cells_of(recognize(cells), batch, queries, keys), cells)


def causal_cells(queries: int, keys: int, offset: int) -> Tensor:
    return (torch.arange(keys) <= torch.arange(queries)[:, None] + offset)[None, None]


def test_causal():
    assert recognize(causal_cells(7, 7, 0)) == VisibleKeys(masks.causal())


def test_new_queries_of_a_dynamic_cache():
    assert recognize(causal_cells(3, 11, 8)) == VisibleKeys(masks.causal())


def test_unused_keys_of_a_static_cache_are_left_out():
    assert recognize(causal_cells(3, 13, 4)) == VisibleKeys(masks.causal(), 0, 7)
    assert recognize(causal_cells(1, 13, 4)) == VisibleKeys(None, 0, 5)


def test_window():
    cells = causal_cells(11, 11, 0) & ~causal_cells(11, 11, -5)
    assert recognize(cells) == VisibleKeys(masks.window(4, 0))


def test_bidirectional_window():
    cells = causal_cells(11, 11, 3) & ~causal_cells(11, 11, -4)
    assert recognize(cells) == VisibleKeys(masks.window(3, 3))


def test_nothing_is_hidden():
    assert recognize(torch.ones(3, 1, 5, 7, dtype=torch.bool)) == VisibleKeys(None)
    assert recognize(torch.ones(1, 1, 1, 1, dtype=torch.bool).expand(3, 2, 5, 7)) == VisibleKeys(None)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(side):
    tokens = torch.ones(3, 11, dtype=torch.bool)
    if side == "left":
        tokens[0, :4] = tokens[1, :2] = False
    else:
        tokens[0, 7:] = tokens[1, 9:] = False
    expected = masks.padding([7, 9, 11], side=side)
    assert recognize(tokens[:, None, None, :].expand(3, 1, 5, 11)) == VisibleKeys(expected)
    assert recognize((tokens[:, None, None, :] & causal_cells(11, 11, 0)).clone()) == VisibleKeys(
        masks.causal() & expected
    )


def test_one_padding_for_all_texts_leaves_keys_out():
    tokens = torch.arange(11) >= 4
    assert recognize(tokens.expand(3, 1, 5, 11)) == VisibleKeys(None, 4, None)


def test_a_text_without_tokens():
    tokens = torch.ones(3, 11, dtype=torch.bool)
    tokens[1] = False
    found = recognize(tokens[:, None, None, :].expand(3, 1, 5, 11))
    assert torch.equal(cells_of(found, 3, 5, 11), tokens[:, None, None, :].expand(3, 1, 5, 11))
    assert not isinstance(found.mask, Keep)


def test_other_forms_stay_cells():
    cells = causal_cells(7, 7, 0).clone()
    cells[..., 5, 2] = False
    assert isinstance(recognize(cells).mask, Keep)
    of_heads = torch.stack([causal_cells(7, 7, 0)[0, 0], torch.ones(7, 7, dtype=torch.bool)])[None]
    assert isinstance(recognize(of_heads).mask, Keep)
    assert torch.equal(recognize(of_heads).mask.dense(7, 7), of_heads)


def test_expanded_cells_are_stored_once():
    found = recognize(torch.eye(7, dtype=torch.bool).flip(0).expand(5, 3, 7, 7))
    assert found.mask.allowed.shape == (1, 1, 7, 7)
