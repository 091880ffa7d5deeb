"""Dropout decisions and the resulting array: Srivastava et al. 2014, "Dropout", section 10.

Whether number i is kept depends on the seed only. In blocks of 16,384 numbers, with block b and index j in the block:

    key = mix(mix(mix(seed) + 0) + b),                   mix: SplitMix64, Steele, Lea and Flood 2014
    r   = hash of j with the two halves of key,          two rounds of multiply and xor-shift, Wellons 2018
    i is kept if r >= floor(p 2^32)
"""

import numpy as np

BLOCK = 16384


def mix(state: int) -> int:
    """The next number of a SplitMix64 generator in this state."""
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def keep_mask(seed: int, count: int, probability: float) -> np.ndarray:
    """Dropout mask: True for each of ``count`` numbers that is kept, (count,) bool."""
    kept = []
    for first in range(0, count, BLOCK):
        key = mix(mix(mix(seed) + 0) + first // BLOCK)
        x: np.ndarray = np.arange(min(BLOCK, count - first), dtype=np.uint64) ^ np.uint64(key % 2**32)
        x = (x ^ x >> 16) * 0x7FEB352D % 2**32 ^ np.uint64(key >> 32)
        x = (x ^ x >> 15) * 0x846CA68B % 2**32
        kept.append((x ^ x >> 16) >= int(probability * 2**32))
    return np.concatenate(kept) if kept else np.zeros(0, dtype=bool)
