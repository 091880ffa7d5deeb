"""Reading of a picture: layers, windows, labels, and rollouts against NumPy."""

import json
import re
import struct

import numpy as np
import pytest
import torch

import regard.view.from_recording
import regard.view.read_picture
from oracles.rollout import (
    gradient_rollout,
    latent_gradient_rollout,
    latent_rollout,
    numerical_gradient,
    rollout,
)
from picture_files import random_pixels
from regard.errors import CheckpointError, DataError, OptionError, ShapeError
from regard.mechanisms.base import Mechanism
from regard.models import Deit, DeitConfig, Swin, SwinConfig
from regard.models.media_encoder import TokenGrid
from regard.models.perceiver_inputs import ConvolutionInput, PixelInput, TrainedPixelInput
from regard.recording import record
from regard.view import PictureLayer, read_file, write_page
from regard.view.page import render_page
from regard.view.picture_data import build_pictures_data, encode_picture
from regard.view.terminal_picture import strongest_patches
from regard.vision import ImageProcessor
from small_image_models import image_classifier, small_cct, small_cvt, small_perceiver

PICTURE = random_pixels(13, 9, channels=1)


def with_processor(model, size, *, channels=1):
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.3
    model.processor = ImageProcessor(size, channels=channels, mean=(0.5,) * channels, std=(0.25,) * channels)
    return model.eval()


def deit(size, **options):
    config = DeitConfig(size, (4, 4), channels=1, labels=("a", "b", "c"), layers=2, width=20, inner=13, **options)
    return with_processor(Deit(config), size)


def swin(size=(13, 11)):
    config = SwinConfig(size, (2, 2), channels=1, width=8, depths=(2, 2), heads=(2, 4), window=3, labels=("a", "b"))
    return with_processor(Swin(config), size)


def record_weights(model, pixels):
    with torch.no_grad(), record(model) as seen:
        model(pixels)
    return [call.weights().numpy() for call in seen], list(seen)


def test_layers_labels_and_pixels_are_those_of_the_model():
    model = image_classifier()
    reading = read_file(model, PICTURE)
    np.testing.assert_array_equal(reading.pixels, model.processor.to_pixels(PICTURE))
    pixels = model.processor([PICTURE])
    weights, _ = record_weights(model, pixels)
    for layer, expected in zip(reading.layers, weights, strict=True):
        assert (layer.grid, layer.cell, layer.windows) == (TokenGrid(3, 2, ("class",)), (4, 4), None)
        np.testing.assert_allclose(layer.attention.weights(), expected[0], atol=1e-6)
    probabilities = model(pixels).logits[0].double().softmax(0)
    assert [share for _, share in reading.probabilities] == pytest.approx(sorted(probabilities.tolist())[::-1])
    assert reading.probabilities[0][0] == model.labels[int(probabilities.argmax())]


def test_rollout_agrees_with_numpy():
    model = image_classifier(layers=3)
    weights, _ = record_weights(model, model.processor([PICTURE]))
    found = read_file(model, PICTURE).rollout
    np.testing.assert_allclose(found, rollout([one[0].astype(np.float64) for one in weights]), atol=1e-6)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-12)


class Replaced:
    """The model with the output of one attention layer computed from other weights."""

    def __init__(self, model, pixels, label):
        self.model, self.pixels, self.label = model, pixels, label
        self.mechanisms = [module for module in model.modules() if isinstance(module, Mechanism)]

    def logit(self, layer, value, weights):
        mixed = torch.from_numpy(weights) @ value
        handle = self.mechanisms[layer].register_forward_hook(lambda *_: mixed[None])
        try:
            with torch.no_grad():
                return float(self.model(self.pixels).logits[0, self.label])
        finally:
            handle.remove()


@pytest.mark.parametrize(
    "make",
    [
        lambda: image_classifier(size=(8, 8), heads=2),
        lambda: deit((8, 8), heads=2, distillation_head=True),
        pytest.param(lambda: image_classifier(heads=5), marks=pytest.mark.slow),
        pytest.param(lambda: deit((12, 8), heads=5, distillation_head=True), marks=pytest.mark.slow),
    ],
    ids=["vit", "deit", "larger vit", "larger deit"],
)
def test_gradient_rollout_agrees_with_numerical_gradients(make):
    """Numerical gradients take two passes for each weight."""
    model = make().double()
    pixels = model.processor([PICTURE]).double()
    weights, calls = record_weights(model, pixels)
    reading = read_file(model, PICTURE)
    for label in (0, 2):
        replaced = Replaced(model, pixels, label)
        gradients = [
            numerical_gradient(lambda one, at=at, model=replaced: model.logit(at, calls[at].value[0], one), own[0])
            for at, own in enumerate(weights)
        ]
        expected = gradient_rollout([one[0] for one in weights], gradients)[: len(model.prefix)]
        np.testing.assert_allclose(reading.gradient_rollouts[model.labels[label]], expected, atol=1e-7)


