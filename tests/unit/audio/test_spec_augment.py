"""SpecAugment: stripes of their widths, reproducible, within each sound."""

import pytest
import torch

from regard.audio import SpecAugment
from regard.errors import OptionError, ShapeError


def test_stripes_have_their_widths_and_lie_within_the_sound():
    features = torch.ones(3, 101, 23)
    lengths = [101, 37, 0]
    only_bands, only_frames = SpecAugment(1, 7, 0, 0.0), SpecAugment(0, 0, 1, 0.25)
    widths, longest = set(), [0, 0, 0]
    for seed in range(97):
        masked = only_bands(features, lengths, torch.Generator().manual_seed(seed))
        stripe = masked == 0
        assert torch.equal(stripe, stripe[:, :1].expand_as(stripe))
        widths |= set(stripe[:, 0].sum(dim=1).tolist())
        masked = only_frames(features, lengths, torch.Generator().manual_seed(seed))
        stripe = (masked == 0)[..., 0]
        for number, length in enumerate(lengths):
            assert not stripe[number, length:].any()
            longest[number] = max(longest[number], int(stripe[number].sum()))
    assert widths == set(range(8))
    assert longest[0] == 25
    assert longest[1] == 9
    assert longest[2] == 0
    assert (features == 1).all()


def test_the_generator_decides():
    features, augment = torch.randn(2, 61, 80), SpecAugment()
    first, again, other = (augment(features, [61, 50], torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_wrong_arguments_are_refused():
    for options in ({"band_stripes": -1}, {"frame_share": 1.1}):
        with pytest.raises(OptionError):
            SpecAugment(**options)
    with pytest.raises(ShapeError, match="lengths do not fit"):
        SpecAugment()(torch.zeros(2, 5, 80), [5, 6], torch.Generator())
