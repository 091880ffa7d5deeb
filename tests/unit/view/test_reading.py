"""Readings: weights against the definition, and arrays of wrong shapes."""

import numpy as np
import pytest

from layer_readings import layer_reading
from regard.errors import DataError, ShapeError
from regard.view.reading import Reading, Tokens

GENERATOR = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def test_the_two_vector_example() -> None:
    """Q = [[1,2],[3,4]], K = [[2,3],[4,5]] without scaling: known weights and context."""
    query = np.array([[[1, 2], [3, 4]]], dtype=np.float32)
    key = np.array([[[2, 3], [4, 5]]], dtype=np.float32)
    value = np.array([[[0.1, 0.2], [0.3, 0.4]]], dtype=np.float32)
    weights = layer_reading("one", query, key, value, scale=2**-0.5).weights()
    # scores [[8, 14], [18, 32]] over sqrt(2): the weight of the first key is 1 / (1 + e^(difference / sqrt 2))
    np.testing.assert_allclose(weights[0, :, 0], 1 / (1 + np.exp(np.array([6, 14]) / np.sqrt(2))), rtol=1e-9)
    np.testing.assert_allclose(weights[0] @ value[0], [[0.2972, 0.3972], [0.3, 0.4]], atol=5e-5)


def test_masked_keys_and_empty_rows_have_weights_of_0() -> None:
    allowed = np.array([[True, False, True], [False, False, False], [False, True, False]])
    weights = layer_reading("one", 40 * normal(2, 3, 5), 40 * normal(2, 3, 5), normal(2, 3, 7), 1.0, allowed).weights()
    assert (weights[:, ~allowed] == 0).all()
    np.testing.assert_allclose(weights.sum(-1), [[1, 0, 1]] * 2)
    np.testing.assert_array_equal(weights[:, 2, 1], 1)


def test_mismatched_shapes_are_refused() -> None:
    with pytest.raises(ShapeError, match="do not fit together"):
        layer_reading("one", normal(2, 3, 5), normal(2, 3, 5), normal(2, 4, 7), 1.0)
    with pytest.raises(ShapeError):
        layer_reading("one", normal(2, 3, 5), normal(2, 3, 5), normal(2, 3, 7), 1.0, np.ones((3, 2), dtype=bool))
    with pytest.raises(ShapeError, match="different numbers of tokens"):
        Tokens("a b", ("a", "b"), ((0, 1),), (False, False))
    two = Tokens("a b", ("a", "b"), ((0, 1), (2, 3)), (False, False))
    layer = layer_reading("one", normal(2, 3, 5), normal(2, 3, 5), normal(2, 3, 7), 1.0)
    with pytest.raises(ShapeError, match="one does not match its tokens"):
        Reading(two, (layer,), normal(2, 2, 11))
    with pytest.raises(ShapeError, match="hidden states"):
        Reading(two, (), normal(2, 3, 11))


def test_nonfinite_numbers_are_refused() -> None:
    key = normal(2, 3, 5)
    key[1, 2, 3] = np.nan
    with pytest.raises(DataError, match="not finite"):
        layer_reading("one", normal(2, 3, 5), key, normal(2, 3, 7), 1.0)
    one = Tokens("a", ("a",), ((0, 1),), (False,))
    with pytest.raises(DataError, match="hidden states"):
        Reading(one, (), np.full((1, 1, 3), np.inf, dtype=np.float32))
