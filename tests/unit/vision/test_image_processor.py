"""The image processor against the Pillow backend of transformers, and its file."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from picture_files import random_pixels
from regard.errors import CheckpointError, DataError, OptionError, RefusedError
from regard.media.processor_file import PROCESSOR_FILE
from regard.vision import ImageProcessor
from regard.vision.image_processor import RESAMPLING

SIZES = ((7, 11), (37, 53), (64, 64), (101, 29))
MEAN, STD = (0.481, 0.457, 0.408), (0.268, 0.261, 0.275)


def peer_class():
    """The image processor of ViT in transformers that resizes by Pillow and needs no torchvision."""
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    return ViTImageProcessorPil


@pytest.mark.parametrize("resample", RESAMPLING)
def test_equals_transformers_bit_for_bit(resample):
    ours = ImageProcessor((31, 23), mean=MEAN, std=STD, resample=resample)
    peer = peer_class()(
        size={"height": 31, "width": 23}, image_mean=MEAN, image_std=STD, resample=RESAMPLING.index(resample)
    )
    for size in SIZES:
        pixels = random_pixels(*size)
        expected = peer(Image.fromarray(pixels), return_tensors="pt")["pixel_values"]
        torch.testing.assert_close(ours([pixels]), expected, rtol=0, atol=0)


@pytest.mark.parametrize("crop", [(17, 13), (30, 22), (40, 44), (31, 23)])
def test_centre_crop_equals_transformers(crop):
    """Crops of odd and even margins, and crops that are larger than the picture."""
    ours = ImageProcessor((31, 23), crop=crop)
    peer = peer_class()(
        size={"height": 31, "width": 23}, do_center_crop=True, crop_size={"height": crop[0], "width": crop[1]}
    )
    pixels = random_pixels(37, 53)
    expected = peer(Image.fromarray(pixels), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(ours([pixels]), expected, rtol=0, atol=0)


def test_shorter_edge_equals_transformers():
    ours = ImageProcessor(29, crop=(19, 23))
    peer = peer_class()(size={"shortest_edge": 29}, do_center_crop=True, crop_size={"height": 19, "width": 23})
    for size in SIZES:
        pixels = random_pixels(*size)
        expected = peer(Image.fromarray(pixels), return_tensors="pt")["pixel_values"]
        torch.testing.assert_close(ours([pixels]), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "fields",
    [
        {"size": {"shortest_edge": 29}, "crop_pct": 0.875},
        {"size": {"shortest_edge": 29}, "crop_pct": 1.0, "resample": 2},
        {"size": 31},
        {"size": {"shortest_edge": 384}, "crop_pct": 0.5},
        {"size": {"shortest_edge": 384}, "crop_pct": None},
        {},
        {"size": {"shortest_edge": 29}, "do_resize": False},
    ],
)
@pytest.mark.parametrize("kind", ["image_processor_type", "feature_extractor_type"])
def test_the_processor_of_convnext_and_cvt_equals_transformers(tmp_path, fields, kind):
    """The published CvT has these fields, with a size of 224 and a crop_pct of 0.875."""
    from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil

    (tmp_path / PROCESSOR_FILE).write_text(json.dumps({kind: "ConvNextFeatureExtractor", **fields}))
    ours, peer = ImageProcessor.from_folder(tmp_path), ConvNextImageProcessorPil(**fields)
    for size in SIZES[:1] if fields.get("do_resize") is False else SIZES:
        pixels = random_pixels(*size)
        expected = peer(Image.fromarray(pixels), return_tensors="pt")["pixel_values"]
        torch.testing.assert_close(ours([pixels]), expected, rtol=0, atol=0)


def test_file_is_read_by_transformers_and_theirs_by_us(tmp_path):
    for ours in (ImageProcessor((31, 23), mean=MEAN, std=STD, resample="bicubic"), ImageProcessor(29, crop=(19, 23))):
        (tmp_path / PROCESSOR_FILE).write_text(json.dumps(ours.fields()))
        peer = peer_class().from_pretrained(tmp_path)
        pixels = random_pixels(37, 53)
        expected = peer(Image.fromarray(pixels), return_tensors="pt")["pixel_values"]
        torch.testing.assert_close(ours([pixels]), expected, rtol=0, atol=0)
        peer.save_pretrained(tmp_path)
        assert ImageProcessor.from_folder(tmp_path) == ours


def test_grey_pictures_of_one_channel():
    """The definition, in NumPy."""
    ours = ImageProcessor(None, channels=1, mean=(0.25,), std=(0.5,))
    pixels = random_pixels(channels=1)
    expected = ((pixels.astype(np.float64) / 255 - 0.25) / 0.5)[None, None]
    np.testing.assert_allclose(ours([pixels]).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ImageProcessor()),
        ({"size": 384, "resample": 3}, ImageProcessor((384, 384), resample="bicubic")),
        ({"size": [5, 7]}, ImageProcessor((5, 7))),
        ({"feature_extractor_type": "CLIPFeatureExtractor", "size": 31}, ImageProcessor(31)),
        ({"do_resize": False}, ImageProcessor(None)),
        ({"do_normalize": False}, ImageProcessor(mean=(0.0,) * 3, std=(1.0,) * 3)),
        ({"do_rescale": False}, ImageProcessor(rescale=1.0)),
        ({"size": 256, "do_center_crop": True, "crop_size": 224}, ImageProcessor((256, 256), crop=(224, 224))),
        ({"do_center_crop": False, "crop_size": 224}, ImageProcessor()),
        ({"image_mean": [0.5], "image_std": [0.25]}, ImageProcessor(channels=1, mean=(0.5,), std=(0.25,))),
    ],
)
def test_fields_of_older_files(tmp_path, fields, expected):
    (tmp_path / PROCESSOR_FILE).write_text(json.dumps(fields))
    assert ImageProcessor.from_folder(tmp_path) == expected


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"size": {"longest_edge": 3, "shortest_edge": 5}}', '{"size": "big"}', '{"size": -1}',
     '{"resample": 9}', '{"image_mean": [0.5]}', '{"image_std": [0.5, 0, 1]}', '{"do_pad": true}',
     '{"image_processor_type": "ConvNextImageProcessor", "do_center_crop": true}',
     '{"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 7, "longest_edge": 9}}',
     '{"image_processor_type": "ConvNextImageProcessor", "crop_pct": 0}',
     '{"crop_pct": 0.9}', '{"size": 1e30}', '{"image_mean": "abc"}', '{"rescale_factor": null}', '{"size": {}}'],
)  # fmt: skip
def test_unusable_files_are_named(tmp_path, content):
    (tmp_path / PROCESSOR_FILE).write_text(content)
    with pytest.raises(CheckpointError, match=PROCESSOR_FILE):
        ImageProcessor.from_folder(tmp_path)


def test_no_file_is_no_processor(tmp_path):
    assert ImageProcessor.from_folder(tmp_path) is None


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "options",
    [{"size": (0, 3)}, {"size": "big"}, {"size": 2.5}, {"crop": (3,)}, {"mean": (0.5,)}, {"std": (1.0, 0.0, 1.0)},
     {"rescale": 0}, {"resample": "sinc"}, {"channels": 0}, {"mean": [0.5] * 3}],
)  # fmt: skip
def test_options_out_of_range(options):
    with pytest.raises(OptionError):
        ImageProcessor(**options)


def test_pictures_that_do_not_fit():
    with pytest.raises(OptionError, match="list of pictures"):
        ImageProcessor()([])
    with pytest.raises(DataError, match="different sizes"):
        ImageProcessor(None)([random_pixels(5, 7), random_pixels(7, 5)])
    with pytest.raises(DataError, match="long and narrow"):
        ImageProcessor(224)([random_pixels(2, 1009)])
    with pytest.raises(RefusedError, match="4 channels"):
        ImageProcessor(channels=4, mean=(0.5,) * 4, std=(0.5,) * 4)([random_pixels()])
