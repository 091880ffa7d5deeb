"""Fourier features against their equation in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypothesis_examples import examples
from regard.errors import DtypeError, OptionError, ShapeError
from regard.positions import FourierFeatures, grid_positions


def features_of(position, resolution, bands):
    """Write out the features of one position, number by number."""
    sines, cosines = [], []
    for axis, size in enumerate(resolution):
        for band in range(bands):
            last = size / 2
            frequency = 1.0 + (last - 1.0) * band / (bands - 1) if bands > 1 else 1.0
            sines.append(math.sin(math.pi * frequency * position[axis]))
            cosines.append(math.cos(math.pi * frequency * position[axis]))
    return [*position, *sines, *cosines]


@examples(29)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=3), st.integers(1, 5))
def test_equation(resolution, bands):
    shape = [size + 1 for size in resolution]
    positions = grid_positions(shape)
    layer = FourierFeatures(resolution, bands)
    found = layer(positions)
    axes = [np.linspace(-1, 1, size) for size in shape]
    cells = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(shape))
    expected = np.array([features_of(cell, resolution, bands) for cell in cells])
    assert found.shape == (math.prod(shape), layer.width)
    np.testing.assert_allclose(found.numpy(), expected, atol=3e-6)


def test_one_cell_is_at_the_start():
    assert grid_positions((1, 2)).tolist() == [[-1.0, -1.0], [-1.0, 1.0]]


@pytest.mark.usefixtures("without_shape_checks")
def test_refusals():
    with pytest.raises(OptionError):
        FourierFeatures((), 3)
    with pytest.raises(OptionError):
        FourierFeatures((5, 0), 3)
    with pytest.raises(OptionError):
        FourierFeatures((5,), 0)
    with pytest.raises(ShapeError):
        FourierFeatures((5, 7), 3)(torch.zeros(4, 3))
    with pytest.raises(DtypeError):
        FourierFeatures((5, 7), 3)([[0.0, 0.0]])
    with pytest.raises(OptionError):
        grid_positions((0,))
