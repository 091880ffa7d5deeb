"""Huge pages for weights: which memory is advised, and that its contents stay."""

import torch

import regard
from huge_page_advice import LINUX, MEBIBYTE, is_advised, new_memory
from regard.models.gpt2 import Gpt2, Gpt2Config
from regard.models.huge_pages import advise_huge_pages, collapse_huge_pages


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


def test_without_tensors_nothing_happens():
    advise_huge_pages([])
    collapse_huge_pages([])


def test_a_loaded_model_has_the_weights_of_its_folder(tmp_path):
    model = Gpt2(Gpt2Config(vocabulary=4099, width=256, layers=5, heads=4, max_length=31)).eval()
    model.save(tmp_path / "model")
    loaded = regard.load(tmp_path / "model")
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, loaded.state_dict()[name]), name
