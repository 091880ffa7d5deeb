"""A Perceiver as an image encoder: the same numbers, grids that recordings have, and its folder."""

import pytest
import torch

import regard
from regard import masks
from regard.errors import CheckpointError, OptionError, RefusedError, ShapeError
from regard.models import (
    AudioInput,
    ConvolutionInput,
    ImageEncoder,
    Perceiver,
    PerceiverConfig,
    PerceiverImageEncoder,
    PixelInput,
    TrainedPixelInput,
)
from regard.models.kinds import IMAGE_ENCODER, PERCEIVER
from regard.models.load import find_kind
from regard.models.model_folder import ModelFolder
from regard.vision import ImageProcessor

LABELS = ("cat", "dog", "owl")
INPUTS = {
    "pixels": PixelInput((5, 7), channels=1, bands=3),
    "trained pixels": TrainedPixelInput((5, 7), channels=1, width=6),
    "convolution": ConvolutionInput((17, 13), channels=1, width=6, bands=3),
}


def make(name):
    torch.manual_seed(3)
    return Perceiver.classifier(INPUTS[name], LABELS, latents=5, width=12, layers=2, repeats=2, heads=3).eval()


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("size", [(5, 7), (17, 13), (11, 6)])
def test_outputs_and_grids(name, size):
    perceiver = make(name)
    model, pixels = PerceiverImageEncoder(perceiver), torch.randn(2, 1, *size)
    with regard.record(model) as seen:
        found = model(pixels, keep_layers=True)
    expected = perceiver(pixels, keep_layers=True)
    assert torch.equal(found.logits, expected.logits)
    assert torch.equal(found.pooled, expected.pooled)
    assert torch.equal(found.layers[-1], found.hidden)
    assert [grid.tokens for grid in model.token_grids(*size)] == [call.key.shape[2] for call in seen]
    assert (model.channels, model.width, model.picture_size) == (1, 12, INPUTS[name].size)
    assert model.labels == LABELS


def test_masks():
    model, pixels = PerceiverImageEncoder(make("pixels")), torch.randn(1, 1, 5, 7)
    mask = masks.padding([34])
    clean = model(pixels, mask=mask).logits
    pixels[..., -1, -1] = torch.nan
    assert torch.equal(model(pixels, mask=mask).logits, clean)
    with pytest.raises(RefusedError):
        PerceiverImageEncoder(make("convolution"))(torch.randn(1, 1, 17, 13), mask=mask)


@pytest.mark.parametrize("name", INPUTS)
def test_folders(name, tmp_path):
    model, pixels = PerceiverImageEncoder(make(name)).eval(), torch.randn(2, 1, 17, 13)
    model.processor = ImageProcessor(size=(17, 13), channels=1, mean=(0.5,), std=(0.5,))
    model.metadata = {"steps": 3}
    model.save(tmp_path / "model")
    again = ImageEncoder.load(tmp_path / "model")
    assert torch.equal(again(pixels).logits, model(pixels).logits)
    assert again.processor == model.processor
    assert again.metadata == {"steps": 3}
    assert not again.training
    assert isinstance(regard.load(tmp_path / "model"), Perceiver)
    assert set(again.weight_names.to_file(again.state_dict())) == set(
        again.perceiver.weight_names.to_file(again.perceiver.state_dict())
    )


def test_other_labels_keep_the_other_weights():
    model = PerceiverImageEncoder(make("pixels"))
    model.processor = ImageProcessor(size=(5, 7), channels=1, mean=(0.5,), std=(0.5,))
    renewed, pixels = model.with_labels(("a", "b")).eval(), torch.randn(2, 1, 5, 7)
    assert renewed.labels == ("a", "b")
    assert renewed.processor == model.processor
    assert torch.equal(renewed(pixels).pooled, model(pixels).pooled)
    assert renewed(pixels).logits.shape == (2, 2)


def test_folders_say_whether_a_perceiver_is_image_model(tmp_path):
    make("pixels").save(tmp_path / "pictures")
    Perceiver.classifier(AudioInput(35, 5, 3), LABELS, latents=5, width=12, layers=1, heads=3).save(tmp_path / "sound")
    assert find_kind(ModelFolder.open(tmp_path / "pictures")) is IMAGE_ENCODER
    assert find_kind(ModelFolder.open(tmp_path / "sound")) is PERCEIVER


def test_the_processor_of_transformers_is_not_read_as_another(tmp_path):
    """It crops before it resizes: read as ours, it would make other pixels."""
    make("pixels").save(tmp_path / "model")
    path = tmp_path / "model" / "preprocessor_config.json"
    path.write_text('{"image_processor_type": "PerceiverImageProcessor", "crop_size": 256, "size": 224}')
    model = ImageEncoder.load(tmp_path / "model")
    assert model.processor is None
    assert "crops pictures before" in model.notes[0]


def test_other_models_are_refused(tmp_path):
    sound = Perceiver.classifier(AudioInput(35, 5, 3), LABELS, latents=5, width=12, layers=1, heads=3)
    sound.save(tmp_path / "sound")
    with pytest.raises(CheckpointError, match="another kind"):
        ImageEncoder.load(tmp_path / "sound")
    with pytest.raises(OptionError, match="no classifier of pictures"):
        PerceiverImageEncoder(sound)
    with pytest.raises(OptionError, match="no classifier of pictures"):
        PerceiverImageEncoder(
            Perceiver(PerceiverConfig(INPUTS["pixels"], heads=3, latents=5, width=12, layers=1, cross_heads=1))
        )
    with pytest.raises(ShapeError):
        PerceiverImageEncoder(make("convolution")).token_grids(4, 9)
