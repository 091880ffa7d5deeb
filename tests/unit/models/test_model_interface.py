"""What holds for every model: its folder is opened once, written and read by the same interface, and has a kind."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import every_model
import regard
from regard.classification import MediaClassifier, embed_files
from regard.errors import CheckpointError
from regard.masks import Mask
from regard.models import Clip, Encoder, ImageEncoder, ImageOutput, Model, Perceiver, TokenGrid, kinds, model_folder
from regard.models.config_file import ConfigFile
from regard.models.kinds import IMAGE_ENCODER, ModelKind
from regard.models.label_names import label_fields
from regard.models.load import find_class, find_kind
from regard.models.media_encoder import MediaEncoder
from regard.models.model_folder import ModelFolder
from regard.models.weight_names import WeightNames, same_names
from regard.view import read
from regard.vision import ImageProcessor

_ALONE = {"PerceiverImageEncoder", "PerceiverTextEncoder"}
"""Models whose folder is loaded as a Perceiver, of which they are a part."""
_KINDS = {row for row in vars(kinds).values() if isinstance(row, ModelKind)}


@pytest.fixture(params=every_model.EXAMPLES, ids=lambda kind: kind.__name__)
def model(request):
    return every_model.make_example(request.param)[0]


def test_every_model_is_written_and_read_by_the_interface(model, tmp_path, monkeypatch):
    assert isinstance(model, Model)
    model.metadata = {"steps": 3}
    model.save(tmp_path / "model")
    (tmp_path / "model" / "notes.txt").write_text("of the user")
    model.save(tmp_path / "model", overwrite=True, keep_others=True, max_shard_bytes=999)
    assert (tmp_path / "model" / "notes.txt").exists()
    assert (tmp_path / "model" / "model.safetensors.index.json").exists()

    headers, objects = [], []
    read_header, read_json = model_folder.stored_tensors, model_folder.ConfigFile.read
    monkeypatch.setattr(model_folder, "stored_tensors", lambda folder: headers.append(folder) or read_header(folder))
    monkeypatch.setattr(
        model_folder.ConfigFile, "read", staticmethod(lambda folder: objects.append(folder) or read_json(folder))
    )
    folder = ModelFolder.open(tmp_path / "model")
    assert find_kind(folder) in _KINDS
    again = regard.load(folder)
    assert headers == objects == [tmp_path / "model"]
    assert again.metadata == {"steps": 3}
    assert not again.training
    assert again.kind in _KINDS
    again = type(model).part_of(again)
    assert again is not None
    assert {name: weight.shape for name, weight in again.state_dict().items()} == {
        name: weight.shape for name, weight in model.state_dict().items()
    }
    if type(model).__name__ not in _ALONE:
        assert find_class(folder) is type(model)
        assert again.config_fields() == model.config_fields()
        assert all(torch.equal(again.state_dict()[name], weight) for name, weight in model.state_dict().items())


def test_a_model_says_whether_it_reads_texts(model):
    """A CCT, whose layer of that name is no tokenizer of texts, is refused in words too."""
    if model.text_tokenizer is not None:
        assert model.require_tokenizer() is model.text_tokenizer
        return
    with pytest.raises(CheckpointError, match="has no tokenizer, so it cannot read text") as raised:
        model.require_tokenizer() if model.attends_through_latents else read(model, "A text.")
    assert (model.kind.noun in str(raised.value)) == (model.kind.files is not None and not model.kind.texts)


def test_kinds_have_words_and_commands():
    for row in _KINDS:
        assert all((row.noun, row.names, row.do, row.commands))
        assert row.files is None or row.files.models


def test_part_of_another_model_is_loaded(tmp_path):
    clip = every_model.make_example(Clip)[0]
    clip.save(tmp_path / "clip")
    assert Encoder.load(tmp_path / "clip").config == clip.config.text
    assert ImageEncoder.load(tmp_path / "clip").config == clip.config.vision
    with pytest.raises(CheckpointError, match="another kind of model"):
        Perceiver.load(tmp_path / "clip")


@dataclass(frozen=True)
class MeanConfig:
    width: int = 5
    layers: int = 1
    labels: tuple[str, ...] = ()
    picture_size: tuple[int, int] = (7, 11)
    channels: int = 3


class Means(ImageEncoder):
    """A model in a file of its own: it classifies the mean colour of a picture."""

    config_class = MeanConfig

    def __init__(self, config):
        super().__init__(config)
        self.colour = nn.Linear(config.channels, config.width)
        self.head = nn.Linear(config.width, len(config.labels)) if config.labels else None

    def forward(self, pixels, *, mask: Mask | None = None, keep_layers=False):
        hidden = self.colour(pixels.mean(dim=(2, 3)))
        return ImageOutput(hidden[:, None], hidden, None if self.head is None else self.head(hidden))

    @property
    def width(self):
        return self.config.width

    def token_grids(self, height, width):
        return (TokenGrid(1, 1),)

    @classmethod
    def read_config(cls, config: ConfigFile):
        return MeanConfig(width=config.size("width"))

    def config_fields(self):
        return {"model_type": "means", "width": self.config.width, **label_fields(self.config.labels)}

    @classmethod
    def make_weight_names(cls, config) -> WeightNames:
        return WeightNames(same_names("colour", "head"))


def test_new_model_needs_a_file_and_a_row(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules["regard.models.load"]._MODELS, "means", Means)
    model = Means(replace(MeanConfig(), labels=("dark", "light"))).eval()
    model.processor = ImageProcessor((7, 11), channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    model.save(tmp_path / "means")
    folder = ModelFolder.open(tmp_path / "means")
    assert find_kind(folder) is IMAGE_ENCODER
    pictures = [np.full((7, 11, 3), grey, dtype=np.uint8) for grey in (3, 250)]
    predictions = MediaClassifier.load(folder).classify(pictures)
    assert [set(one.probabilities) for one in predictions] == [{"dark", "light"}] * 2
    assert embed_files(MediaEncoder.load(folder), pictures).shape == (2, 5)
