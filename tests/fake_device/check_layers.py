"""Layers, positions, caches and recordings on the fake device: the same numbers as on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch

import regard
from fake_device.device import DEVICE, DeviceTensor
from regard import masks, positions
from regard.layers import KeyValueCache, PagedCache, PagePool, decoder_block, encoder_block
from regard.models import (
    AudioInput,
    AudioOutput,
    Bert,
    BertConfig,
    Cct,
    CctConfig,
    Clip,
    ClipConfig,
    ClipTextConfig,
    ClipVisionConfig,
    Cvt,
    CvtConfig,
    JoinedInput,
    JoinedOutput,
    LabelOutput,
    Perceiver,
    PerceiverConfig,
    PixelInput,
    Swin,
    SwinConfig,
    TrainedPixelInput,
    Vit,
    VitConfig,
)

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


def assert_same(on_device, on_cpu):
    assert isinstance(on_device, DeviceTensor)
    torch.testing.assert_close(on_device.cpu(), on_cpu, rtol=0, atol=1e-5)


def test_masks_are_on_the_device_of_their_tensors():
    lengths, ids, allowed = torch.tensor([1, 2]), torch.tensor([1, 1, 2]), torch.ones(3, 3, dtype=torch.bool)
    on_device = masks.padding(lengths.to(DEVICE)), masks.documents(ids.to(DEVICE)), masks.keep(allowed.to(DEVICE))
    for mask, other in zip(on_device, (masks.padding(lengths), masks.documents(ids), masks.keep(allowed)), strict=True):
        for mask_on_device, on_cpu in ((mask, other), (masks.causal() & mask, masks.causal() & other)):
            assert isinstance(mask_on_device.dense(3, 3), DeviceTensor)
            assert torch.equal(mask_on_device.dense(3, 3).cpu(), on_cpu.dense(3, 3))
            assert torch.equal(mask_on_device.dense(3, 3, device="cpu"), on_cpu.dense(3, 3))


@pytest.mark.parametrize("name", POSITIONS)
def test_attention_and_its_gradients(name, tokens):
    on_cpu = regard.MultiHeadAttention(WIDTH, HEADS, position=POSITIONS[name]())
    on_device = copy.deepcopy(on_cpu).to(DEVICE)
    results = []
    for layer, inputs in ((on_cpu, tokens), (on_device, tokens.to(DEVICE))):
        output = layer(inputs, mask=MASK)
        results.append([output, *torch.autograd.grad(output.square().sum(), list(layer.parameters()))])
    for one, other in zip(*results, strict=True):
        assert_same(other, one)


@pytest.mark.parametrize("name", [name for name in POSITIONS if name != "dynamic"])  # it depends on the length
def test_decoding_with_a_cache(name, tokens):
    on_cpu = regard.MultiHeadAttention(WIDTH, HEADS, position=POSITIONS[name]()).eval()
    on_device, cache, parts = copy.deepcopy(on_cpu).to(DEVICE), KeyValueCache.empty(), []
    with torch.no_grad():
        for token in tokens.to(DEVICE).split(1, dim=1):
            part, cache = on_device(token, mask=masks.causal(), cache=cache)
            parts.append(part)
        assert_same(torch.cat(parts, dim=1), on_cpu(tokens, mask=masks.causal()))


SPARSE = {
    "longformer": ("longformer", {"window": 4}, True),
    "longformer, dilated": ("longformer", {"window": 400, "dilation": 2, "global_tokens": [0, 5]}, False),
    "longformer, dilated in some heads": ("longformer", {"window": 800, "dilation": [1, 1, 1, 2, 3]}, False),
    "bigbird": ("bigbird", {"block": 2, "random_blocks": 1, "global_tokens": 1}, False),
}


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_mechanisms_and_their_gradients(name, tokens):
    mechanism, options, per_text = SPARSE[name]
    here = regard.MultiHeadAttention(WIDTH, HEADS, mechanism=mechanism, mechanism_options=options)
    there, gradients = copy.deepcopy(here).to(DEVICE), []
    for layer, inputs in ((here, tokens), (there, tokens.to(DEVICE))):
        flags = (torch.arange(7) < torch.tensor([[2], [1]]))[:, None, :, None].to(inputs.device)
        output = layer(inputs, mask=MASK, **({"is_global": flags} if per_text else {}))
        gradients.append([output, *torch.autograd.grad(output.square().mean(), list(layer.parameters()))])
    for one, other in zip(*gradients, strict=True):
        assert_same(other, one)


def test_decoding_with_a_paged_cache():
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
            inputs, padding = tokens.to(device), masks.padding([7, 5])
            memory = encoder.to(device)(inputs, mask=padding)
            outputs.append(decoder.to(device)(inputs, memory, mask=masks.causal(), memory_mask=padding))
    assert_same(outputs[1], outputs[0])


def test_vit_at_two_picture_sizes():
    model = Vit(VitConfig((14, 21), (7, 7), 3, 22, 2, 2, 13, labels=("a", "b"))).eval()
    for size in ((14, 21), (21, 7)):
        pixels, outputs = torch.randn(2, 3, *size), []
        for device in ("cpu", DEVICE):
            with torch.no_grad():
                outputs.append(model.to(device)(pixels.to(device)).logits)
        assert_same(outputs[1], outputs[0])


def test_perceivers():
    sizes = {"latents": 5, "width": 12, "layers": 1, "heads": 3}
    pixels = Perceiver.classifier(PixelInput((5, 7), channels=1, bands=3), ("a", "b"), **sizes).eval()
    trained = Perceiver.classifier(TrainedPixelInput((3, 4), channels=1, width=6), ("a", "b"), **sizes).eval()
    joined = Perceiver(
        PerceiverConfig(
            JoinedInput({"sound": AudioInput(15, 3, 5), "picture": PixelInput((5, 7), channels=1, bands=3)}),
            JoinedOutput({"sound": AudioOutput(15, 3, 5), "label": LabelOutput(("a", "b"), 7)}, width=13),
            cross_heads=1,
            **sizes,
        )
    ).eval()
    picture, sound, at = torch.randn(2, 1, 5, 7), torch.randn(2, 15), torch.tensor([4, 0])
    results = []
    for device in ("cpu", DEVICE):
        data = {"sound": sound.to(device), "picture": picture.to(device)}
        with torch.no_grad():
            seen = [
                model.to(device)(data["picture"], mask=masks.padding([35, 6])).logits for model in (pixels, trained)
            ]
            for chosen in (None, {"sound": at}, {"sound": at.to(device)}):
                logits = joined.to(device)(data, mask={"sound": masks.padding([5, 3])}, at=chosen).logits
                seen += [logits["sound"], logits["label"]]
        results.append(seen)
    for on_cpu, on_device in zip(*results, strict=True):
        assert_same(on_device, on_cpu)


def test_bert_and_its_recording():
    model = Bert(BertConfig(vocabulary=31, width=22, layers=2, heads=2, inner=13, max_length=17)).eval()
    ids, results = torch.randint(0, 31, (2, 11)), []
    for device in ("cpu", DEVICE):
        model = model.to(device)
        with regard.record(model) as layers, torch.no_grad():
            hidden = model(ids.to(device), mask=masks.padding([11, 6])).hidden
            results.append([hidden, layers[1].weights(), layers[1].observe(top=3).entropy])
    for on_cpu, on_device in zip(*results, strict=True):
        assert_same(on_device, on_cpu)


def test_clip_with_padding_at_another_picture_size():
    text = ClipTextConfig(width=22, layers=2, heads=2, inner=13, projection=5, vocabulary=31, max_length=7, end_id=30)
    vision = ClipVisionConfig(26, 2, 2, 13, projection=5, picture_size=(14, 14), patch_size=(7, 7))
    model = Clip(ClipConfig(text, vision)).eval()
    ids, pixels, results = torch.tensor([[3, 4, 30, 1], [5, 30, 30, 1]]), torch.randn(3, 3, 21, 14), []
    for device in ("cpu", DEVICE):
        model = model.to(device)
        with torch.no_grad():
            output = model(ids.to(device), pixels.to(device), mask=masks.padding([3, 2]))
            results.append([output.text_embeddings, output.logits_per_image, output.image.hidden])
    for on_cpu, on_device in zip(*results, strict=True):
        assert_same(on_device, on_cpu)


def test_swin_and_its_recording():
    sizes = {"picture_size": (26, 22), "patch_size": (2, 2), "width": 6, "depths": (2, 1), "heads": (2, 3), "window": 5}
    model = Swin(SwinConfig(**sizes, absolute_positions=True, labels=("a", "b", "c"))).eval()
    pixels, results = torch.randn(2, 3, 34, 22), []
    for device in ("cpu", DEVICE):
        model = model.to(device)
        with regard.record(model) as layers, torch.no_grad():
            logits = model(pixels.to(device)).logits
            results.append([logits, layers[1].weights(), layers[1].observe(top=3).entropy])
    for on_cpu, on_device in zip(*results, strict=True):
        assert_same(on_device, on_cpu)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_cct(positions):
    sizes = {"picture_size": (13, 11), "width": 6, "layers": 1, "heads": 2, "inner": 7, "labels": ("a", "b")}
    assert_same_logits(Cct(CctConfig(**sizes, positions=positions)).eval(), torch.randn(2, 3, 15, 11))


def test_cvt():
    sizes = {"widths": (6, 10, 14), "depths": (1, 1, 1), "heads": (3, 5, 7), "labels": ("a", "b")}
    assert_same_logits(Cvt(CvtConfig((32, 32), **sizes)).eval(), torch.randn(2, 3, 32, 27))


def assert_same_logits(model, pixels):
    with torch.no_grad():
        on_cpu = model(pixels).logits
        assert_same(model.to(DEVICE)(pixels.to(DEVICE)).logits, on_cpu)
