"""Rotation at positions that are given one by one: also at none."""

import pytest
import torch

from regard.positions import DynamicScaling, LinearScaling, Rotary


@pytest.mark.parametrize("scaling", [None, LinearScaling(2.0), DynamicScaling(2.0, 5)], ids=repr)
@pytest.mark.parametrize("positions", [[], [11], [3, 3, 0, 11]])
def test_each_token_is_rotated_by_its_position(scaling, positions):
    rotary = Rotary(6, scaling=scaling)
    tokens = torch.randn(2, 3, len(positions), 6, dtype=torch.float64)
    rotated = rotary.rotate_at(tokens, torch.tensor(positions, dtype=torch.long))
    assert rotated.shape == tokens.shape
    for index, position in enumerate(positions):
        own = slice(index, index + 1)
        torch.testing.assert_close(rotated[:, :, own], rotary(tokens[:, :, own], offset=position))