def test_reading_leaves_the_model_as_it_was():
    model = image_classifier().train()
    read_file(model, PICTURE)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_frozen_model_and_model_without_a_head():
    frozen = image_classifier().requires_grad_(False)
    assert len(read_file(frozen, PICTURE).gradient_rollouts) == 3
    bare = read_file(image_classifier(labels=()), PICTURE)
    assert (bare.probabilities, bare.gradient_rollouts) == ((), {})
    assert bare.rollout.shape == (7, 7)


def test_other_labels_by_name(monkeypatch):
    monkeypatch.setattr(regard.view.read_picture, "MAX_LABELS", 1)
    model = image_classifier()
    first, _, last = (name for name, _ in read_file(model, PICTURE).probabilities)
    assert list(read_file(model, PICTURE, labels=[last]).gradient_rollouts) == [first, last]
    assert list(read_file(model, PICTURE, labels=[first]).gradient_rollouts) == [first]
    with pytest.raises(OptionError, match="no such label"):
        read_file(model, PICTURE, labels=["zebra"])


@pytest.mark.parametrize("size", [(13, 11), (12, 12), (5, 17)])
def test_rows_of_a_swin_lie_in_its_windows(size):
    """The layer's output from stored rows, cell by cell, equals that of the model's own windows."""
    model = swin(size)
    picture = random_pixels(*size, channels=1)
    reading = read_file(model, picture)
    weights, calls = record_weights(model, model.processor([picture]))
    assert [layer.cell for layer in reading.layers] == [(2, 2)] * 2 + [(4, 4)] * 2
    for layer, call, own in zip(reading.layers, calls, weights, strict=True):
        output = own @ call.value.numpy()
        joined = layer.windows.join(torch.from_numpy(output.transpose(0, 2, 1, 3).reshape(len(own), own.shape[2], -1)))
        plane = call.value.numpy().transpose(0, 2, 1, 3).reshape(len(own), own.shape[2], -1)
        values = layer.windows.join(torch.from_numpy(plane)).numpy()[0]
        window_of = {int(cell): window for window, cells in enumerate(layer.windows.cells.tolist()) for cell in cells}
        heads = layer.attention.heads
        for cell, keys in enumerate(layer.keys):
            padded = plane[window_of[cell]]  # values of padding are in no cell
            given = np.where((keys >= 0)[:, None], values[keys], padded).reshape(len(keys), heads, -1)
            mixed = np.einsum("hk,khd->hd", layer.attention.weights()[:, cell], given).ravel()
            np.testing.assert_allclose(mixed, joined[0, cell].numpy(), atol=1e-5)
        stored = layer.attention.value[:, layer.windows.slots.numpy()].swapaxes(0, 1)
        np.testing.assert_array_equal(stored, call.value.numpy())
    assert reading.rollout is None
    assert "merged" in reading.no_rollout_reason


