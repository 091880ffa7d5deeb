"""NumPy numbers and flags are equivalent to Python's, in every precision, and cause no warnings."""

import numpy as np
import pytest
import torch

import regard
from regard.errors import OptionError
from regard.layers import FeedForward
from regard.search import Beam, Sampling

pytestmark = pytest.mark.usefixtures("without_shape_checks")

FLOATS = (np.float16, np.float32, np.float64, np.longdouble)
QUERY = torch.linspace(-1, 1, 30, dtype=torch.float64).view(1, 2, 3, 5)


@pytest.mark.parametrize("kind", FLOATS)
def test_floats(kind):
    scaled = regard.attention(QUERY, QUERY, QUERY, scale=kind(0.25))
    assert torch.equal(scaled, regard.attention(QUERY, QUERY, QUERY, scale=0.25))
    assert torch.equal(regard.attention(QUERY, QUERY, QUERY, dropout=kind(0)), regard.attention(QUERY, QUERY, QUERY))
    assert Beam(length_penalty=kind(0.5)).length_penalty == 0.5
    assert Sampling(seed=1, temperature=kind(0.5)).temperature == 0.5


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_nonfinite_numbers_are_refused(kind, number):
    for call in (
        lambda: regard.attention(QUERY, QUERY, QUERY, scale=kind(number)),
        lambda: regard.attention(QUERY, QUERY, QUERY, dropout=kind(number)),
        lambda: Beam(length_penalty=kind(number)),
    ):
        with pytest.raises(OptionError):
            call()


@pytest.mark.parametrize("flag", [True, False])
def test_flags(flag):
    assert (FeedForward(5, 7, bias=np.bool_(flag)).up.bias is None) is not flag


@pytest.mark.parametrize("kind", [np.int8, np.uint64])
def test_integers(kind):
    assert FeedForward(kind(5), kind(7)).up.weight.shape == (7, 5)
    assert regard.observe(QUERY, QUERY, QUERY, top=kind(2)).top_keys.shape == (1, 2, 3, 2)
