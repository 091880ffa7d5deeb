"""How many buckets tokens are hashed into, as factors: 64 to 127 tokens a bucket on average, unless a number is chosen.

A number of buckets is a product of factors, each even: a rotation gives one bucket for x and one for -x. 1 has none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.contract import Frame
from regard.errors import OptionError, check_count, short_repr

_TOKENS_PER_BUCKET = 64
_MAX_BUCKETS = 2**24
_MAX_FACTOR = 128
"""Buckets from which two factors are drawn: the cost of a hash is proportional to their sum, not to their product."""


def count_buckets(factors: Sequence[int]) -> int:
    """The number of buckets of a product of factors; 1 without factors."""
    return math.prod(factors)


def split_buckets(buckets: int) -> tuple[int, ...]:
    """Split a power of two into factors: itself up to 128, else two; none for 1."""
    if buckets <= _MAX_FACTOR:
        return () if buckets == 1 else (buckets,)
    bits = buckets.bit_length() - 1
    return (2 ** (bits // 2), 2 ** (bits - bits // 2))


def choose_level(tokens: int) -> int:
    """Return the logarithm of the number of buckets for so many tokens."""
    level = 0
    while tokens >= _TOKENS_PER_BUCKET * 2 ** (level + 1):
        level += 1
    return level


def choose_factors(
    frame: Frame, visible: Bool[Tensor, "#batch #heads keys"] | None
) -> tuple[tuple[int, ...], Int[Tensor, "#batch #heads"] | None]:
    """Return the factors of the number of buckets, if it is the same everywhere; else the logarithm of each."""
    level = choose_level(frame.keys)
    if visible is None:
        return split_buckets(2**level), None
    counts = visible.sum(-1)
    levels = torch.zeros_like(counts)
    for step in range(1, level + 1):
        levels = levels + (counts >= _TOKENS_PER_BUCKET * 2**step)
    return (), levels


def check_buckets(buckets: object) -> tuple[int, ...] | None:
    """Return the factors of the number of buckets; none for 1. Raises OptionError for other values."""
    if buckets is None:
        return None
    listed: list[Any] = list(buckets) if isinstance(buckets, list | tuple) else [buckets]
    for factor in listed:
        check_count("buckets", factor, minimum=1, maximum=_MAX_BUCKETS)
    factors = [int(factor) for factor in listed]
    if factors == [1]:
        return ()
    if not factors or any(factor % 2 for factor in factors) or count_buckets(factors) > _MAX_BUCKETS:
        raise OptionError(
            "wrong buckets",
            expected=f"an even number, or a list of even factors, of at most {_MAX_BUCKETS:,} buckets; or 1",
            got=short_repr(buckets),
            do="for example buckets=64, or buckets=[16, 16]: each rotation gives a bucket for x and one for -x",
        )
    return tuple(factors)
