"""How a model's pictures are made: size, crop and normalisation, as in a preprocessor_config.json.

    pixel = (rescale * value - mean_c) / std_c          value 0 to 255, for each channel c

A picture is resized, then cropped, then normalised.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from regard.arguments import explain_arguments
from regard.errors import CheckpointError, OptionError, check_choice, check_number, check_size, is_number, short_repr

FILE = "preprocessor_config.json"
RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
"""Names of resampling filters, and the numbers that Pillow and preprocessor_config.json have for them."""


@final
@explain_arguments
@dataclass(frozen=True)
class ImageProcessor:
    """How pictures become the pixels that a model reads.

    Args:
        size: (height, width) in pixels that a picture is resized to; None leaves it as it is.
        channels: 3 for RGB, 1 for grey.
        mean: what is subtracted from each channel, after rescaling.
        std: what each channel is divided by.
        rescale: the factor of the values 0 to 255.
        resample: the filter of resizing, one of ``RESAMPLING``.
        crop: (height, width) that is cut out of the centre after resizing; None is no crop.

    Raises OptionError for values out of range.
    """

    size: tuple[int, int] | None = (224, 224)
    channels: int = 3
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    rescale: float = 1 / 255
    resample: str = "bilinear"
    crop: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        check_size("channels", self.channels)
        for name in ("size", "crop"):
            _check_pair(name, getattr(self, name))
        for name in ("mean", "std"):
            _check_channels(name, getattr(self, name), self.channels)
        if not all(self.std):
            raise OptionError(
                "std has a 0, which no number can be divided by",
                expected="numbers other than 0",
                got=short_repr(self.std),
                do="pass the standard deviation of each channel, or 1.0",
            )
        check_number("rescale", self.rescale, above=0.0)
        check_choice("resampling filter", self.resample, RESAMPLING)

    @classmethod
    def from_folder(cls, folder: Path) -> ImageProcessor | None:
        """Read preprocessor_config.json in ``folder``; None if there is none.

        Raises CheckpointError for a file that cannot be read, or says what this class cannot do.
        """
        path = folder / FILE
        if not path.exists():
            return None
        fields = _read_fields(path)
        try:
            return _from_fields(cls, fields)
        except (OptionError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path} describes pictures that cannot be made",
                expected="size and crop_size with height and width, image_mean, image_std, rescale_factor, resample",
                got=short_repr(str(error)),
                do="remove the file, and make the pixels yourself",
            ) from error

    def fields(self) -> dict[str, Any]:
        """The fields of a preprocessor_config.json."""
        fields: dict[str, Any] = {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": self.size is not None,
            "resample": RESAMPLING[self.resample],
            "do_center_crop": self.crop is not None,
            "do_rescale": True,
            "rescale_factor": self.rescale,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }
        for name, pair in (("size", self.size), ("crop_size", self.crop)):
            if pair is not None:
                fields[name] = {"height": pair[0], "width": pair[1]}
        return fields


def _from_fields(kind: type[ImageProcessor], fields: dict[str, Any]) -> ImageProcessor:
    mean, std = ([float(one) for one in fields.get(f"image_{name}", (0.5, 0.5, 0.5))] for name in ("mean", "std"))
    if not fields.get("do_normalize", True):
        mean, std = [0.0] * len(mean), [1.0] * len(std)
    number = fields.get("resample", RESAMPLING["bilinear"])
    return kind(
        size=_read_pair(fields.get("size", 224)) if fields.get("do_resize", True) else None,
        channels=len(mean),
        mean=tuple(mean),
        std=tuple(std),
        rescale=float(fields.get("rescale_factor", 1 / 255)) if fields.get("do_rescale", True) else 1.0,
        resample=next(name for name, one in RESAMPLING.items() if one == number)
        if number in RESAMPLING.values()
        else str(number),
        crop=_read_pair(fields["crop_size"]) if fields.get("do_center_crop", False) else None,
    )


def _read_pair(value: Any) -> tuple[int, int]:
    """Read (height, width) from an integer, which is both, or an object with the two."""
    return (value, value) if isinstance(value, int) else (value["height"], value["width"])


def _read_fields(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read", expected="a JSON object", got=str(error), do="copy or download the file again"
        ) from error
    if not isinstance(fields, dict):
        raise CheckpointError(
            f"{path} is not a JSON object",
            expected="an object: named fields in braces",
            got=type(fields).__name__,
            do="copy or download the file again",
        )
    return fields


def _check_pair(name: str, pair: object) -> None:
    if pair is None:
        return
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise OptionError(
            f"wrong {name}",
            expected="(height, width) in pixels, or None",
            got=short_repr(pair),
            do=f"for example {name}=(224, 224)",
        )
    for side in pair:
        check_size(name, side)


def _check_channels(name: str, numbers: object, channels: int) -> None:
    valid = isinstance(numbers, tuple) and all(is_number(one) and math.isfinite(one) for one in numbers)
    if not valid or len(numbers) != channels:  # type: ignore[arg-type]
        raise OptionError(
            f"wrong {name}",
            expected=f"a tuple of {channels} numbers, one for each channel",
            got=short_repr(numbers),
            do=f"for example {name}={(0.5,) * min(channels, 3)}",
        )
