"""Encoding of vectors as text that is safe inside an HTML script element, exact if the page stays small.

- float32: little-endian float32 in base64, 5.3 characters per number, exact.
- logarithms: see ``pack_logarithms``.
- fixed point: L letters per number, L = 2 (13 bits) or 3 (19 bits). In the alphabet of 91 printable letters they encode
  an integer from 0 to 2h, h = (91^L - 1) / 2, and a vector is

      number_c = (integer_c - h) / h * 2^(u/64 - 64)

  where u, the vector's own logarithmic scale, comes first. The error is at most 1/2h of the scale, which is at most
  1.1 % above the vector's largest number.
"""

from __future__ import annotations

import base64
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor

from regard.errors import DataError

Json: TypeAlias = dict[str, Any]
FLOAT32 = 0
"""Letters per number that stand for the encoding without rounding."""

# All printable ASCII except the quote, the backslash (JSON) and the less-than sign (HTML): 91 letters.
ALPHABET = "".join(letter for letter in map(chr, range(33, 127)) if letter not in '"\\<')
_LARGEST_SCALE = len(ALPHABET) ** 2 - 1
_ALPHABET_BYTES = np.frombuffer(ALPHABET.encode("ascii"), dtype=np.uint8)


def choose_letters(numbers: int, room: int) -> int:
    """The letters per number of the most exact encoding that fits into ``room`` characters; two if none does."""
    return FLOAT32 if characters_of(numbers, FLOAT32) <= room else 3 if characters_of(numbers, 3) <= room else 2


def characters_of(numbers: int, letters: int) -> int:
    """The characters of so many numbers with ``letters`` each."""
    return numbers * letters if letters else numbers * 16 // 3


def pack_float32(vectors: Float[np.ndarray, "tokens head_dim"]) -> str:
    """Encode all numbers exactly, row by row."""
    return base64.b64encode(np.ascontiguousarray(vectors, dtype="<f4").tobytes()).decode("ascii")


def pack_fixed(vectors: Float[np.ndarray, "tokens head_dim"], letters: int) -> str:
    """Encode each vector as its scale and its numbers, ``letters`` characters each. Raises DataError beyond 2^65."""
    scale, integers = _to_fixed_point(vectors, letters)
    return pack_integers(np.concatenate([scale[:, None], integers], axis=1), letters)


def pack_integers(integers: Int[np.ndarray, "..."], letters: int) -> str:
    """Encode integers from 0 to 91^letters - 1 in ``letters`` characters each."""
    rest, digits = integers, []
    for _ in range(letters):
        rest, digit = np.divmod(rest, len(ALPHABET))
        digits.append(_ALPHABET_BYTES[digit])
    return np.stack(digits[::-1], axis=-1).tobytes().decode("ascii")


def pack_logarithms(shares: Float[np.ndarray, "..."], letters: int) -> str:
    """Encode shares from 0 to 1 in even steps of their logarithm: 0, then 2^-20L to 1 for ``letters`` L.

    A share from 2^-20L on is off by at most 8 % of itself with one letter, and by 0.2 % with two.
    """
    steps, lowest = len(ALPHABET) ** letters - 2, 20 * letters
    logarithms = np.log2(shares, out=np.full(shares.shape, -np.inf), where=shares > 0)
    levels = np.rint(1 + steps * (np.maximum(logarithms, -2.0 * lowest) + lowest) / lowest)
    return pack_integers(np.clip(levels, 0, steps + 1).astype(np.int64), letters)


def round_to_fixed(
    vectors: Float[np.ndarray, "heads tokens head_dim"], letters: int
) -> Float[np.ndarray, "heads tokens head_dim"]:
    """Round vectors to the values that decoding ``pack_fixed`` returns, in float32."""
    heads, tokens, head_dim = vectors.shape
    scale, integers = _to_fixed_point(vectors.reshape(-1, head_dim), letters)
    half = _half_range(letters)
    numbers = (integers - half) / half * np.exp2(scale / 64 - 64)[:, None]
    return np.asarray(numbers.reshape(heads, tokens, head_dim), dtype=np.float32)


def pack_bits(allowed: Bool[np.ndarray, "queries keys"]) -> str:
    """Encode a mask row by row in base64, eight keys per byte with the first key in the highest bit."""
    return base64.b64encode(np.packbits(allowed).tobytes()).decode("ascii")


def pack_heads(heads: Float32[np.ndarray, "heads tokens size"], letters: int) -> list[str]:
    """Encode the vectors of each head with ``letters`` characters per number."""
    return [pack_fixed(head, letters) if letters else pack_float32(head) for head in heads]


def pack_rows(rows: Float32[Tensor, "heads numbers"]) -> list[str]:
    """Encode a row of each head exactly: they are few."""
    return [pack_float32(row[None]) for row in rows.numpy()]


def pack_vectors(
    query: Float32[np.ndarray, "heads _ head_dim"],
    key: Float32[np.ndarray, "heads _ head_dim"],
    value: Float32[np.ndarray, "heads _ value_dim"],
    allowed: Bool[np.ndarray, "*heads _ _"] | None,
    masks: list[str],
    letters: int,
) -> Json:
    """Encode the vectors of a layer, and its mask as ``pack_mask`` does."""
    return {
        "head_dim": int(query.shape[2]),
        "value_dim": int(value.shape[2]),
        "query": pack_heads(query, letters),
        "key": pack_heads(key, letters),
        "value": pack_heads(value, letters),
        "mask": pack_mask(allowed, masks),
    }


def pack_mask(allowed: Bool[np.ndarray, "*heads _ _"] | None, masks: list[str]) -> int | list[int] | None:
    """The number of a mask in ``masks``, to which it is appended if it is new; several numbers for a mask per head."""
    if allowed is None:
        return None
    numbers = []
    for of_head in allowed if allowed.ndim == 3 else allowed[None]:
        mask = pack_bits(of_head)
        if mask not in masks:
            masks.append(mask)
        numbers.append(masks.index(mask))
    return numbers[0] if len(set(numbers)) == 1 else numbers


def _half_range(letters: int) -> int:
    return int(len(ALPHABET) ** letters - 1) // 2


def _to_fixed_point(
    vectors: Float[np.ndarray, "tokens head_dim"], letters: int
) -> tuple[Int[np.ndarray, " tokens"], Int[np.ndarray, "tokens head_dim"]]:
    largest = np.abs(vectors.astype(np.float64)).max(axis=1, initial=0.0)
    exponent = np.log2(largest, out=np.full_like(largest, -64.0), where=largest > 0)
    scale = np.maximum(np.ceil((exponent + 64) * 64), 0).astype(np.int64)
    if (scale > _LARGEST_SCALE).any():
        raise DataError(
            "a vector contains numbers that are too large for the page",
            expected="numbers below 2^65",
            got=f"{largest.max():.3g}",
            do="check the model's weights",
        )
    half = _half_range(letters)
    integers = np.rint(vectors / np.exp2(scale / 64 - 64)[:, None] * half).astype(np.int64) + half
    return scale, integers
