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
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import OptionError, is_number, short_repr
from regard.fields import check_fields, declare


def plain_frequencies(base: float, head_dim: int) -> Float[Tensor, " pairs"]:
    """Compute f_i = base^(-2i/d) in float64."""
    return base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)


def _check_factor(name: str, factor: object) -> None:
    if not is_number(factor) or float(factor) < 1.0:
        raise OptionError(
            f"wrong {name} of a rotary scaling",
            expected="a finite number of 1 or more",
            got=short_repr(factor),
            do="divide the length of the texts by the trained length",
        )


def _check_turns(low_name: str, low: object, high_name: str, high: object) -> None:
    if not is_number(low) or not is_number(high) or not 0.0 < float(low) < float(high):
        raise OptionError(
            f"{low_name} and {high_name} are numbers of turns within the trained length",
            expected=f"0 < {low_name} < {high_name}",
            got=f"{low_name}={short_repr(low)}, {high_name}={short_repr(high)}",
            do="leave them out for the published values",
        )


def _turns_field(default: float, text: str, stored: str, *, zero: float = 0.0) -> Any:
    """A field that is a number of turns within the trained length; ``zero`` is in place of 0 in a file."""
    metadata = declare(
        f"number of turns within the trained length: {text}",
        stored=stored,
        read=lambda config, name: config.number(name, default=default) or zero,
    )
    return field(default=default, metadata=metadata)


def _pair_factors(stored: str, lengths: str) -> dict[str, Any]:
    """The declaration of a factor for each pair of dimensions."""
    return declare(
        f"a factor for each pair, for texts {lengths} ``trained_length`` tokens",
        above=0.0,
        stored=stored,
        example="one number for each pair of dimensions, for example (1.0,) * 32",
        read=lambda config, name: config.numbers(name),
    )


_FACTOR = declare("length of the longest text divided by the trained one", stored="factor", check=_check_factor)
_TRAINED_LENGTH = declare(
    "length of the longest text of the training", minimum=1, stored="original_max_position_embeddings", required=True
)


class Scaling(ABC):
    """A scaling of the rotary frequencies."""

    depends_on_length: ClassVar[bool] = True
    """Whether the frequencies depend on the length of the text."""

    def __post_init__(self) -> None:
        check_fields(self)

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

    factor: float = field(metadata=_FACTOR)

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

    factor: float = field(metadata=_FACTOR)
    trained_length: int = field(metadata=declare("length of the longest text of the training", minimum=1))

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
    """

    depends_on_length = False

    factor: float = field(metadata=_FACTOR)
    trained_length: int = field(metadata=_TRAINED_LENGTH)
    fast: float = _turns_field(32.0, "pairs with more turns are kept", "beta_fast", zero=32.0)
    slow: float = _turns_field(1.0, "pairs with fewer turns are interpolated", "beta_slow", zero=1.0)
    magnitude_factor: float | None = field(
        default=None,
        metadata=declare(
            "factor of queries and of keys; None is 0.1 ln(factor) + 1", above=0.0, stored="attention_factor"
        ),
    )
    whole_pairs: bool = field(
        default=True,
        metadata=declare("whether the ends of the ramp are rounded to whole pairs, as published", stored="truncate"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_turns("slow", self.slow, "fast", self.fast)

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
    """Llama 3 scaling: short wavelengths are kept, long ones interpolated, with a linear blend between."""

    depends_on_length = False

    factor: float = field(metadata=_FACTOR)
    trained_length: int = field(metadata=_TRAINED_LENGTH)
    low: float = _turns_field(1.0, "pairs with fewer turns are interpolated", "low_freq_factor")
    high: float = _turns_field(4.0, "pairs with more turns are kept", "high_freq_factor")

    def __post_init__(self) -> None:
        super().__post_init__()
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

    Keys in the cache of a layer keep the frequencies of the shorter text for which they were rotated; a model computes
    its cache again (``switch_length``).
    """

    short_factors: tuple[float, ...] = field(metadata=_pair_factors("short_factor", "of up to"))
    long_factors: tuple[float, ...] = field(metadata=_pair_factors("long_factor", "of more than"))
    factor: float = field(metadata=_FACTOR)
    trained_length: int = field(metadata=_TRAINED_LENGTH | {"minimum": 2})
    magnitude_factor: float | None = field(
        default=None,
        metadata=declare(
            "factor of queries and of keys; None is sqrt(1 + ln(factor) / ln(trained_length))",
            above=0.0,
            stored="attention_factor",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.short_factors) != len(self.long_factors):
            raise OptionError(
                "LongRoPE has two lists of factors of one length",
                expected="one number for each pair of dimensions in both",
                got=f"{len(self.short_factors)} short_factors, {len(self.long_factors)} long_factors",
                do="copy both from the same checkpoint",
            )

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
