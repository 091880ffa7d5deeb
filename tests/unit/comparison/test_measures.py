"""Measures against exact attention: their definitions, bounds and laws."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.comparison import mass_covered, mass_kept, output_error, top_agreement
from regard.errors import DtypeError, OptionError, ShapeError

EXACT = torch.tensor([0.5, 0.2, 0.2, 0.1, 0.0])


@pytest.mark.parametrize(
    ("other", "kept", "covered"),
    [
        ([0.5, 0.2, 0.2, 0.1, 0.0], 1.0, 1.0),
        ([0.0, 0.0, 0.0, 0.0, 1.0], 0.0, 0.0),
        ([1.0, 0.0, 0.0, 0.0, 0.0], 0.5, 0.5),
        ([0.2, 0.2, 0.2, 0.2, 0.2], 0.7, 1.0),
        ([0.9, -0.4, 0.5, 0.0, 0.0], 0.7, 0.9),  # a negative weight keeps nothing, and covers its key
        ([2.0, 2.0, 2.0, 2.0, 2.0], 0.7, 1.0),  # weights that sum to more than 1 are divided by their sum
        ([0.1, 0.1, 0.1, 0.1, 0.0], 0.4, 1.0),  # less than 1 is not made up for
        ([3.0, -1.0, 0.0, 0.0, 0.0], 0.5, 0.7),
    ],
)
def test_masses_of_known_rows(other, kept, covered):
    assert_close(mass_kept(EXACT, torch.tensor(other)), torch.tensor(kept))
    assert_close(mass_covered(EXACT, torch.tensor(other)), torch.tensor(covered))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 13))
def test_laws_of_distributions(seed, keys):
    generator = np.random.default_rng(seed)
    exact, other = generator.dirichlet(np.full(keys, 0.4), size=(2, 3))
    kept = mass_kept(torch.tensor(exact), torch.tensor(other)).numpy()
    np.testing.assert_allclose(kept, 1 - np.abs(exact - other).sum(-1) / 2, rtol=1e-9, atol=1e-12)
    chosen = generator.random((3, keys)) < 0.5
    chosen[:, 0] = True
    part = np.where(chosen, exact, 0) / np.where(chosen, exact, 0).sum(-1, keepdims=True)
    kept, covered = (measure(torch.tensor(exact), torch.tensor(part)).numpy() for measure in (mass_kept, mass_covered))
    np.testing.assert_allclose(kept, np.where(chosen, exact, 0).sum(-1), rtol=1e-9)
    np.testing.assert_allclose(covered, kept, rtol=1e-9)


def test_top_agreement_counts_common_keys():
    other = torch.tensor([0.1, 0.0, 0.5, 0.4, -0.9])
    assert top_agreement(EXACT, other, top=1) == 0
    assert top_agreement(EXACT, other, top=4) == 0.75  # of keys 0 to 3, key 1 has no weight
    assert top_agreement(EXACT, other, top=99) == 0.75
    assert math.isnan(top_agreement(torch.zeros(5), other, top=2))


def test_output_error_is_relative():
    exact = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 0.0]])
    other = torch.tensor([[3.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    error = output_error(exact, other)
    assert_close(error[0], torch.tensor(0.6))
    assert error[1] == math.inf
    assert math.isnan(error[2])


@pytest.mark.parametrize("measure", [mass_kept, mass_covered, top_agreement, output_error])
def test_nan_of_the_other_stays_visible(measure):
    other = torch.tensor([0.5, math.nan, 0.2, 0.1, 0.0])
    assert math.isnan(measure(EXACT, other))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("measure", [mass_kept, mass_covered, top_agreement, output_error])
def test_bad_input_is_refused(measure):
    with pytest.raises(ShapeError, match="different shapes"):
        measure(EXACT, EXACT[:3])
    with pytest.raises(DtypeError, match="other has the wrong dtype"):
        measure(EXACT, EXACT.long())
    with pytest.raises(DtypeError, match="exact is not a tensor"):
        measure([1.0], EXACT)


def test_top_of_zero_is_refused():
    with pytest.raises(OptionError, match="wrong top"):
        top_agreement(EXACT, EXACT, top=0)
