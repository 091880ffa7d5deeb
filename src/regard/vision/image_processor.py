"""Pictures to model input: resize, centre crop, rescale, normalise.

    picture     any size -> size, by Pillow's resampling, on 8 bits -> crop around the centre
    pixels      y = (rescale * x - mean_c) / std_c          x in 0 .. 255, c the channel

rescale * x is rounded to float32 once, from float64, as in the image processors of ``transformers``; their Pillow
backend gives the same bits. The file ``preprocessor_config.json`` has their layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from regard.arguments import explain_arguments
from regard.copy_to_device import copy_to
from regard.devices import to_float64
from regard.errors import (
    CheckpointError,
    DataError,
    OptionError,
    RefusedError,
    RegardError,
    check_choice,
    check_number,
    check_size,
    short_repr,
)
from regard.media.processor_file import PROCESSOR_FILE, read_processor_fields
from regard.vision.picture_file import MAX_PIXELS, Picture, load_pillow, read_picture

if TYPE_CHECKING:
    from PIL import Image

RESAMPLING = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Pillow's resampling filters, in the order of its numbers."""
_READ_CHANNELS = (1, 3)
_MAX_EDGE = 2**13
_CROPPED_SHARE, _UNCROPPED_EDGE = 224 / 256, 384
"""The share of a picture that ConvNext's processor keeps, and the edge from which it resizes both edges instead."""
_MAX_EDGE_RATIO = 100
"""The largest ratio of the edges of a picture whose shorter edge is resized."""


