"""The cache of a window: the outputs of the full cache, in memory that does not grow, whatever the steps."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from hypothesis_examples import examples
from regard import masks, positions
from regard.errors import OptionError, ShapeError
from regard.layers import KeyValueCache, MultiHeadAttention, WindowCache
from regard.models import Llama, LlamaConfig
from regard.search import Beam, Greedy, Sampling
from sampled_parameters import parametrize_sample

WIDTH, HEADS = 12, 3
steps = st.lists(st.one_of(st.integers(1, 3), st.integers(1, 29)), min_size=1, max_size=9)


def make_layer(position=None):
    torch.manual_seed(5)
    return MultiHeadAttention(WIDTH, HEADS, position=position).double().eval()


def windowed_model(windows, max_length=67):
    torch.manual_seed(3)
    model = Llama(
        LlamaConfig(
            vocabulary=31, width=24, layers=len(windows), heads=4, key_value_heads=2, inner=13, windows=windows,
            model_type="gemma3_text", max_length=max_length, sandwich_norms=True, norm_offset=1.0, query_key_norm=True,
            scale_embedding=True, activation="geglu_tanh", head_dim=6, end_ids=(2,), tied=True, deviation=0.3,
        )
    )  # fmt: skip
    return model.double().eval()


@pytest.mark.parametrize("position", [None, positions.Rotary(WIDTH // HEADS), positions.ALiBi(HEADS)])
@examples(30)
@given(size=st.sampled_from([1, 2, 5, 17, 300]), lengths=steps, mode=st.sampled_from(["grad", "no_grad", "inference"]))
def test_any_steps_give_the_output_of_the_whole_text(position, size, lengths, mode):
    layer, mask = make_layer(position), masks.window(size - 1, 0)
    tokens, cache, parts = torch.randn(2, sum(lengths), WIDTH, dtype=torch.float64), layer.empty_cache(window=size), []
    with {"no_grad": torch.no_grad, "grad": torch.enable_grad, "inference": torch.inference_mode}[mode]():
        whole = layer(tokens, mask=mask)
        for piece in tokens.split(lengths, dim=1):
            assert cache.visible_keys(piece.shape[1]) == min(cache.length, size - 1) + piece.shape[1]
            output, cache = layer(piece, mask=mask, cache=cache)
            parts.append(output)
    assert cache.length == sum(lengths)
    assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-12)


@examples(30)
@given(size=st.sampled_from([1, 3, 64, 101]), lengths=steps, order=st.lists(st.integers(0, 1), min_size=1, max_size=3))
def test_branches_and_reordered_rows_keep_their_own_tokens(size, lengths, order):
    """Every cache of a chain, extended again later, holds the last tokens of its text."""
    with torch.no_grad():
        texts = torch.randn(2, 2, sum(lengths), 5)
        caches = [WindowCache.empty(size)]
        for piece in texts.split(lengths, dim=2):
            caches.append(caches[-1].extended(piece, piece).trimmed())
        more = torch.randn(len(order), 2, 7, 5)
        for cache in caches[1:]:
            chosen = texts[order, :, : cache.length]
            longer = cache.reordered(torch.tensor(order)).extended(more, more)
            kept = min(cache.length, size - 1)
            assert torch.equal(longer.key, torch.cat([chosen[:, :, cache.length - kept :], more], dim=2))
            again = cache.extended(more[:1].expand(2, -1, -1, -1), more[:1].expand(2, -1, -1, -1))
            assert torch.equal(again.key[:, :, kept:], more[:1].expand(2, -1, -1, -1))


@pytest.mark.parametrize("size", [7, 500])
def test_memory_does_not_grow_with_the_text(size):
    bound, cache = size + max(64, size // 4) + 1, WindowCache.empty(size)
    with torch.no_grad():
        for length in (1500, 1, 1, 300, *[1] * 700):
            new = torch.randn(1, 1, length, 3)
            cache = cache.extended(new, new).trimmed()
            assert cache._storage.tensors["key"].untyped_storage().nbytes() <= 4 * 3 * bound
    assert cache.length == 2502


@parametrize_sample("search, size", [Greedy(), Beam(3, best=2), Sampling(seed=3, best=2)], [2, 11, 40])
def test_models_write_the_texts_of_the_full_cache(search, size, monkeypatch):
    """Prompts of different lengths, padded, in windows that are shorter and longer than the padding."""
    model = windowed_model((size, size, None))
    prompts, lengths = torch.randint(3, 31, (4, 23)), torch.tensor([23, 3, 1, 14])
    found = search.search(model, prompts, lengths, max_tokens=19)
    kept = [type(cache.own) for cache in model.prefill(prompts)[1].caches]
    assert kept == [WindowCache, WindowCache, KeyValueCache]
    monkeypatch.setattr(WindowCache, "empty", lambda *_: KeyValueCache.empty())
    for ours, full in zip(found, search.search(model, prompts, lengths, max_tokens=19), strict=True):
        assert [one.ids for one in ours] == [one.ids for one in full]
        assert [one.score for one in ours] == pytest.approx([one.score for one in full], abs=1e-10)


def test_what_is_outside_the_window_has_no_influence_even_if_it_is_no_number():
    layer, mask = make_layer(), masks.window(4, 0)
    tokens = torch.randn(1, 23, WIDTH, dtype=torch.float64)
    poisoned = tokens.clone()
    poisoned[:, :15] = torch.nan
    with torch.no_grad():
        outputs = []
        for text in (tokens, poisoned):
            _, cache = layer(text[:, :19], mask=mask, cache=layer.empty_cache(window=5))
            outputs.append(layer(text[:, 19:], mask=mask, cache=cache)[0])
    assert torch.equal(*outputs)


@pytest.mark.parametrize(("size", "kind"), [(66, WindowCache), (67, KeyValueCache), (68, KeyValueCache)])
def test_a_window_as_long_as_the_context_needs_no_cache_of_its_own(size, kind):
    _, state = windowed_model((size,)).prefill(torch.tensor([[5, 6]]))
    assert type(state.caches[0].own) is kind


def test_wrong_arguments_are_refused():
    with pytest.raises(OptionError, match="size"):
        WindowCache.empty(0)
    with pytest.raises(OptionError, match="window"):
        make_layer().empty_cache(window=0)
    with pytest.raises(ShapeError, match="empty"):
        _ = WindowCache.empty(3).key
    cache = WindowCache.empty(3).extended(torch.randn(1, 2, 4, 5), torch.randn(1, 2, 4, 5))
    with pytest.raises(ShapeError, match="do not fit"):
        cache.extended(torch.randn(1, 3, 1, 5), torch.randn(1, 3, 1, 5))
