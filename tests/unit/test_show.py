"""``regard.show``: models, recordings, weights and readings become one view, and other arguments are refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import pre_tokenizers
from torch import nn

import regard
from regard.errors import OptionError, OutputExistsError, RefusedError, ShapeError
from regard.view import PairReading, PictureReading, Reading, read
from small_clips import small_clip
from small_image_models import image_classifier
from small_translators import SOURCE, TARGET, transformer

TEXT = "I ate an apple."


def test_a_model_its_name_and_its_folder_are_read_alike(tmp_path: Path) -> None:
    model = regard.load("minilm")
    expected = read(model, TEXT)
    for source in (model, "minilm"):
        (reading,) = regard.show(source, TEXT).readings
        assert isinstance(reading, Reading)
        assert reading.tokens == expected.tokens
        assert all(
            np.array_equal(a.weights(), b.weights()) for a, b in zip(reading.layers, expected.layers, strict=True)
        )
    assert regard.show("minilm", TEXT).name == "minilm"
    assert regard.show(model, TEXT).name == "Bert"
    assert len(regard.show(model, [TEXT, "Apple released a phone."]).readings) == 2


def test_pictures_and_texts_of_a_clip() -> None:
    picture = np.random.default_rng(1).integers(0, 256, (48, 32, 3), dtype=np.uint8)
    (reading,) = regard.show(image_classifier(), picture).readings
    assert isinstance(reading, PictureReading)
    clip = small_clip()
    (compared,) = regard.show(clip, picture, labels=["a cat"]).readings
    assert list(compared.similarities) == ["a cat"]
    assert isinstance(regard.show(clip, "a cat").readings[0], Reading)


def test_a_translator() -> None:
    (pair,) = regard.show(transformer(), SOURCE, targets=TARGET).readings
    assert isinstance(pair, PairReading)
    assert pair.forced
    assert not regard.show(transformer(), [SOURCE]).readings[0].forced
    with pytest.raises(OptionError, match="numbers of texts and of targets"):
        regard.show(transformer(), SOURCE, targets=[TARGET, TARGET])


def words_tokenizer() -> tokenizers.Tokenizer:
    words = {word: number for number, word in enumerate(["[UNK]", "cats", "sleep", "."])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


class Encoder(nn.Module):
    """A model that knows nothing of regard."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 8)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layers(self.embedding(ids))


def test_a_module_of_another_package_with_its_tokenizer() -> None:
    model = Encoder().train()
    backend = words_tokenizer()
    for tokenizer in (backend, SimpleNamespace(backend_tokenizer=backend), regard.text.Tokenizer(backend, pad_id=0)):
        (reading,) = regard.show(model, "cats sleep .", tokenizer=tokenizer).readings
        assert reading.tokens.pieces == ("cats", "sleep", ".")
        with torch.no_grad(), regard.record(model.eval()) as seen:
            model(torch.tensor([[1, 2, 3]]))
        model.train()
        for layer, call in zip(reading.layers, seen, strict=True):
            np.testing.assert_allclose(layer.weights(), call.weights()[0], atol=1e-6)
    assert model.training
    with pytest.raises(OptionError, match="needs its tokenizer"):
        regard.show(model, "cats")
    with pytest.raises(RefusedError, match="token ids alone"):
        regard.show(nn.Transformer(8, 2, 1, 1, batch_first=True), "cats", tokenizer=backend)


def test_a_recording_of_one_text_and_a_part_of_it() -> None:
    model = Encoder().eval()
    with torch.no_grad(), regard.record(model) as seen:
        model(torch.tensor([[1, 2, 3]]))
    (reading,) = regard.show(seen, tokens=["cats", "sleep", "."]).readings
    assert reading.title == "cats sleep ."
    assert len(reading.layers) == 2
    assert [layer.name for layer in regard.show(seen[0]).readings[0].layers] == [seen[0].name]
    assert [layer.name for layer in regard.show(seen[1:]).readings[0].layers] == [seen[1].name]


def test_a_recording_of_an_encoder_decoder_has_three_kinds_of_attention() -> None:
    model = nn.Transformer(16, 2, 2, 3, 16, batch_first=True).eval()
    with torch.no_grad(), regard.record(model) as seen:
        model(torch.randn(1, 5, 16), torch.randn(1, 7, 16))
    target, source = list("abcdefg"), list("uvwxy")
    (pair,) = regard.show(seen, tokens=target, key_tokens=source).readings
    assert isinstance(pair, PairReading)
    sizes = {kind: (len(one.layers), one.layers[0].weights().shape[1:]) for kind, one in pair.attentions.items()}
    assert sizes == {"alignment": (3, (7, 5)), "source": (2, (5, 5)), "target": (3, (7, 7))}
    cross = [call for call in seen if call.key.shape[2] != call.query.shape[2]]
    (reading,) = regard.show(cross, tokens=target, key_tokens=source).readings
    assert (reading.title, len(reading.layers)) == ("a b c d e f g", 3)
    with pytest.raises(RefusedError, match="no single text"):
        regard.show(seen, tokens=target)