@pytest.mark.parametrize("size", [(13, 9), (8, 15), (5, 5)])
def test_tokens_of_a_cct_divide_the_picture(size):
    """Two convolutions, each halving the map with the remainder: rows and columns are sides / 4, rounded up."""
    model = small_cct(size=size)
    picture = random_pixels(*size, channels=1)
    reading = read_file(model, picture)
    weights, _ = record_weights(model, model.processor([picture]))
    rows, columns = -(-size[0] // 4), -(-size[1] // 4)
    for layer, expected in zip(reading.layers, weights, strict=True):
        assert (layer.grid, layer.key_grid, layer.windows) == (TokenGrid(rows, columns), None, None)
        assert layer.cell == pytest.approx((size[0] / rows, size[1] / columns))
        np.testing.assert_allclose(layer.attention.weights(), expected[0], atol=1e-6)
    np.testing.assert_allclose(reading.rollout, rollout([one[0].astype(np.float64) for one in weights]), atol=1e-6)


def test_readout_of_a_cct_is_its_sequence_pooling():
    """The softmax over tokens of w . x + b, in NumPy, and the vector that these weights make of the tokens."""
    model = small_cct().double()
    reading = read_file(model, PICTURE)
    with torch.no_grad():
        output = model(model.processor([PICTURE]).double())
    hidden = output.hidden[0].numpy()
    score = model.pooling.score
    powers = np.exp(hidden @ score.weight.detach().numpy()[0] + float(score.bias.detach()))
    np.testing.assert_allclose(reading.readout, powers / powers.sum(), rtol=1e-10)
    np.testing.assert_allclose(reading.readout @ hidden, output.pooled[0].numpy(), atol=1e-12)
    rows, how = strongest_patches(reading)
    best = int(powers.argmax())
    assert rows[0] == (reading.layers[-1].name_of(best), pytest.approx(powers[best] / powers.sum()))
    assert "sequence pooling" in how


@pytest.mark.parametrize(
    ("label", "options", "tokens"),
    [
        (2, {"size": (9, 5), "heads": 2}, 6),
        pytest.param(2, {}, 12, marks=pytest.mark.slow),
        pytest.param(0, {}, 12, marks=pytest.mark.slow),
    ],
)
def test_gradient_rollout_of_a_cct_is_read_by_its_pooling(label, options, tokens):
    """The pooling is one more layer, of one head and one query, whose row has no identity: max(0, a * dy/da) R."""
    model = small_cct(**options).double()
    pixels = model.processor([PICTURE]).double()
    weights, calls = record_weights(model, pixels)
    with torch.no_grad():
        hidden = model(pixels).hidden
    reading = read_file(model, PICTURE)

    def logit_of_pooling(own, label):
        handle = model.pooling.register_forward_hook(lambda *_: torch.from_numpy(own)[None] @ hidden[0])
        try:
            with torch.no_grad():
                return float(model(pixels).logits[0, label])
        finally:
            handle.remove()

    replaced = Replaced(model, pixels, label)
    gradients = [
        numerical_gradient(lambda one, at=at: replaced.logit(at, calls[at].value[0], one), own[0])
        for at, own in enumerate(weights)
    ]
    slopes = numerical_gradient(lambda one: logit_of_pooling(one, label), reading.readout.copy())
    expected = np.maximum(0, reading.readout * slopes) @ gradient_rollout([one[0] for one in weights], gradients)
    found = reading.gradient_rollouts[model.labels[label]]
    assert found.shape == (1, tokens)
    np.testing.assert_allclose(found[0], expected, atol=1e-7)


def test_cct_without_labels_and_with_signed_weights():
    bare = read_file(small_cct(labels=()), PICTURE)
    assert (bare.probabilities, bare.gradient_rollouts, bare.rollout.shape) == ((), {}, (12, 12))
    model = small_cct(mechanism="linformer", mechanism_options={"length": 12, "projected": 3})
    signed = read_file(model, PICTURE)
    assert signed.rollout is None
    assert signed.readout.sum() == pytest.approx(1)


def test_keys_of_a_cvt_lie_on_grids_of_their_own():
    """Sides by the equation of convolutions, (side + 2 padding - kernel) // stride + 1."""
    size = (26, 19)
    model = small_cvt(size=size)
    picture = random_pixels(*size, channels=1)
    reading = read_file(model, picture)
    weights, _ = record_weights(model, model.processor([picture]))
    stages = [(TokenGrid(9, 7), TokenGrid(5, 4)), *[(TokenGrid(5, 4, ("class",)), TokenGrid(3, 2, ("class",)))] * 2]
    for layer, expected, (queries, keys) in zip(reading.layers, weights, stages, strict=True):
        assert (layer.grid, layer.key_grid, layer.windows) == (queries, keys, None)
        assert layer.cell == pytest.approx((26 / queries.rows, 19 / queries.columns))
        assert layer.key_cell == pytest.approx((26 / keys.rows, 19 / keys.columns))
        np.testing.assert_allclose(layer.attention.weights(), expected[0], atol=1e-6)
        np.testing.assert_array_equal(layer.keys, [list(range(keys.tokens))] * queries.tokens)
    last = reading.layers[-1]
    assert [last.name_of(token) for token in (0, 6)] == ["class token", "row 1, column 1"]
    assert [last.name_of_key(token) for token in (0, 6)] == ["class token", "key row 2, column 1"]
    assert (reading.rollout, reading.gradient_rollouts, reading.readout) == (None, {}, None)
    assert "keys of a CvT" in reading.no_rollout_reason
    rows, _ = strongest_patches(reading)
    received = weights[-1][0].mean(0)[0, 1:]
    assert rows[0] == (last.name_of_key(1 + int(received.argmax())), pytest.approx(received.max(), abs=1e-6))
    with pytest.raises(ShapeError, match="does not match its tokens"):
        PictureLayer(last.grid, last.attention, last.cell)


def test_cvt_whose_keys_lie_as_its_queries():
    model = small_cvt(key_value_strides=(1, 1), class_token=False)
    reading = read_file(model, random_pixels(26, 19, channels=1))
    assert [layer.key_grid for layer in reading.layers] == [None] * 3
    rows, how = strongest_patches(reading)
    received = reading.layers[-1].attention.weights().mean((0, 1))
    assert rows[0] == (reading.layers[-1].name_of(int(received.argmax())), pytest.approx(received.max()))
    assert "all tokens, averaged" in how


def test_a_cvt_may_have_more_tokens_than_a_model_with_a_rollout(monkeypatch):
    monkeypatch.setattr(regard.view.read_picture, "MAX_TOKENS", 6)
    assert read_file(small_cvt(), random_pixels(26, 19, channels=1)).layers[0].grid.tokens == 63
    monkeypatch.setattr(regard.view.from_recording, "MAX_WEIGHTS", 3 * 63 * 20)
    with pytest.raises(DataError, match="too many weights"):
        read_file(small_cvt(), random_pixels(26, 19, channels=1))


def test_refusals():
    model = image_classifier()
    model.processor = None
    with pytest.raises(CheckpointError, match="how its pixels are made"):
        read_file(model, PICTURE)
    with pytest.raises(DataError, match=r"cat\.png"):
        read_file(image_classifier(), b"no picture", name="cat.png")
    reading = read_file(image_classifier(), PICTURE)
    with pytest.raises(ShapeError, match="does not match its tokens"):
        PictureLayer(TokenGrid(3, 3), reading.layers[0].attention, (4, 4))


def test_too_many_patches(monkeypatch):
    monkeypatch.setattr(regard.view.read_picture, "MAX_TOKENS", 6)
    with pytest.raises(DataError, match="too many patches"):
        read_file(image_classifier(), PICTURE)


@pytest.mark.parametrize(
    ("reads", "options", "keys"),
    [
        (PixelInput((6, 5), 1, 3), {}, (6, 5)),
        (TrainedPixelInput((4, 7), 3, 4), {"repeats": 2, "cross_heads": 2}, (4, 7)),
        (ConvolutionInput((17, 13), 1, 8, 3), {}, (4, 3)),
    ],
    ids=["pixels", "trained", "convolution"],
)
def test_latents_of_a_perceiver_and_what_its_answer_rests_on(reads, options, keys):
    model = small_perceiver(reads, **options)
    picture = random_pixels(*reads.size, channels=reads.channels)
    weights, calls = record_weights(model, model.processor([picture]))
    reading = read_file(model, picture)
    (layer,) = reading.layers
    assert (layer.grid, layer.key_grid) == (TokenGrid(0, 0, tuple(f"latent {n}" for n in range(5))), TokenGrid(*keys))
    assert layer.key_cell == pytest.approx((reads.size[0] / keys[0], reads.size[1] / keys[1]))
    np.testing.assert_allclose(layer.attention.weights(), weights[0][0], atol=1e-6)
    assert len(calls) == 2 * options.get("repeats", 1) + 2
    np.testing.assert_allclose(reading.readout, latent_rollout([one[0] for one in weights])[0], atol=1e-6)
    assert reading.readout.sum() == pytest.approx(1)
    assert (layer.name_of(3), layer.name_of_key(4)) == ("latent 3", f"row {4 // keys[1]}, column {4 % keys[1]}")
    rows, how = strongest_patches(reading)
    assert rows[0] == (layer.name_of_key(int(reading.readout.argmax())), pytest.approx(reading.readout.max()))
    assert "query of the labels" in how


def test_gradient_rollout_of_a_perceiver_agrees_with_numerical_gradients():
    model = small_perceiver(PixelInput((3, 2), 1, 3)).double()
    picture = random_pixels(3, 2, channels=1)
    pixels = model.processor([picture]).double()
    weights, calls = record_weights(model, pixels)
    reading = read_file(model, picture)
    for label in (0, 2):
        replaced = Replaced(model, pixels, label)
        gradients = [
            numerical_gradient(lambda one, at=at, model=replaced: model.logit(at, calls[at].value[0], one), own[0])
            for at, own in enumerate(weights)
        ]
        expected = latent_gradient_rollout([one[0] for one in weights], gradients)
        np.testing.assert_allclose(reading.gradient_rollouts[model.labels[label]], expected, atol=1e-7)


def test_too_many_pixels_of_a_perceiver(monkeypatch):
    monkeypatch.setattr(regard.view.read_picture, "MAX_PIXELS", 29)
    with pytest.raises(DataError, match="too many patches"):
        read_file(small_perceiver(PixelInput((6, 5), 1, 3)), random_pixels(6, 5, channels=1))


def test_linformer_shows_weights_without_rollout():
    model = image_classifier(mechanism="linformer", mechanism_options={"length": 7, "projected": 3})
    reading = read_file(model, PICTURE)
    assert reading.rollout is None
    assert "below 0" in reading.no_rollout_reason
    assert reading.layers[0].attention.is_signed
    strongest_patches(reading)


def test_pictures_are_exact_as_png_and_smaller_as_jpeg():
    import base64
    import io

    from PIL import Image

    for pixels in (random_pixels(7, 5).transpose(2, 0, 1), PICTURE[None]):
        head, _, packed = encode_picture(pixels).partition(",")
        assert head == "data:image/png;base64"
        decoded = np.asarray(Image.open(io.BytesIO(base64.b64decode(packed))))
        np.testing.assert_array_equal(decoded, pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    assert encode_picture(random_pixels(400, 400).transpose(2, 0, 1)).startswith("data:image/jpeg;")


def test_page_is_self_contained_and_escapes_names():
    name = "</script><b>\u202ecat.png"
    page = render_page([read_file(image_classifier(), PICTURE, name=name)], model="m")
    assert page.count("</script>") == 2
    assert "<b>" not in page.replace("<b>regard", "")
    assert "\u202e" not in page
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert "img-src data:;" in policy
    assert "unsafe" not in policy
    assert not re.findall(r"""(?:src|href)=["']?http""", page)
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page, re.DOTALL)[0])
    assert data["letters"] == 0
    assert [len(layer["query"]) for layer in data["texts"][0]["layers"]] == [5, 5]


