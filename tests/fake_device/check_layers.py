"""Layers, positions, caches and recordings on the fake device: the same numbers as on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch

import regard
from fake_device.device import DEVICE, DeviceTensor
from regard import masks, positions
from regard.layers import KeyValueCache, PagedCache, PagePool, decoder_block, encoder_block
from regard.models import Bert, BertConfig

WIDTH, HEADS = 20, 5
POSITIONS = {
    "none": lambda: None,
    "rotary": lambda: positions.Rotary(WIDTH // HEADS),
    "dynamic": lambda: positions.Rotary(WIDTH // HEADS, scaling=positions.DynamicScaling(2.0, 5)),
    "alibi": lambda: positions.ALiBi(HEADS),
    "t5": lambda: positions.T5Buckets(HEADS, bidirectional=True),
    "shaw": lambda: positions.ShawRelative(WIDTH // HEADS, 3),
}
MASK = masks.causal() & masks.padding([7, 4])


@pytest.fixture
def tokens():
    return torch.randn(2, 7, WIDTH)


def assert_same(there, here):
    assert isinstance(there, DeviceTensor)
    torch.testing.assert_close(there.cpu(), here, rtol=0, atol=1e-5)


def test_masks_are_where_their_tensors_are():
    lengths, ids, kept = torch.tensor([1, 2]), torch.tensor([1, 1, 2]), torch.ones(3, 3, dtype=torch.bool)
    there = masks.padding(lengths.to(DEVICE)), masks.documents(ids.to(DEVICE)), masks.keep(kept.to(DEVICE))
    for mask, other in zip(there, (masks.padding(lengths), masks.documents(ids), masks.keep(kept)), strict=True):
        for one, same_here in ((mask, other), (masks.causal() & mask, masks.causal() & other)):
            assert isinstance(one.dense(3, 3), DeviceTensor)
            assert torch.equal(one.dense(3, 3).cpu(), same_here.dense(3, 3))
            assert torch.equal(one.dense(3, 3, device="cpu"), same_here.dense(3, 3))


@pytest.mark.parametrize("name", POSITIONS)
def test_attention_and_its_gradients(name, tokens):
    here = regard.MultiHeadAttention(WIDTH, HEADS, position=POSITIONS[name]())
    there = copy.deepcopy(here).to(DEVICE)
    gradients = []
    for layer, given in ((here, tokens), (there, tokens.to(DEVICE))):
        output = layer(given, mask=MASK)
        gradients.append([output, *torch.autograd.grad(output.square().sum(), list(layer.parameters()))])
    for one, other in zip(*gradients, strict=True):
        assert_same(other, one)


@pytest.mark.parametrize("name", [name for name in POSITIONS if name != "dynamic"])  # it depends on the length
def test_a_cache(name, tokens):
    here = regard.MultiHeadAttention(WIDTH, HEADS, position=POSITIONS[name]()).eval()
    there, cache, parts = copy.deepcopy(here).to(DEVICE), KeyValueCache.empty(), []
    with torch.no_grad():
        for token in tokens.to(DEVICE).split(1, dim=1):
            part, cache = there(token, mask=masks.causal(), cache=cache)
            parts.append(part)
        assert_same(torch.cat(parts, dim=1), here(tokens, mask=masks.causal()))


def test_a_cache_in_pages():
    outputs = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(3)
        key, value, query = (torch.randn(3, 2, 7, 8) for _ in range(3))
        pool = PagePool(2, 8, page_size=4, device=device)
        cache = PagedCache.empty(pool, batch=3).extended(key.to(device), value.to(device), lengths=[7, 1, 4])
        cache = cache.reordered([0, 0, 2]).extended(key[:, :, :1].to(device), value[:, :, :1].to(device))
        outputs.append(cache.attention(query[:, :, :1].to(device)))
    assert_same(outputs[1], outputs[0])


def test_blocks(tokens):
    encoder = encoder_block(WIDTH, HEADS, 13).eval()
    decoder = decoder_block(WIDTH, HEADS, 13, norm="pre", activation="swiglu").eval()
    outputs = []
    with torch.no_grad():
        for device in ("cpu", DEVICE):
            given, padding = tokens.to(device), masks.padding([7, 5])
            memory = encoder.to(device)(given, mask=padding)
            outputs.append(decoder.to(device)(given, memory, mask=masks.causal(), memory_mask=padding))
    assert_same(outputs[1], outputs[0])


def test_bert_and_what_is_recorded():
    model = Bert(BertConfig(vocabulary=31, width=22, layers=2, heads=2, inner=13, max_length=17)).eval()
    ids, seen = torch.randint(0, 31, (2, 11)), []
    for device in ("cpu", DEVICE):
        model = model.to(device)
        with regard.record(model) as layers, torch.no_grad():
            hidden = model(ids.to(device), mask=masks.padding([11, 6])).hidden
            seen.append([hidden, layers[1].weights(), layers[1].observe(top=3).entropy])
    for here, there in zip(*seen, strict=True):
        assert_same(there, here)
