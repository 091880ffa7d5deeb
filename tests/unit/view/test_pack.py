"""Vectors to text and back, with a decoder written here from the format's description alone."""

import base64
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from regard.errors import DataError
from regard.view.pack import ALPHABET, pack_bits, pack_fixed, pack_float32, round_to_fixed

VECTORS = arrays(np.float32, (3, 5), elements=st.floats(-(2.0**60), 2.0**60, width=32))


def decode(packed: str, width: int, letters: int) -> np.ndarray:
    groups = [packed[at : at + letters] for at in range(0, len(packed), letters)]
    integers = [sum(ALPHABET.index(letter) * 91**place for place, letter in enumerate(group[::-1])) for group in groups]
    rows = np.array(integers, dtype=np.float64).reshape(-1, width + 1)
    half = (91**letters - 1) / 2
    return (rows[:, 1:] - half) / half * 2 ** (rows[:, :1] / 64 - 64)


def test_the_alphabet_is_safe_in_a_script_element() -> None:
    assert len(ALPHABET) == len(set(ALPHABET)) == 91
    assert set(ALPHABET) == set(string.printable.strip()) - set('<"\\')


@given(VECTORS)
def test_float32_is_exact(vectors: np.ndarray) -> None:
    back = np.frombuffer(base64.b64decode(pack_float32(vectors)), dtype="<f4").reshape(vectors.shape)
    np.testing.assert_array_equal(back, vectors)


@pytest.mark.parametrize("letters", [2, 3])
@given(vectors=VECTORS)
def test_fixed_point_error_is_within_the_stated_bound(vectors: np.ndarray, letters: int) -> None:
    packed = pack_fixed(vectors, letters)
    assert len(packed) == 3 * (5 + 1) * letters
    error = np.abs(decode(packed, 5, letters) - vectors.astype(np.float64))
    largest = np.abs(vectors).max(axis=1, keepdims=True).astype(np.float64)
    assert (error <= np.maximum(1.011 * largest, 2.0**-64) / (91**letters - 1) * 1.0001).all()


@pytest.mark.parametrize("letters", [2, 3])
@given(vectors=VECTORS)
def test_round_to_fixed_equals_decoded_vectors(vectors: np.ndarray, letters: int) -> None:
    back = decode(pack_fixed(vectors, letters), 5, letters)
    np.testing.assert_allclose(round_to_fixed(vectors[None], letters)[0], back, rtol=1e-6, atol=0)


def test_too_large_numbers_are_refused() -> None:
    with pytest.raises(DataError, match="too large"):
        pack_fixed(np.full((1, 3), 1e30, dtype=np.float32), 2)


def test_bits_are_packed_row_by_row() -> None:
    allowed = np.array([[True, False, False], [False, True, False], [True, True, True]])
    assert base64.b64decode(pack_bits(allowed)) == bytes([0b10001011, 0b10000000])
