"""Augmentation: the operations against Pillow and NumPy, and draws that depend on their generator alone."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from picture_files import random_pixels
from regard.errors import OptionError
from regard.vision.augmentation import Augmentation, choose_augmentation, mix_pictures
from regard.vision.augmentation_operations import OPERATIONS, apply_operation

STRONG = Augmentation(crop=3, flip=True, jitter=0.3, policy="rand", erase=0.5, mixup=0.4, cutmix=1.0)


def batch(count=5, height=13, width=17, channels=3):
    pixels = np.stack([random_pixels(height, width, 3, seed) for seed in range(count)]).transpose(0, 3, 1, 2)
    return torch.from_numpy(pixels[:, :channels].copy()).float() / 255


def draw(augmentation, count=5, seed=(1, 2, 3), height=13, width=17):
    return augmentation.draw(np.random.default_rng(list(seed)), count, height, width)


def apply(augmentation, pictures, draws, rows=None):
    rows = np.arange(len(pictures)) if rows is None else rows
    return augmentation.apply(pictures, draws, rows, fill=(0.25, 0.5, 0.75)[: pictures.shape[1]])


def test_crop_is_a_part_of_the_padded_picture():
    augmentation, pictures = Augmentation(crop=3), batch()
    draws = draw(augmentation)
    changed = apply(augmentation, pictures, draws)
    padded = np.pad(pictures.numpy(), ((0, 0), (0, 0), (3, 3), (3, 3)))
    for number, (row, column) in enumerate(draws.shifts):
        np.testing.assert_array_equal(changed[number], padded[number, :, row : row + 13, column : column + 17])
    many = draw(augmentation, 1000).shifts
    assert (many.min(), many.max()) == (0, 6)


def test_resized_crop_is_a_part_that_pillow_resizes():
    augmentation, pictures = Augmentation(resized_crop=0.2), batch()
    draws = draw(augmentation)
    changed = apply(augmentation, pictures, draws)
    for number, (top, left, bottom, right) in enumerate(draws.crops):
        part = Image.fromarray((pictures[number] * 255).round().byte().permute(1, 2, 0).numpy())
        part = part.crop((left, top, right, bottom))
        expected = np.asarray(part.resize((17, 13), Image.Resampling.BILINEAR))
        np.testing.assert_allclose(changed[number].permute(1, 2, 0) * 255, expected, atol=1.01)


def test_resized_crops_have_the_areas_and_sides_of_the_paper():
    top, left, bottom, right = draw(Augmentation(resized_crop=0.2), 4001, height=96, width=96).crops.T
    height, width = bottom - top, right - left
    assert min(top.min(), left.min()) == 0
    assert max(bottom.max(), right.max()) == 96
    shares, ratios = height * width / 96**2, height / width
    assert 0.19 < shares.min() < 0.21
    whole = np.quantile(shares[(height < 96) & (width < 96)], [0.25, 0.5])
    assert np.all(np.abs(whole - (0.2 + 0.8 * np.array([0.25, 0.5]) * 0.85)) < 0.06)  # the largest are cut
    assert 0.7 < ratios.min() < 0.77
    assert 1.3 < ratios.max() < 1.43
    assert abs(np.log(ratios).mean()) < 0.02


def test_jitter_multiplies_as_pillow_does():
    augmentation, pictures = Augmentation(jitter=0.4), batch()
    draws = draw(augmentation)
    changed = apply(augmentation, pictures, draws)
    for number, factors in enumerate(draws.jitters):
        image = Image.fromarray((pictures[number] * 255).round().byte().permute(1, 2, 0).numpy())
        for enhancer, factor in zip(
            (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color), factors, strict=True
        ):
            image = enhancer(image).enhance(factor)
        np.testing.assert_allclose(changed[number].permute(1, 2, 0) * 255, np.asarray(image), atol=3.01)
    many = draw(augmentation, 4001).jitters
    assert many.shape == (4001, 3)
    assert 0.6 <= many.min() < 0.61
    assert 1.39 < many.max() <= 1.4


def test_flip_mirrors_half_of_the_pictures():
    augmentation, pictures = Augmentation(flip=True), batch()
    draws = draw(augmentation)
    changed = apply(augmentation, pictures, draws)
    for number, flipped in enumerate(draws.flips):
        expected = pictures[number].numpy()[..., ::-1] if flipped else pictures[number].numpy()
        np.testing.assert_array_equal(changed[number], expected)
    assert 0.4 < draw(augmentation, 1000).flips.mean() < 0.6


def test_erased_rectangles_have_the_colour_and_the_share():
    augmentation, pictures = Augmentation(erase=0.5), batch(64)
    draws = draw(augmentation, 64)
    changed = apply(augmentation, pictures, draws)
    shares = []
    for number, (top, left, bottom, right) in enumerate(draws.boxes):
        expected = pictures[number].clone()
        expected[:, top:bottom, left:right] = torch.tensor([0.25, 0.5, 0.75])[:, None, None]
        assert torch.equal(changed[number], expected)
        assert 0 <= top <= bottom <= 13
        assert 0 <= left <= right <= 17
        shares.append((bottom - top) * (right - left) / (13 * 17))
    shares = np.array(shares)
    assert 0.3 < (shares > 0).mean() < 0.7
    assert shares.max() < 0.4


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("name", "magnitude", "pillow"),
    [
        ("auto_contrast", 0.3, ImageOps.autocontrast),
        ("solarize", 0.5, lambda image: ImageOps.solarize(image, 128)),
        ("posterize", 0.5, lambda image: ImageOps.posterize(image, 6)),
        ("posterize", -1.0, lambda image: ImageOps.posterize(image, 4)),
        ("brightness", 0.5, lambda image: ImageEnhance.Brightness(image).enhance(1.45)),
        ("colour", -0.5, lambda image: ImageEnhance.Color(image).enhance(0.55)),
        ("contrast", 1.0, lambda image: ImageEnhance.Contrast(image).enhance(1.9)),
        ("contrast", -1.0, lambda image: ImageEnhance.Contrast(image).enhance(0.1)),
        ("sharpness", 0.5, lambda image: ImageEnhance.Sharpness(image).enhance(1.45)),
        ("equalize", 0.3, ImageOps.equalize),
    ],
)
def test_operations_equal_those_of_pillow(name, magnitude, pillow, channels):
    """Within the rounding of Pillow to 8 bits, twice where it blends with a rounded picture."""
    pixels = random_pixels(37, 53, channels, seed=4) // 2 + 40
    expected = np.asarray(pillow(Image.fromarray(pixels))).reshape(37, 53, channels).transpose(2, 0, 1)
    pictures = torch.from_numpy(pixels.reshape(37, 53, channels).transpose(2, 0, 1).copy())[None].float() / 255
    changed = apply_operation(name, pictures, torch.tensor([magnitude])) * 255
    np.testing.assert_allclose(changed[0], expected, atol=2.01)


def inverse_mapped(picture, matrix, centre, offset):
    """Bilinear interpolation at the point that each pixel comes from, black outside: loops, in NumPy."""
    height, width = picture.shape[1:]
    padded = np.pad(picture, ((0, 0), (2, 2), (2, 2)))
    result, inverse = np.zeros_like(picture), np.linalg.inv(matrix)
    for row in range(height):
        for column in range(width):
            x, y = inverse @ (np.array([column, row]) - centre - offset) + centre
            left, top = int(np.floor(x)), int(np.floor(y))
            if not (-1 <= left < width and -1 <= top < height):
                continue
            a, b = x - left, y - top
            corner = padded[:, top + 2 : top + 4, left + 2 : left + 4]
            weights = np.outer([1 - b, b], [1 - a, a])
            result[:, row, column] = (corner * weights).sum((1, 2))
    return result


@pytest.mark.parametrize("magnitude", [0.7, -0.4])
@pytest.mark.parametrize("name", ["rotate", "shear_x", "shear_y", "translate_x", "translate_y"])
def test_movements_are_affine_maps_around_the_centre(name, magnitude):
    pictures = batch(2)
    angle = np.deg2rad(30 * magnitude)
    linear = {
        "rotate": [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]],
        "shear_x": [[1, 0.3 * magnitude], [0, 1]],
        "shear_y": [[1, 0], [0.3 * magnitude, 1]],
    }
    moved = {"translate_x": [17 / 3 * magnitude, 0], "translate_y": [0, 13 / 3 * magnitude]}
    changed = apply_operation(name, pictures, torch.tensor([magnitude, magnitude]))
    for number in range(2):
        expected = inverse_mapped(
            pictures[number].double().numpy(), np.array(linear.get(name, np.eye(2))), np.array([8.0, 6.0]),
            np.array(moved.get(name, [0, 0])),
        )  # fmt: skip
        np.testing.assert_allclose(changed[number], expected, atol=2e-4)


@pytest.mark.parametrize("crop", [{"crop": 3}, {"crop": 0, "resized_crop": 0.3}])
@pytest.mark.parametrize("policy", ["trivial", "rand"])
@pytest.mark.parametrize("channels", [1, 3])
def test_rows_do_not_depend_on_one_another(policy, channels, crop):
    """A process that computes some rows of a batch gets those rows, up to the rounding of batched operations."""
    augmentation, pictures = STRONG.override(policy=policy, **crop), batch(31, channels=channels)
    draws = draw(augmentation, 31)
    whole = apply(augmentation, pictures, draws)
    assert whole.min() >= 0
    assert whole.max() <= 1 + 1e-6
    for rows in (np.arange(0, 31, 2), np.array([7]), np.arange(1, 31, 3)):
        part = apply(augmentation, pictures[torch.from_numpy(rows)], draws, rows)
        torch.testing.assert_close(part, whole[torch.from_numpy(rows)], rtol=0, atol=1e-6)


def test_draws_depend_on_the_generator_alone():
    torch.manual_seed(1)
    whole, resized = STRONG, STRONG.override(crop=0, resized_crop=0.3)
    first = draw(whole, 31)
    torch.manual_seed(2)
    np.random.default_rng().random()
    second, other = draw(whole, 31), draw(whole, 31, seed=(1, 2, 4))
    np.testing.assert_array_equal(draw(resized, 31).crops, draw(resized, 31).crops)
    for name in ("shifts", "flips", "jitters", "operations", "magnitudes", "boxes"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
        assert not np.array_equal(getattr(first, name), getattr(other, name))
    assert first.mix.share == second.mix.share
    state = torch.random.get_rng_state()
    apply(STRONG, batch(31), first)
    assert torch.equal(state, torch.random.get_rng_state())


def test_policies_draw_as_the_papers():
    trivial = draw(Augmentation(policy="trivial"), 4001)
    assert trivial.operations.shape == (4001, 1)
    counts = np.bincount(trivial.operations[:, 0], minlength=len(OPERATIONS))
    assert counts.min() > 0.7 * 4001 / len(OPERATIONS)
    assert len(np.unique(np.abs(trivial.magnitudes).round(6))) == 31
    rand = draw(Augmentation(policy="rand"), 101)
    assert rand.operations.shape == (101, 2)
    np.testing.assert_allclose(np.abs(rand.magnitudes), 0.3)


def test_mixup_and_cutmix():
    pictures = batch(7)
    mixup = draw(Augmentation(mixup=0.4), 7).mix
    partners = pictures[torch.from_numpy(mixup.partner)]
    expected = mixup.share * pictures.double() + (1 - mixup.share) * partners.double()
    torch.testing.assert_close(mix_pictures(pictures, partners, mixup).double(), expected)
    for seed in range(30):
        cutmix = draw(Augmentation(cutmix=1.0), 7, seed=(seed,)).mix
        mixed = mix_pictures(pictures, pictures[torch.from_numpy(cutmix.partner)], cutmix)
        other = cutmix.partner != np.arange(7)
        own = (mixed == pictures).all(1)[torch.from_numpy(other)].double().mean()
        assert own.item() == pytest.approx(cutmix.share)
    both = [draw(Augmentation(mixup=0.4, cutmix=1.0), 7, seed=(seed,)).mix.box is None for seed in range(200)]
    assert 0.4 < np.mean(both) < 0.6


def test_levels():
    assert choose_augmentation("none", 28) == Augmentation()
    assert choose_augmentation("light", 28) == Augmentation(crop=4, flip=True)
    assert str(choose_augmentation("light", 32).override(flip=False, erase=0.1, policy=None)) == "crop 4, erase 0.1"
    assert choose_augmentation("strong", 64).policy == "trivial"
    with pytest.raises(OptionError, match="heavy"):
        choose_augmentation("heavy", 28)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "options",
    [{"crop": -1}, {"flip": 3}, {"policy": "auto"}, {"erase": 1.5}, {"mixup": -1}, {"cutmix": "1"}, {"jitter": 1.1},
     {"resized_crop": -0.1}, {"resized_crop": 2.0}, {"crop": 2, "resized_crop": 0.5}],
)  # fmt: skip
def test_options_out_of_range(options):
    with pytest.raises(OptionError):
        Augmentation(**options)
