"""Scaling of rotary frequencies, so that a model can read texts longer than those it was trained on.

With f_i = base^(-2i/d), wavelength l_i = 2 pi / f_i, trained length L, and factor s = new length / L:

    LinearScaling    f_i / s
    DynamicScaling   base * (s n/L - (s - 1))^(d/(d-2)) once n > L
    YarnScaling      f_i / s or f_i, blended by the rotations of a pair within L; scores times (0.1 ln s + 1)^2
    Llama3Scaling    the same idea, with the ramp over L / l_i
    LongRopeScaling  f_i / e_i, with factors e_i found by a search: one list for texts up to L, one for longer ones;
                     scores times 1 + ln s / ln L

Sources, in that order: Chen et al. 2023, "Position interpolation"; Peng et al. 2023 (YaRN), appendix B.3, and sections
3.2 to 3.4; Grattafiori et al. 2024 (Llama 3), section 3.2; Ding et al. 2024 (LongRoPE), section 3.2, whose factor of
scores is from the published code of Phi-3.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_count, check_flag, check_kind, check_number, is_number, short_repr


def plain_frequencies(base: float, head_dim: int) -> Float[Tensor, " pairs"]:
    """Compute f_i = base^(-2i/d) in float64."""
    return base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)


class Scaling(ABC):
    """A scaling of the rotary frequencies."""

    depends_on_length: ClassVar[bool] = True
    """Whether the frequencies depend on the length of the text."""

    @abstractmethod
    def frequencies(self, base: float, head_dim: int, length: int) -> Float[Tensor, " pairs"]:
        """Compute the frequencies of the rotation for a text of ``length`` tokens, in radians per token."""

    @property
    def magnitude(self) -> float:
        """Factor of queries and of keys; scores are multiplied by its square."""
        return 1.0

    @property
    def switch_length(self) -> int | None:
        """The length of texts beyond which all frequencies are others; None if there is no such length."""
        return None


@final
@explain_arguments
@dataclass(frozen=True)
class LinearScaling(Scaling):
    """Position interpolation: positions divided by ``factor``. Chen et al. 2023."""

    depends_on_length = False

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.factor)

    def frequencies(self, base: float, head_dim: int, length: int) -> Float[Tensor, " pairs"]:
        """Divide all frequencies by ``factor``."""
        del length
        return plain_frequencies(base, head_dim) / float(self.factor)


@final
@explain_arguments
@dataclass(frozen=True)
class DynamicScaling(Scaling):
    """Dynamic NTK scaling: the base grows with the length of the text beyond ``trained_length``.

    Keys already in a cache keep the frequencies of the shorter text for which they were rotated.
    """

    factor: float
    trained_length: int

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        check_count("trained_length", self.trained_length)

    def frequencies(self, base: float, head_dim: int, length: int) -> Float[Tensor, " pairs"]:
        """Compute the frequencies of the increased base."""
        if head_dim == 2:  # the only pair is the fastest one, which this scaling does not change
            return plain_frequencies(base, head_dim)
        stretch = max(1.0, float(self.factor) * length / self.trained_length - (self.factor - 1.0))
        return plain_frequencies(base * stretch ** (head_dim / (head_dim - 2)), head_dim)


@final
@explain_arguments
@dataclass(frozen=True)
class YarnScaling(Scaling):
    """YaRN: fast pairs keep their frequency, slow pairs are interpolated, with a linear ramp between.

    Fast pairs rotate more than ``fast`` times within the trained length, slow ones fewer than ``slow`` times.
    ``magnitude_factor`` is the factor of queries and of keys; None is 0.1 ln(factor) + 1. ``whole_pairs`` rounds the
    ends of the ramp to whole pairs, as published.
    """

    depends_on_length = False

    factor: float
    trained_length: int
    fast: float = 32.0
    slow: float = 1.0
    magnitude_factor: float | None = None
    whole_pairs: bool = True

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        check_count("trained_length", self.trained_length)
        _check_turns("slow", self.slow, "fast", self.fast)
        if self.magnitude_factor is not None:
            check_number("magnitude_factor", self.magnitude_factor, above=0.0)
        check_flag("whole_pairs", self.whole_pairs)

    def frequencies(self, base: float, head_dim: int, length: int) -> Float[Tensor, " pairs"]:
        """Blend the plain and the interpolated frequencies."""
        del length
        plain = plain_frequencies(base, head_dim)
        low, high = (self._find_pair(turns, base, head_dim) for turns in (self.fast, self.slow))
        if self.whole_pairs:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        ramp = (torch.arange(head_dim // 2, dtype=torch.float64) - low) / max(high - low, 0.001)
        interpolated = ramp.clamp(0, 1)
        return plain / float(self.factor) * interpolated + plain * (1 - interpolated)

    @property
    def magnitude(self) -> float:
        """The factor of queries and of keys; scores are multiplied by its square."""
        if self.magnitude_factor is not None:
            return float(self.magnitude_factor)
        return 0.1 * math.log(self.factor) + 1.0

    def _find_pair(self, turns: float, base: float, head_dim: int) -> float:
        """Find the (fractional) index of the pair that makes ``turns`` rotations within the trained length."""
        wavelength = self.trained_length / (turns * 2 * math.pi)
        finite = min(max(wavelength, sys.float_info.min), sys.float_info.max)  # the division may underflow or overflow
        return head_dim * math.log(finite) / (2 * math.log(base))


@final
@explain_arguments
@dataclass(frozen=True)
class Llama3Scaling(Scaling):
    """Llama 3 scaling: short wavelengths are kept, long ones interpolated, with a linear blend between.

    Pairs with more than ``high`` rotations within the trained length are kept, those with fewer than ``low`` are
    interpolated.
    """

    depends_on_length = False

    factor: float
    trained_length: int
    low: float = 1.0
    high: float = 4.0

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        check_count("trained_length", self.trained_length)
        _check_turns("low", self.low, "high", self.high)

    def frequencies(self, base: float, head_dim: int, length: int) -> Float[Tensor, " pairs"]:
        """Blend the plain and the interpolated frequencies."""
        del length
        plain = plain_frequencies(base, head_dim)
        turns = self.trained_length * plain / (2 * math.pi)
        low, high = float(self.low), float(self.high)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return plain * kept + plain / float(self.factor) * (1 - kept)


@final
@explain_arguments
@dataclass(frozen=True)
class LongRopeScaling(Scaling):
    """LongRoPE: each pair's frequency is divided by a factor of its own, found by a search.

    ``short_factors`` are for texts of up to ``trained_length`` tokens, ``long_factors`` for longer ones; each has one
    number for each pair. ``factor`` is the new length divided by the trained one, and ``magnitude_factor`` the factor
    of queries and of keys; None is sqrt(1 + ln(factor) / ln(trained_length)). Keys in the cache of a layer keep the
    frequencies of the shorter text for which they were rotated; a model computes its cache again (``switch_length``).
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    factor: float
    trained_length: int
    magnitude_factor: float | None = None

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        check_count("trained_length", self.trained_length, least=2)
        for name in ("short_factors", "long_factors"):
            factors = getattr(self, name)
            check_kind(name, factors, tuple, do="one number for each pair of dimensions, for example (1.0,) * 32")
            for number in factors:
                check_number(name, number, above=0.0)
        if len(self.short_factors) != len(self.long_factors):
            raise OptionError(
                "LongRoPE has two lists of factors of one length",
                expected="one number for each pair of dimensions in both",
                got=f"{len(self.short_factors)} short_factors, {len(self.long_factors)} long_factors",
                do="copy both from the same checkpoint",
            )
        if self.magnitude_factor is not None:
            check_number("magnitude_factor", self.magnitude_factor, above=0.0)

    def frequencies(self, base: float, head_dim: int, length: int) -> Float[Tensor, " pairs"]:
        """Divide each frequency by its factor. Raises OptionError unless there is one for each pair."""
        factors = self.long_factors if length > self.trained_length else self.short_factors
        if 2 * len(factors) != head_dim:
            raise OptionError(
                "LongRoPE has a factor for each pair of dimensions",
                expected=f"{head_dim // 2} factors, for {head_dim} rotated dimensions",
                got=f"{len(factors)}",
                do="use the factors of a model with this head_dim",
            )
        return plain_frequencies(base, head_dim) / torch.tensor(factors, dtype=torch.float64)

    @property
    def magnitude(self) -> float:
        """The factor of queries and of keys; scores are multiplied by its square."""
        if self.magnitude_factor is not None:
            return float(self.magnitude_factor)
        return math.sqrt(1.0 + math.log(self.factor) / math.log(self.trained_length))

    @property
    def switch_length(self) -> int | None:
        """``trained_length``: longer texts have the other list of factors."""
        return self.trained_length if self.short_factors != self.long_factors else None


def _check_factor(factor: object) -> None:
    if not is_number(factor) or float(factor) < 1.0:
        raise OptionError(
            "wrong factor of a rotary scaling",
            expected="a finite number of 1 or more",
            got=short_repr(factor),
            do="divide the length of the texts by the trained length",
        )


def _check_turns(fewest: str, low: object, most: str, high: object) -> None:
    if not is_number(low) or not is_number(high) or not 0.0 < float(low) < float(high):
        raise OptionError(
            f"{fewest} and {most} are numbers of turns within the trained length",
            expected=f"0 < {fewest} < {most}",
            got=f"{fewest}={short_repr(low)}, {most}={short_repr(high)}",
            do="leave them out for the published values",
        )
