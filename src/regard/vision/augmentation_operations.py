"""The operations of TrivialAugment and RandAugment on batches of pictures, each with a magnitude of its own.

    identity, auto_contrast, equalize                       have no magnitude
    solarize            invert values of at least 1 - |m|
    posterize           keep 8 - round(4 |m|) bits
    brightness, colour, contrast, sharpness     blend by the factor 1 + 0.9 m with black, grey, the mean, a blur
    rotate              30 m degrees
    shear_x, shear_y    0.3 m
    translate_x, _y     a third of the edge times m

m is -1 to 1; the names and the ranges follow Cubuk et al. 2020, "RandAugment", and Mueller and Hutter 2021,
"TrivialAugment", table 1. Pictures are 0 to 1, (batch, channels, height, width); what moves in from outside is black.
The pixels are computed by ``kornia``. Its own classes for these policies draw one operation for a whole batch, from
torch's global generator, where the papers draw one for each picture.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import MissingPackageError

OPERATIONS = (
    "identity", "auto_contrast", "equalize", "solarize", "posterize", "brightness", "colour", "contrast", "sharpness",
    "rotate", "shear_x", "shear_y", "translate_x", "translate_y",
)  # fmt: skip
_RANGE, _DEGREES, _SHEAR, _SHIFT, _BITS = 0.9, 30.0, 0.3, 1 / 3, 4
_GREY = (0.299, 0.587, 0.114)


def apply_operation(
    name: str, pictures: Float[Tensor, "batch channels height width"], magnitude: Float[Tensor, " batch"]
) -> Float[Tensor, "batch channels height width"]:
    """Apply one of ``OPERATIONS`` with the magnitude of each picture. Raises MissingPackageError without ``kornia``."""
    if name == "identity":
        return pictures
    if name in ("rotate", "shear_x", "shear_y", "translate_x", "translate_y"):
        return _move(name, pictures, magnitude)
    strength = magnitude.abs()
    factor = 1 + _RANGE * magnitude
    if name == "auto_contrast":
        low, high = pictures.amin((2, 3), keepdim=True), pictures.amax((2, 3), keepdim=True)
        return torch.where(high > low, (pictures - low) / (high - low).clamp_min(1e-12), pictures)
    if name == "equalize":
        return load_kornia("enhance").equalize(pictures)
    if name == "solarize":
        return torch.where(pictures >= 1 - strength[:, None, None, None], 1 - pictures, pictures)
    if name == "posterize":
        step = 2.0 ** (_BITS * strength).round()[:, None, None, None]
        return ((pictures * 255).round() / step).floor() * step / 255
    if name == "sharpness":
        return load_kornia("enhance").sharpness(pictures, factor).clamp(0, 1)
    return blend(name, pictures, factor)


def blend(
    name: str, pictures: Float[Tensor, "batch channels height width"], factor: Float[Tensor, " batch"]
) -> Float[Tensor, "batch channels height width"]:
    """Multiply the "brightness", the "contrast" or the "colour" of each picture by its factor, and cut to 0 to 1."""
    factor = factor[:, None, None, None]
    if name == "brightness":
        return (factor * pictures).clamp(0, 1)
    grey = _to_grey(pictures)
    other = grey if name == "colour" else grey.mean((2, 3), keepdim=True)
    return (factor * pictures + (1 - factor) * other).clamp(0, 1)


def load_kornia(part: str) -> Any:
    """Import a part of kornia. Raises MissingPackageError if it is not installed."""
    try:
        import importlib

        return importlib.import_module(f"kornia.{part}")
    except ImportError:
        raise MissingPackageError(
            "the augmentation policies trivial and rand need a package",
            expected="kornia",
            got="it is not installed",
            do="pip install 'regard[vision]', or use another augmentation: `policy='none'`",
        ) from None


def _to_grey(pictures: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch 1 height width"]:
    if pictures.shape[1] != len(_GREY):
        return pictures.mean(1, keepdim=True)
    return (pictures * pictures.new_tensor(_GREY)[:, None, None]).sum(1, keepdim=True)


def _move(
    name: str, pictures: Float[Tensor, "batch channels height width"], magnitude: Float[Tensor, " batch"]
) -> Float[Tensor, "batch channels height width"]:
    """Map the point p of the picture to A (p - c) + c + t, around the centre c."""
    height, width = pictures.shape[-2:]
    ones, zeros = torch.ones_like(magnitude), torch.zeros_like(magnitude)
    angle = torch.deg2rad(_DEGREES * magnitude)
    linear = {
        "rotate": (angle.cos(), angle.sin(), -angle.sin(), angle.cos()),
        "shear_x": (ones, _SHEAR * magnitude, zeros, ones),
        "shear_y": (ones, zeros, _SHEAR * magnitude, ones),
    }.get(name, (ones, zeros, zeros, ones))
    shift = {"translate_x": (_SHIFT * width * magnitude, zeros), "translate_y": (zeros, _SHIFT * height * magnitude)}
    moved = torch.stack(shift.get(name, (zeros, zeros)), dim=1)
    matrix = torch.stack(linear, dim=1).view(-1, 2, 2)
    centre = pictures.new_tensor([(width - 1) / 2, (height - 1) / 2])
    offset = centre - matrix @ centre + moved
    affine = torch.cat([matrix, offset[:, :, None]], dim=2)
    moved_pictures: Tensor = load_kornia("geometry.transform").warp_affine(
        pictures, affine, (height, width), mode="bilinear", padding_mode="zeros", align_corners=True
    )
    return moved_pictures
