"""Models of pictures and sounds are audited without inputs of the caller: they follow from the config."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.auditing.media_inputs import find_media_inputs
from small_audio_models import audio_model
from small_image_models import image_classifier, small_cct, small_cvt
from unit.auditing.media_table import SOUNDS, audit_sound, build


@pytest.mark.parametrize(
    ("name", "sizes", "shapes"),
    [
        ("vit", {"image_size": 24, "num_channels": 3, "patch_size": 8}, {"pixel_values": (1, 3, 24, 24)}),
        ("resnet", {"num_channels": 1}, {"pixel_values": (1, 1, 64, 64)}),
        ("wav2vec2", SOUNDS["wav2vec2"][0], {"input_values": (1, 30 * 6)}),
        ("audio-spectrogram-transformer", SOUNDS["audio-spectrogram-transformer"][0], {"input_values": (1, 24, 16)}),
        ("wav2vec2-bert", SOUNDS["wav2vec2-bert"][0], {"input_features": (1, 50, 16)}),
        ("speech_to_text", SOUNDS["speech_to_text"][0], {"input_features": (1, 50, 16), "decoder_input_ids": (1, 9)}),
        ("whisper", SOUNDS["whisper"][0], {"input_features": (1, 16, 40), "decoder_input_ids": (1, 9)}),
        ("moonshine", SOUNDS["moonshine"][0], {"input_values": (1, 4000), "decoder_input_ids": (1, 9)}),
    ],
)
def test_inputs_have_the_sizes_of_the_config(name, sizes, shapes):
    model = build(name, sizes)
    inputs = find_media_inputs(model)
    assert inputs is not None
    assert {argument: tuple(value.shape) for argument, value in inputs.items()} == shapes
    with torch.no_grad():
        model(**inputs)


@pytest.mark.parametrize("make", [image_classifier, small_cct, small_cvt, audio_model])
def test_models_of_regard(make):
    report = regard.audit(make(), only=["batch", "random", "NaN beside"])
    assert report["batch"].verdict == report["random numbers"].verdict == "holds"


def test_a_folder_of_pictures_has_no_tokens():
    report = regard.audit(image_classifier(), only=["batch"])
    assert str(report).splitlines()[0] == "Vit: module of pictures or sounds"


def test_models_of_texts_have_no_such_inputs():
    assert find_media_inputs(torch.nn.Linear(3, 3)) is None
    assert find_media_inputs(build("bert", {})) is None


def test_the_inputs_show_what_chosen_ones_show():
    name = "wav2vec2"
    report = regard.audit(build(name, SOUNDS[name][0]), only=["padded", "batch"])
    chosen = audit_sound(name)
    assert [result.name for result in report.leaks] == ["padded sounds"]
    assert report["padded sounds"].leak.cause == chosen["padded sounds"].leak.cause
