"""Augmentation of training pictures: random changes that keep the label, drawn from a generator that is passed in.

    crop      pad by p pixels (black), cut the picture's size out at a random place        Krizhevsky et al. 2012, 4.1
    resized_crop   cut out a share of the area from a to 1, its height 3/4 to 4/3 of its width, and resize it (bilinear)
              to the picture's size; a = 0.08 in Szegedy et al. 2015, section 6
    flip      mirror left and right, with probability 1/2
    jitter    brightness, contrast and colour by a factor of 1 - j to 1 + j each, in this order
    policy    "trivial": one operation of ``OPERATIONS`` and one of 31 magnitudes, both uniform, for each picture
              (TrivialAugment, Mueller and Hutter 2021, algorithm 1, with the operations of RandAugment);
              "rand": two operations of magnitude 9 of 30 (RandAugment, Cubuk et al. 2020, algorithm 1)
    erase     with probability e, a rectangle of 2 to 33 % of the picture gets one colour     Zhong et al. 2020, alg. 1
    mixup     x = m x_a + (1 - m) x_b,  m ~ Beta(alpha, alpha)                                Zhang et al. 2018, eq. 1
    cutmix    a rectangle of x_a comes from x_b, and m is the share that does not             Yun et al. 2019, eq. 1

With mixup and cutmix each batch has one of them, with equal probability. a and b are pictures of one batch.

All numbers of a batch are drawn at once, before any picture is changed (``Augmentation.draw``). So they depend on the
generator alone: not on the pictures, nor on which rows of the batch a process computes, nor on torch's generators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.copy_to_device import copy_to
from regard.errors import OptionError, check_choice, check_count, check_flag, check_number
from regard.vision.augmentation_operations import OPERATIONS, apply_operation, blend

POLICIES = ("none", "trivial", "rand")
LEVELS = ("none", "light", "strong")
_MAX_PADDING = 2**10
_MAGNITUDES = 31
_RAND_OPERATIONS, _RAND_MAGNITUDE = 2, 9
_ERASED_SHARES, _ERASED_RATIOS = (0.02, 1 / 3), (0.3, 10 / 3)
_CROPPED_RATIOS = (3 / 4, 4 / 3)
_JITTERED = ("brightness", "contrast", "colour")


@final
@dataclass(frozen=True)
class Mix:
    """How the pictures of a batch are mixed: each with its ``partner``, its own part being ``share``.

    ``box`` (top, left, bottom, right) is what comes from the partner; None blends whole pictures.
    """

    share: float
    partner: Int[np.ndarray, " batch"]
    box: tuple[int, int, int, int] | None = None


@final
@dataclass(frozen=True)
class Draws:
    """The random numbers of a batch of ``batch`` pictures.

    shifts (batch, 2)         rows and columns, of a cut out of the padded picture; None without ``crop``
    crops (batch, 4)          top, left, bottom, right of the part to cut out and resize; None without ``resized_crop``
    flips (batch,)            which pictures are mirrored
    jitters (batch, 3)        factors of brightness, contrast and colour; None without ``jitter``
    operations (batch, n)     indices of ``OPERATIONS``; magnitudes (batch, n), -1 to 1
    boxes (batch, 4)          top, left, bottom, right of the part that is erased; empty boxes where nothing is
    """

    shifts: Int[np.ndarray, "batch 2"] | None
    crops: Int[np.ndarray, "batch 4"] | None
    flips: Bool[np.ndarray, " batch"]
    jitters: Float[np.ndarray, "batch 3"] | None
    operations: Int[np.ndarray, "batch n"]
    magnitudes: Float[np.ndarray, "batch n"]
    boxes: Int[np.ndarray, "batch 4"]
    mix: Mix | None


@final
@dataclass(frozen=True)
class Augmentation:
    """Which random changes are made to training pictures.

    Args:
        crop: pixels of padding on each side before the picture's size is cut out; 0 is none.
        resized_crop: smallest share of the area that is cut out and resized; 0 is none.
        flip: whether half of the pictures are mirrored.
        jitter: largest relative change of brightness, contrast and colour; 0 is none.
        policy: "none", "trivial" or "rand".
        erase: probability that a rectangle is erased.
        mixup: alpha of mixup; 0 is none.
        cutmix: alpha of cutmix; 0 is none.

    Raises OptionError for values out of range, and for both crops.
    """

    crop: int = 0
    resized_crop: float = 0.0
    flip: bool = False
    jitter: float = 0.0
    policy: str = "none"
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        check_count("crop", self.crop, minimum=0, maximum=_MAX_PADDING)
        check_number("resized_crop", self.resized_crop, minimum=0.0, maximum=1.0)
        if self.crop and self.resized_crop:
            raise OptionError(
                "there are two random crops",
                expected="crop (pixels of padding) or resized_crop (a share of the area)",
                got=f"crop={self.crop}, resized_crop={self.resized_crop}",
                do="set one of them to 0: `crop=0` or `resized_crop=0`",
            )
        check_flag("flip", self.flip)
        check_number("jitter", self.jitter, minimum=0.0, maximum=1.0)
        check_choice("augmentation policy", self.policy, POLICIES)
        check_number("erase", self.erase, minimum=0.0, maximum=1.0)
        check_number("mixup", self.mixup, minimum=0.0)
        check_number("cutmix", self.cutmix, minimum=0.0)

    def draw(self, generator: np.random.Generator, batch: int, height: int, width: int) -> Draws:
        """Draw the numbers for ``batch`` pictures of this size."""
        operations, magnitudes = self._draw_policy(generator, batch)
        size, shares = (height, width), (self.resized_crop, 1.0)
        return Draws(
            shifts=generator.integers(0, 2 * self.crop + 1, (batch, 2)) if self.crop else None,
            crops=_draw_rectangles(generator, batch, size, shares, _CROPPED_RATIOS) if self.resized_crop else None,
            flips=generator.random(batch) < (0.5 if self.flip else 0.0),
            jitters=1 + self.jitter * generator.uniform(-1, 1, (batch, len(_JITTERED))) if self.jitter else None,
            operations=operations,
            magnitudes=magnitudes,
            boxes=self._draw_boxes(generator, batch, height, width),
            mix=self._draw_mix(generator, batch, height, width),
        )

    def apply(
        self, pictures: Float[Tensor, "rows channels height width"], draws: Draws, rows: Int[np.ndarray, " rows"],
        *, fill: tuple[float, ...],
    ) -> Float[Tensor, "rows channels height width"]:  # fmt: skip
        """Change pictures, 0 to 1, by all but the mix; they are ``rows`` of the batch that was drawn for.

        ``fill`` is the colour of erased parts. Returns a new tensor, 0 to 1.
        """
        if draws.shifts is not None:
            pictures = _shift(pictures, draws.shifts[rows], self.crop)
        if draws.crops is not None:
            pictures = _resize_parts(pictures, draws.crops[rows])
        flips = copy_to(torch.from_numpy(draws.flips[rows]), pictures.device)
        if self.flip:
            pictures = torch.where(flips[:, None, None, None], pictures.flip(-1), pictures)
        if draws.jitters is not None:
            factors = copy_to(torch.from_numpy(draws.jitters[rows]).to(pictures.dtype), pictures.device)
            for name, factor in zip(_JITTERED, factors.unbind(1), strict=True):
                pictures = blend(name, pictures, factor)
        for number in range(draws.operations.shape[1]):
            pictures = _apply_operations(pictures, draws.operations[rows, number], draws.magnitudes[rows, number])
        return _erase(pictures, draws.boxes[rows], fill) if self.erase else pictures

    def override(self, **values: Any) -> Augmentation:
        """A copy with other values for those that are not None. Raises OptionError for values out of range."""
        return replace(self, **{name: value for name, value in values.items() if value is not None})

    def __str__(self) -> str:
        listed = [
            f"{field.name} {getattr(self, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return ", ".join(text.replace(" True", "") for text in listed) or "none"

    def _draw_policy(
        self, generator: np.random.Generator, batch: int
    ) -> tuple[Int[np.ndarray, "batch n"], Float[np.ndarray, "batch n"]]:
        count = {"none": 0, "trivial": 1, "rand": _RAND_OPERATIONS}[self.policy]
        operations = generator.integers(0, len(OPERATIONS), (batch, count))
        drawn = generator.integers(0, _MAGNITUDES, (batch, count))
        magnitudes = (np.full((batch, count), _RAND_MAGNITUDE) if self.policy == "rand" else drawn) / (_MAGNITUDES - 1)
        return operations, magnitudes * np.where(generator.random((batch, count)) < 0.5, -1.0, 1.0)

    def _draw_boxes(
        self, generator: np.random.Generator, batch: int, height: int, width: int
    ) -> Int[np.ndarray, "batch 4"]:
        erased = generator.random(batch) < self.erase
        boxes = _draw_rectangles(generator, batch, (height, width), _ERASED_SHARES, _ERASED_RATIOS)
        return boxes * erased[:, None]

    def _draw_mix(self, generator: np.random.Generator, batch: int, height: int, width: int) -> Mix | None:
        alphas = [alpha for alpha in (self.mixup, self.cutmix) if alpha]
        if not alphas:
            return None
        cut = generator.random() < 0.5 if len(alphas) == 2 else bool(self.cutmix)
        alpha = self.cutmix if cut else self.mixup
        share, partner = float(generator.beta(alpha, alpha)), generator.permutation(batch)
        centre = generator.random(2) * [height, width]
        if not cut:
            return Mix(share, partner)
        half = np.array([height, width]) * np.sqrt(1 - share) / 2
        begin = np.clip(np.round(centre - half), 0, [height, width]).astype(int)
        end = np.clip(np.round(centre + half), 0, [height, width]).astype(int)
        area = int((end - begin).prod())
        return Mix(1 - area / (height * width), partner, (int(begin[0]), int(begin[1]), int(end[0]), int(end[1])))


def _draw_rectangles(
    generator: np.random.Generator,
    count: int,
    size: tuple[int, int],
    shares: tuple[float, float],
    ratios: tuple[float, float],
) -> Int[np.ndarray, "count 4"]:
    """Draw rectangles (top, left, bottom, right) in a picture of ``size``, height and width, anywhere.

    Their areas are ``shares`` of the picture's, uniform, and their heights ``ratios`` of their widths, uniform in the
    logarithm; areas higher or wider than the picture are cut.
    """
    area = size[0] * size[1] * generator.uniform(*shares, count)
    ratio = np.exp(generator.uniform(math.log(ratios[0]), math.log(ratios[1]), count))
    sides = np.stack([np.sqrt(area * ratio), np.sqrt(area / ratio)], axis=1).round().astype(np.int64)
    sides = np.clip(sides, 1, size)
    begin = (generator.random((count, 2)) * (np.array(size) - sides + 1)).astype(np.int64)
    return np.concatenate([begin, begin + sides], axis=1)


def choose_augmentation(level: str, edge: int) -> Augmentation:
    """The augmentation of a level, for pictures whose shorter edge is ``edge``. Raises OptionError for another level.

    light     crop with an eighth of the edge, flip
    strong    the same, TrivialAugment, erase 0.25, mixup 0.2 or cutmix 1
    """
    check_choice("augmentation", level, LEVELS)
    if level == "none":
        return Augmentation()
    light = Augmentation(crop=max(1, round(edge / 8)), flip=True)
    return light if level == "light" else replace(light, policy="trivial", erase=0.25, mixup=0.2, cutmix=1.0)


def mix_pictures(
    pictures: Float[Tensor, "rows channels height width"],
    partners: Float[Tensor, "rows channels height width"],
    mix: Mix,
) -> Float[Tensor, "rows channels height width"]:
    """Mix each picture with its partner."""
    if mix.box is None:
        return mix.share * pictures + (1 - mix.share) * partners
    top, left, bottom, right = mix.box
    mixed = pictures.clone()
    mixed[:, :, top:bottom, left:right] = partners[:, :, top:bottom, left:right]
    return mixed


def _shift(
    pictures: Float[Tensor, "rows channels height width"], shifts: Int[np.ndarray, "rows 2"], padding: int
) -> Float[Tensor, "rows channels height width"]:
    """Cut each picture's size out of the padded picture, at ``shifts`` from its top left."""
    count, channels, height, width = pictures.shape
    padded = torch.nn.functional.pad(pictures, (padding,) * 4)
    places = copy_to(torch.from_numpy(shifts), pictures.device)
    rows = places[:, :1] + torch.arange(height, device=pictures.device)
    columns = places[:, 1:] + torch.arange(width, device=pictures.device)
    picture = torch.arange(count, device=pictures.device)[:, None, None, None]
    channel = torch.arange(channels, device=pictures.device)[None, :, None, None]
    return padded[picture, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _resize_parts(
    pictures: Float[Tensor, "rows channels height width"], crops: Int[np.ndarray, "rows 4"]
) -> Float[Tensor, "rows channels height width"]:
    """Resize the part of each picture (top, left, bottom, right) to the picture's size."""
    size = pictures.shape[2:]
    parts = [
        torch.nn.functional.interpolate(picture[None, :, top:bottom, left:right], size, mode="bilinear")
        for picture, (top, left, bottom, right) in zip(pictures, crops.tolist(), strict=True)
    ]
    return torch.cat(parts) if parts else pictures


def _apply_operations(
    pictures: Float[Tensor, "rows channels height width"],
    operations: Int[np.ndarray, " rows"],
    magnitudes: Float[np.ndarray, " rows"],
) -> Float[Tensor, "rows channels height width"]:
    """Apply to each picture its operation, to all with the same operation together."""
    changed = pictures.clone()
    for index in np.unique(operations):
        own = copy_to(torch.from_numpy(np.flatnonzero(operations == index)), pictures.device)
        strength = copy_to(torch.from_numpy(magnitudes[operations == index]).to(pictures.dtype), pictures.device)
        changed[own] = apply_operation(OPERATIONS[int(index)], pictures[own], strength)
    return changed


def _erase(
    pictures: Float[Tensor, "rows channels height width"], boxes: Int[np.ndarray, "rows 4"], fill: tuple[float, ...]
) -> Float[Tensor, "rows channels height width"]:
    height, width = pictures.shape[-2:]
    top, left, bottom, right = (
        copy_to(torch.from_numpy(boxes[:, side : side + 1]), pictures.device) for side in range(4)
    )
    rows, columns = torch.arange(height, device=pictures.device), torch.arange(width, device=pictures.device)
    inside = ((rows >= top) & (rows < bottom))[:, :, None] & ((columns >= left) & (columns < right))[:, None, :]
    colour = copy_to(torch.tensor(fill, dtype=pictures.dtype), pictures.device)[:, None, None]
    return torch.where(inside[:, None], colour, pictures)
