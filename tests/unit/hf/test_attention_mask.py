"""The masks that models get: additive, always made, and recognized before they are converted."""

from __future__ import annotations

import pytest
import torch
from transformers.masking_utils import causal_mask_function, eager_mask, sliding_window_causal_mask_function

from regard import masks
from regard.hf import read_mask as module
from regard.hf.attention_mask import attention_mask, bool_mask
from regard.hf.read_mask import read_mask
from regard.masks.visible_keys import VisibleKeys
from tiny_transformers import build_tiny

SIZES = {"batch_size": 3, "q_length": 5, "kv_length": 11}
TOKENS = torch.arange(11) >= torch.tensor([[4], [2], [0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("padding", [None, TOKENS])
@pytest.mark.parametrize("function", [causal_mask_function, sliding_window_causal_mask_function(3)])
def test_equals_the_mask_of_eager(function, padding, dtype):
    arguments = SIZES | {"q_offset": 6, "mask_function": function, "attention_mask": padding, "dtype": dtype}
    mask = attention_mask(**arguments)
    assert mask.dtype == dtype
    assert torch.equal(mask, eager_mask(**arguments))


@pytest.mark.parametrize("inference", [False, True])
def test_is_recognized_without_reading_it_again(inference, monkeypatch):
    with torch.inference_mode(inference):
        mask = attention_mask(**SIZES, q_offset=6, attention_mask=TOKENS)
        monkeypatch.setattr(module, "find_visible_keys", None)
        expected = masks.causal() & masks.padding([7, 9, 11], side="left")
        assert read_mask(mask) == (VisibleKeys(expected), None)


def test_a_changed_mask_is_read_again():
    mask = attention_mask(**SIZES, q_offset=6, attention_mask=TOKENS)
    mask[:] = 0.0
    assert read_mask(mask) == (VisibleKeys(None), None)


def test_is_made_where_sdpa_has_none():
    arguments = {"batch_size": 3, "q_length": 5, "kv_length": 5}
    skips = {"allow_is_causal_skip": True, "allow_is_bidirectional_skip": True}
    assert torch.equal(bool_mask(**arguments, **skips), torch.ones(5, 5, dtype=torch.bool).tril().expand(3, 1, 5, 5))
    assert read_mask(attention_mask(**arguments, **skips)) == (VisibleKeys(masks.causal()), None)


def test_without_padding_one_text_is_stored():
    mask = attention_mask(batch_size=64, q_length=5, kv_length=5)
    assert mask.shape == (64, 1, 5, 5)
    assert mask.untyped_storage().nbytes() == 5 * 5 * 4


def test_layers_that_invert_their_mask_get_bools():
    """Those of Nemotron's streaming encoder; with the additive mask of "eager" its results are NaN."""
    results = []
    for name in ("sdpa", "regard"):
        model = build_tiny("nemotron_asr_streaming_encoder", auto="AutoModel", implementation=name)
        sound = torch.randn(2, 64, 16, generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            results.append(model(sound).last_hidden_state)
    assert results[0].isfinite().all()
    torch.testing.assert_close(*results, atol=1e-5, rtol=0)