def test_large_page_has_no_values():
    reading = read_file(image_classifier(), PICTURE)
    small, large = (build_pictures_data([reading], "", room) for room in (100_000, 100))
    assert (small["texts"][0]["layers"][0]["value_dim"], large["texts"][0]["layers"][0]["value_dim"]) == (4, 0)
    assert large["letters"] == 2
    assert large["largest_error"] < 0.01


@pytest.mark.parametrize("labels", [3, 5, 8])
def test_labels_that_are_not_shown_are_counted(labels):
    reading = read_file(image_classifier(tuple(f"label {number}" for number in range(labels))), PICTURE)
    (text,) = build_pictures_data([reading], "", 100_000)["texts"]
    assert len(text["labels"]) + text["other_labels"] == labels
    assert [label for label, _ in text["labels"]] == [label for label, _ in reading.probabilities[:5]]


def test_gradients_are_stored_exactly():
    import base64

    reading = read_file(image_classifier(), PICTURE)
    (text,) = build_pictures_data([reading], "", 100_000)["texts"]
    for label, packed in text["gradients"].items():
        numbers = struct.unpack("<7f", base64.b64decode(packed))
        np.testing.assert_allclose(numbers, reading.gradient_rollouts[label][0], rtol=1e-6)


def test_strongest_patches_are_those_of_the_rollout():
    reading = read_file(image_classifier(), PICTURE)
    rows, how = strongest_patches(reading)
    best = int(reading.rollout[0, 1:].argmax())
    assert rows[0] == (f"row {best // 2}, column {best % 2}", pytest.approx(reading.rollout[0, 1 + best]))
    assert how.startswith("Attention rollout of the class token")


def test_strongest_patches_of_a_swin_are_received_weights():
    model = swin((12, 12))
    reading = read_file(model, random_pixels(12, 12, channels=1))
    rows, _ = strongest_patches(reading)
    assert sum(share for _, share in rows) <= 1 + 1e-9
    layer = reading.layers[-1]
    received = np.zeros(layer.grid.tokens)
    for query, keys in enumerate(layer.keys):
        for at, key in enumerate(keys):
            if key >= 0:
                received[key] += layer.attention.weights()[:, query, at].mean() / layer.grid.tokens
    assert rows[0][1] == pytest.approx(received.max())


def test_nothing_to_show(tmp_path):
    with pytest.raises(DataError, match="nothing to show"):
        write_page([], tmp_path / "page.html")
