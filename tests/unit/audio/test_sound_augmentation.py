"""Augmentation of features: interpolation against NumPy, and the sizes of stripes."""

import numpy as np
import pytest
import torch

from regard.audio.sound_augmentation import SoundAugmentation, choose_sound_augmentation, stretch, warp_bands
from regard.errors import OptionError


def random_features(frames=31, bands=17):
    return torch.from_numpy(np.random.default_rng(5).normal(size=(frames, bands)).astype(np.float32))


@pytest.mark.parametrize("frames", [1, 2, 23, 31, 47])
def test_stretch_is_linear_interpolation_in_time(frames):
    features = random_features()
    places = np.linspace(0, 30, frames)
    expected = np.stack([np.interp(places, np.arange(31), band) for band in features.numpy().T], axis=1)
    np.testing.assert_allclose(stretch(features, frames), expected, atol=1e-6)


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.13])
def test_warp_reads_bands_at_other_places(factor):
    features = random_features()
    expected = np.stack([np.interp(np.arange(17) * factor, np.arange(17), frame) for frame in features.numpy()])
    np.testing.assert_allclose(warp_bands(features, factor), expected, atol=1e-6)


def test_the_same_generator_gives_the_same_features():
    """And nothing else than the generator: neither torch's random numbers nor the input are changed."""
    features, strong = random_features(), choose_sound_augmentation("strong")
    before, state = features.clone(), torch.get_rng_state()
    first, again = (strong.apply(features, np.random.default_rng([1, 2, 3])) for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(features, before)
    assert torch.equal(torch.get_rng_state(), state)
    others = [strong.apply(features, np.random.default_rng([1, 2, seed])) for seed in range(20)]
    assert len({len(one) for one in others}) > 5
    assert all(0.85 * 31 - 1 <= len(one) <= 1.15 * 31 + 1 for one in others)


def test_stripes_cover_at_most_their_share():
    ones = torch.ones(100, 40)
    for seed in range(30):
        changed = choose_sound_augmentation("light").apply(ones, np.random.default_rng(seed))
        assert (changed == 0).all(dim=0).sum() <= 14
        assert (changed == 0).all(dim=1).sum() <= 50
    assert torch.equal(SoundAugmentation().apply(ones, np.random.default_rng(0)), ones)


def test_levels_and_errors():
    assert str(choose_sound_augmentation("none")) == "none"
    assert str(choose_sound_augmentation("strong")) == "mask_bands 0.175, mask_frames 0.25, tempo 0.15, warp 0.1"
    assert choose_sound_augmentation("light").override(warp=0.2, tempo=None).warp == 0.2
    for wrong in ({"tempo": 1.0}, {"warp": -0.1}, {"mask_bands": 1.1}, {"mask_frames": float("nan")}):
        with pytest.raises(OptionError):
            SoundAugmentation(**wrong)
    with pytest.raises(OptionError, match="strong"):
        choose_sound_augmentation("medium")
