"""Vectors to text and back, by a decoder written here from the format alone."""

import base64
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from regard.errors import DataError
from regard.view.pack import ALPHABET, pack_bits, pack_fixed13, pack_float32, rounded_to_fixed13

VECTORS = arrays(np.float32, (3, 5), elements=st.floats(-(2.0**60), 2.0**60, width=32))


def decode(packed: str, width: int) -> np.ndarray:
    integers = [ALPHABET.index(a) * 91 + ALPHABET.index(b) for a, b in zip(packed[::2], packed[1::2], strict=True)]
    rows = np.array(integers, dtype=np.float64).reshape(-1, width + 1)
    return (rows[:, 1:] - 4140) / 4140 * 2 ** (rows[:, :1] / 64 - 64)


def test_the_alphabet_is_safe_in_a_script_element() -> None:
    assert len(ALPHABET) == len(set(ALPHABET)) == 91
    assert set(ALPHABET) == set(string.printable.strip()) - set('<"\\')


@given(VECTORS)
def test_float32_is_exact(vectors: np.ndarray) -> None:
    back = np.frombuffer(base64.b64decode(pack_float32(vectors)), dtype="<f4").reshape(vectors.shape)
    np.testing.assert_array_equal(back, vectors)


@given(VECTORS)
def test_fixed13_errs_by_less_than_it_says(vectors: np.ndarray) -> None:
    packed = pack_fixed13(vectors)
    assert len(packed) == 3 * (5 + 1) * 2
    error = np.abs(decode(packed, 5) - vectors.astype(np.float64))
    largest = np.abs(vectors).max(axis=1, keepdims=True).astype(np.float64)
    assert (error <= np.maximum(1.011 * largest, 2.0**-64) / 8280 * 1.0001).all()


@given(VECTORS)
def test_rounding_foresees_what_a_reader_gets(vectors: np.ndarray) -> None:
    np.testing.assert_allclose(
        rounded_to_fixed13(vectors[None])[0], decode(pack_fixed13(vectors), 5), rtol=1e-6, atol=0
    )


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(DataError, match="too large"):
        pack_fixed13(np.full((1, 3), 1e30, dtype=np.float32))


def test_bits_run_row_by_row() -> None:
    allowed = np.array([[True, False, False], [False, True, False], [True, True, True]])
    assert base64.b64decode(pack_bits(allowed)) == bytes([0b10001011, 0b10000000])