class PatchEncoder(nn.Module):
    """A vision transformer that knows nothing of regard: a class token and patches of 4 x 4 pixels."""

    def __init__(self, extra: int = 1) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.first = nn.Parameter(torch.randn(1, extra, 8))
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([self.first, self.patches(pixels).flatten(2).transpose(1, 2)], dim=1))


@pytest.mark.parametrize(
    ("extra", "size", "grid", "prefix"),
    [(1, (12, 12), None, ("class",)), (0, (12, 12), (3, 3), ()), (2, (8, 12), (2, 3), ("class", "extra 1"))],
)
def test_a_recording_of_a_picture(
    tmp_path: Path, extra: int, size: tuple[int, int], grid: tuple[int, int] | None, prefix: tuple[str, ...]
) -> None:
    model, pixels = PatchEncoder(extra).eval(), torch.randn(1, 3, *size)
    with torch.no_grad(), regard.record(model) as seen:
        model(pixels)
    (reading,) = regard.show(seen, picture=pixels, grid=grid).readings
    assert isinstance(reading, PictureReading)
    assert reading.pixels.shape == (3, *size)
    assert (reading.pixels.min(), reading.pixels.max()) == (0, 255)
    for layer, call in zip(reading.layers, seen, strict=True):
        assert (layer.grid.prefix, layer.cell) == (prefix, (4, 4))
        np.testing.assert_allclose(layer.attention.weights(), call.weights()[0], atol=1e-6)
    assert reading.rollout is not None
    np.testing.assert_allclose(reading.rollout.sum(-1), 1)
    regard.show(seen, picture=pixels, grid=grid).save(tmp_path / "picture.html")
    weights = [call.weights() for call in seen]
    shown = regard.show(weights=weights, picture=np.zeros((*size, 3), np.uint8), grid=grid).readings[0]
    assert isinstance(shown, PictureReading)
    assert shown.pixels.shape == (3, *size)


def test_pictures_that_do_not_fit_are_refused() -> None:
    weights = np.full((1, 10, 10), 0.1)
    with pytest.raises(ShapeError, match="no grid of patches"):
        regard.show(weights=weights, picture=np.zeros((8, 8)), grid=(4, 4))
    with pytest.raises(ShapeError, match="pixels are no picture"):
        regard.show(weights=weights, picture=np.zeros((8, 8, 4)))
    with pytest.raises(ShapeError, match="no patches of one picture"):
        regard.show(weights=np.full((1, 5, 10), 0.1), picture=np.zeros((8, 8)))
    with pytest.raises(OptionError, match="wrong grid"):
        regard.show(weights=weights, picture=np.zeros((8, 8)), grid="3x3")
    with pytest.raises(OptionError, match="tokens has no effect on a picture"):
        regard.show(weights=weights, picture=np.zeros((8, 8)), tokens=["a"] * 10)
    with pytest.raises(OptionError, match="grid has no effect on texts"):
        regard.show(weights=weights, grid=(3, 3))


def test_save_and_repr(tmp_path: Path) -> None:
    view = regard.show(weights=np.eye(2), tokens=["cats", "sleep"], name="mine")
    assert repr(view) == "AttentionView('cats sleep'; .save('attention.html') writes the page)"
    path = view.save(tmp_path / "cats.html")
    assert '"model":"mine"' in path.read_text(encoding="utf-8")
    with pytest.raises(OutputExistsError):
        view.save(path)
    view.save(str(path), overwrite=True)
    assert regard.show(list(view.readings)).readings == view.readings


@pytest.mark.parametrize(
    ("match", "arguments"),
    [
        ("nothing that can be shown", {}),
        ("nothing that can be shown", {"source": 3}),
        ("two things to show", {"source": "minilm", "weights": np.eye(2)}),
        ("inputs has no effect on weights", {"weights": np.eye(2), "inputs": "a text"}),
        ("labels has no effect on weights", {"weights": np.eye(2), "labels": ["cat"]}),
        ("nothing for the model to read", {"source": nn.Linear(2, 2)}),
        ("nothing for the model to read", {"source": nn.Linear(2, 2), "inputs": []}),
        ("wrong name", {"weights": np.eye(2), "name": 3}),
    ],
)
def test_other_arguments_are_refused(match: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=match):
        regard.show(**arguments)


def test_tokens_have_no_effect_on_a_model() -> None:
    with pytest.raises(OptionError, match="tokens has no effect on a model of texts"):
        regard.show("minilm", TEXT, tokens=["I"])