@final
@explain_arguments
@dataclass(frozen=True)
class ImageProcessor:
    """Makes model input of pictures.

    Args:
        size: (height, width) to resize to; an integer resizes the shorter edge to it and keeps the proportions; None
            does not resize.
        channels: 3 makes all pictures RGB, 1 makes them grey.
        mean: what is subtracted from each channel, after rescaling.
        std: what each channel is divided by.
        rescale: the factor of the pixels 0 to 255.
        resample: the resampling filter, one of "nearest", "lanczos", "bilinear", "bicubic", "box", "hamming".
        crop: (height, width) to cut out of the centre after resizing; smaller pictures get a black border. None does
            not crop.

    Raises OptionError for values out of range.
    """

    size: tuple[int, int] | int | None = (224, 224)
    channels: int = 3
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    rescale: float = 1 / 255
    resample: str = "bilinear"
    crop: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        check_size("channels", self.channels)
        if isinstance(self.size, tuple):
            _check_pair("size", self.size)
        elif self.size is not None:
            check_size("size", self.size)
            _check_pair("size", (self.size, self.size))
        if self.crop is not None:
            _check_pair("crop", self.crop)
        _check_channel_values("mean", self.mean, self.channels)
        _check_channel_values("std", self.std, self.channels, above=0.0)
        check_number("rescale", self.rescale, above=0.0)
        check_choice("resampling filter", self.resample, RESAMPLING)

    @property
    def mean_colour(self) -> tuple[float, ...]:
        """The colour of ``mean``, each channel from 0 to 1: what fills a picture that was moved becomes 0."""
        return tuple(min(max(value, 0.0), 1.0) for value in self.mean)

    @property
    def picture_size(self) -> tuple[int, int] | None:
        """The (height, width) that all pictures get; None if it depends on the picture."""
        return self.crop or (self.size if isinstance(self.size, tuple) else None)

    def __call__(self, pictures: Sequence[Picture]) -> Float[Tensor, "batch channels height width"]:
        """Make the model input of pictures: paths, bytes, arrays of uint8, or pictures of Pillow.

        Raises DataError for pictures that cannot be read, and for different sizes if they are not resized.
        """
        if isinstance(pictures, str | bytes) or not isinstance(pictures, Sequence) or not pictures:
            raise OptionError(
                "pictures is not a list of pictures",
                expected="a list of paths, bytes, arrays of uint8, or pictures of Pillow",
                got=short_repr(pictures),
                do="put a single picture into a list",
            )
        arrays = [self.to_pixels(picture) for picture in pictures]
        if len({array.shape for array in arrays}) > 1:
            raise DataError(
                "the pictures have different sizes",
                expected="one size for all pictures of a batch",
                got=", ".join(sorted({f"{array.shape[1]} x {array.shape[2]}" for array in arrays})[:5]),
                do="pass them one by one, or give size=(height, width)",
            )
        return self.normalise(self.rescale_pixels(torch.from_numpy(np.stack(arrays))))

    def to_pixels(self, picture: Picture, *, name: str | None = None) -> UInt8[np.ndarray, "channels height width"]:
        """Read, resize and crop a picture: uint8 (channels, height, width). Raises DataError as ``read_picture``."""
        if self.channels not in _READ_CHANNELS:
            raise RefusedError(
                f"pictures are not made into {self.channels} channels",
                expected="a model of 3 channels (RGB) or 1 (grey)",
                got=f"{self.channels} channels",
                do="make the pixels yourself, and pass them to the model",
            )
        read = read_picture(picture, name=name, channels=self.channels)
        pixels = np.asarray(self._crop(self._resize(read, name)))
        return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))

    def rescale_pixels(
        self, pixels: UInt8[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        """Rescale pixels to float32, usually 0 to 1: the range in which pictures are augmented."""
        return (to_float64(pixels) * self.rescale).float().to(pixels.device)

    def normalise(
        self, pixels: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        """Subtract the mean and divide by the standard deviation, per channel of rescaled pixels."""
        mean, std = (
            copy_to(torch.tensor(statistic, dtype=pixels.dtype), pixels.device) for statistic in (self.mean, self.std)
        )
        return (pixels - mean[:, None, None]) / std[:, None, None]

    def fields(self) -> dict[str, Any]:
        """The fields of ``preprocessor_config.json``, in the layout of ``transformers``."""
        fields: dict[str, Any] = {
            "image_processor_type": "ViTImageProcessor" if self.crop is None else "DeiTImageProcessor",
            "do_resize": self.size is not None,
            "resample": RESAMPLING.index(self.resample),
            "do_center_crop": self.crop is not None,
            "do_rescale": True,
            "rescale_factor": self.rescale,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }
        if self.size is not None:
            fields["size"] = _size_field(self.size)
        if self.crop is not None:
            fields["crop_size"] = _size_field(self.crop)
        return fields

    @classmethod
    def from_folder(cls, folder: Path) -> ImageProcessor | None:
        """Read ``preprocessor_config.json`` of a model folder; None if there is none.

        Raises CheckpointError for a file that is not understood, or that asks for steps that are not supported.
        """
        fields = read_processor_fields(folder)
        return None if fields is None else cls.from_fields(fields, folder / PROCESSOR_FILE)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], path: Path) -> ImageProcessor:
        """Make the processor of the fields of ``preprocessor_config.json``; ``path`` is for messages.

        Fields that are missing have the values of ViT's image processor, or of ConvNext's, which CvT has too. Raises
        CheckpointError as ``from_folder``.
        """
        if _kind(fields).startswith("ConvNext"):
            fields = _read_convnext(fields, path)
        for field, what in _UNSUPPORTED.items():
            if fields.get(field):
                raise CheckpointError(
                    f"{path} asks for a step that is not supported: {what}",
                    expected="resizing, centre crop, rescaling and normalising",
                    got=f"{field}: {short_repr(fields[field])}",
                    do="to prepare the pixels yourself, load the model from a folder without this file",
                )
        try:
            mean, std = _read_values(fields, "image_mean"), _read_values(fields, "image_std")
            if not fields.get("do_normalize", True):
                mean, std = (0.0,) * len(mean), (1.0,) * len(std)
            return cls(
                size=_read_size(fields) if fields.get("do_resize", True) else None,
                channels=len(mean),
                mean=mean,
                std=std,
                rescale=fields.get("rescale_factor", 1 / 255) if fields.get("do_rescale", True) else 1.0,
                resample=_read_resampling(fields),
                crop=_read_crop(fields) if fields.get("do_center_crop") else None,
            )
        except (OptionError, ValueError, TypeError, KeyError) as error:
            reason = f"{error.what}: {error.got}" if isinstance(error, RegardError) else str(error)
            raise CheckpointError(
                f"{path} has unusable fields",
                expected="the fields of an image processor, such as those of ViT",
                got=reason[:200],
                do="check that the file belongs to this model",
            ) from error

    def _resize(self, picture: Image.Image, name: str | None) -> Image.Image:
        if self.size is None:
            return picture
        load_pillow()
        from PIL import Image

        height, width = self.size if isinstance(self.size, tuple) else _shorter_edge(picture, self.size, name)
        return picture.resize((width, height), resample=Image.Resampling(RESAMPLING.index(self.resample)))

    def _crop(self, picture: Image.Image) -> Image.Image:
        if self.crop is None:
            return picture
        (width, height), (rows, columns) = picture.size, self.crop
        left, top = (width - columns) // 2, (height - rows) // 2
        return picture.crop((left, top, left + columns, top + rows))


_UNSUPPORTED = {
    "do_pad": "padding",
    "do_flip_channel_order": "channels in the order BGR",
    "crop_pct": "a crop of a share of the picture",
    "do_thumbnail": "thumbnails",
    "do_align_long_axis": "turning by the longer edge",
}
"""Fields of other image processors that would change the pixels, and what they ask for."""


def _shorter_edge(picture: Image.Image, size: int, name: str | None) -> tuple[int, int]:
    """The (height, width) whose shorter edge is ``size``; the longer one is rounded down."""
    width, height = picture.size
    short, long = min(width, height), max(width, height)
    if long > _MAX_EDGE_RATIO * short or size * size * long // short > MAX_PIXELS:
        raise DataError(
            f"{name or 'the picture'} is too long and narrow to resize its shorter edge",
            expected=f"edges of which one is at most {_MAX_EDGE_RATIO} times the other",
            got=f"{width:,} x {height:,} pixels",
            do="cut it, or leave it out",
        )
    other = int(size * long / short)
    return (other, size) if width <= height else (size, other)


def _check_pair(name: str, pair: object) -> None:
    listed = pair if isinstance(pair, tuple) else ()
    if len(listed) != 2 or not all(type(edge) is int and 1 <= edge <= _MAX_EDGE for edge in listed):
        raise OptionError(
            f"wrong {name}",
            expected=f"(height, width), integers from 1 to {_MAX_EDGE}",
            got=short_repr(pair),
            do=f"for example {name}=(224, 224)",
        )


def _check_channel_values(name: str, values: object, channels: int, *, above: float | None = None) -> None:
    if not isinstance(values, tuple) or len(values) != channels:
        raise OptionError(
            f"wrong {name}",
            expected=f"a tuple of {channels} numbers, one for each channel",
            got=short_repr(values),
            do=f"for example {name}={(0.5,) * channels}",
        )
    for value in values:
        check_number(name, value, above=above)


def _size_field(size: tuple[int, int] | int) -> dict[str, int]:
    return {"shortest_edge": size} if isinstance(size, int) else {"height": size[0], "width": size[1]}


def _read_size(fields: Mapping[str, Any]) -> tuple[int, int] | int:
    """Read the field "size": an object; a number in older files, the shorter edge for CLIP and both for others."""
    value = fields.get("size", 224)
    if isinstance(value, Mapping) and "shortest_edge" in value:
        if value.get("longest_edge") is not None:
            raise ValueError("size with a longest_edge")
        return int(value["shortest_edge"])
    if isinstance(value, int) and _kind(fields).startswith("CLIP"):
        return value
    return _read_pair(value)


def _read_convnext(fields: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Write the fields of ConvNext's image processor as fields of ViT's.

    With an ``edge`` below 384, the shorter edge is resized to edge / crop_pct, and edge x edge pixels are cut out of
    the centre; from 384 on, both edges are resized.
    """
    size, share = fields.get("size", 384), fields.get("crop_pct")
    share = _CROPPED_SHARE if share is None else share
    edge = size.get("shortest_edge") if isinstance(size, Mapping) and set(size) == {"shortest_edge"} else size
    if type(edge) is not int or not isinstance(share, float | int) or not 0 < share <= 1:
        raise CheckpointError(
            f"{path} has unusable fields",
            expected="the size of the shorter edge, an integer, and crop_pct, above 0 and at most 1",
            got=f"size {short_repr(size)}, crop_pct {short_repr(share)}",
            do="check that the file belongs to this model",
        )
    if fields.get("do_center_crop"):
        raise CheckpointError(
            f"{path} asks for a step that is not supported: a second crop",
            expected="the crop of crop_pct alone",
            got=f"do_center_crop, with crop_size {short_repr(fields.get('crop_size'))}",
            do="to prepare the pixels yourself, load the model from a folder without this file",
        )
    plain = {"resample": 3, **fields, "size": edge, "crop_pct": None}
    if not fields.get("do_resize", True) or edge >= _UNCROPPED_EDGE:
        return plain
    return plain | {"size": {"shortest_edge": int(edge / share)}, "do_center_crop": True, "crop_size": edge}


def _read_crop(fields: Mapping[str, Any]) -> tuple[int, int]:
    return _read_pair(fields.get("crop_size", 224))


def _read_pair(value: Any) -> tuple[int, int]:
    if isinstance(value, Mapping):
        return int(value["height"]), int(value["width"])
    if isinstance(value, list):
        height, width = value
        return int(height), int(width)
    return int(value), int(value)


def _read_values(fields: Mapping[str, Any], name: str) -> tuple[float, ...]:
    return tuple(float(value) for value in fields.get(name, (0.5, 0.5, 0.5)))


def _read_resampling(fields: Mapping[str, Any]) -> str:
    number = fields.get("resample", 2)
    number = 2 if number is None else number
    if type(number) is not int or not 0 <= number < len(RESAMPLING):
        raise ValueError(f"resample {short_repr(number)}")
    return RESAMPLING[number]


def _kind(fields: Mapping[str, Any]) -> str:
    return str(fields.get("image_processor_type") or fields.get("feature_extractor_type") or "")
