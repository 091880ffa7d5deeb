"""Huge pages for weights, keys and values: which memory is advised, and that its contents stay."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import regard
from huge_page_advice import LINUX, MEBIBYTE, is_advised, new_memory
from regard.huge_pages import advise_huge_pages, collapse_huge_pages, new_empty
from regard.mechanisms.key_value_cache import KeyValueCache
from regard.mechanisms.page_pool import PagePool
from regard.models.gpt2 import Gpt2, Gpt2Config


def new_tensor(sizes, dtype):
    return new_memory(math.prod(sizes) * dtype.itemsize, dtype).view(sizes)


@LINUX
def test_large_tensors_are_advised():
    weights = [new_memory(5 * MEBIBYTE, torch.uint8) for _ in range(3)]
    advise_huge_pages(weights)
    for one in weights:
        assert is_advised(one.data_ptr() + len(one) // 2)


@LINUX
def test_small_tensors_far_from_each_other_are_not():
    one = new_memory(64 * MEBIBYTE, torch.uint8)
    advise_huge_pages([one[MEBIBYTE : 2 * MEBIBYTE], one[40 * MEBIBYTE : 41 * MEBIBYTE]])
    assert not is_advised(one.data_ptr() + 32 * MEBIBYTE)


def test_contents_stay():
    whole = torch.arange(9 * MEBIBYTE // 8)
    around = whole[3:-5]
    expected = whole.clone()
    collapse_huge_pages([around, around[7:], torch.ones(3), torch.empty(5, device="meta"), torch.empty(0)])
    assert torch.equal(whole, expected)


@LINUX
def test_large_keys_and_values_are_advised():
    with (
        torch.no_grad(),
        pytest.MonkeyPatch.context() as patch,
    ):  # an allocator may return memory that had advice before
        patch.setattr(torch.Tensor, "new_empty", lambda like, *sizes: new_tensor(sizes, like.dtype))
        tokens = torch.zeros(3, 5, 2063, 64)  # 7.5 MiB: wherever it begins, its middle is in a whole huge page
        cache = KeyValueCache.empty().extended(tokens, tokens).extended(tokens[:, :, :1], tokens[:, :, :1])
        pool = PagePool(key_heads=5, page_size=64, head_dim=64)
        pool.take(307)
    for keys in (cache.key, cache.value, pool.key, pool.value):
        assert is_advised(keys.data_ptr() + keys.nbytes // 2)


def test_memory_is_that_of_torch_without_values():
    with FakeTensorMode():
        assert new_empty(torch.empty(3), 5, 2**20).shape == (5, 2**20)
    assert new_empty(torch.empty(3, device="meta"), 5, 2**20).is_meta
    assert torch.vmap(lambda one: new_empty(one, 2**21).zero_())(torch.empty(3)).shape == (3, 2**21)


def test_without_tensors_nothing_happens():
    advise_huge_pages([])
    collapse_huge_pages([])


def test_a_loaded_model_has_the_weights_of_its_folder(tmp_path):
    model = Gpt2(Gpt2Config(vocabulary=4099, width=256, layers=5, heads=4, max_length=31)).eval()
    model.save(tmp_path / "model")
    loaded = regard.load(tmp_path / "model")
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, loaded.state_dict()[name]), name
