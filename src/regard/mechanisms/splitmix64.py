"""splitmix64, random numbers that are a pure function of a 64-bit integer (Steele, Lea and Flood 2014).

With integers only, so that every machine and every process draws the same numbers.
"""

from __future__ import annotations

from jaxtyping import Int
from torch import Tensor


def splitmix64(number: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Mix 64-bit integers, whose sums and products wrap around; constants are written as signed numbers."""
    number = number + (0x9E3779B97F4A7C15 - 2**64)
    number = (number ^ shift_right(number, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    number = (number ^ shift_right(number, 27)) * (0x94D049BB133111EB - 2**64)
    return number ^ shift_right(number, 31)


def shift_right(number: Int[Tensor, "..."], bits: int) -> Int[Tensor, "..."]:
    """Shift to the right, as an unsigned number."""
    return (number >> bits) & (2 ** (64 - bits) - 1)
