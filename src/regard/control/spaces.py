"""Spaces: what one part of an observation, or an action, can be.

    TextSpace         a string
    PictureSpace      uint8 (height, width, channels), height and width multiples of 16
    DiscreteSpace     integers of one shape, each from 0 to ``values`` - 1
    ContinuousSpace   real numbers of one shape; as an action they have bounds, low < high

The words follow ``gymnasium``; this module does not need it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from regard.arguments import explain_arguments
from regard.control.mu_law import check_values, to_array
from regard.errors import DataError, OptionError, check_count, check_number, check_size, short_repr

PATCH = 16
"""The height and width of a patch in pixels."""


@final
@explain_arguments
@dataclass(frozen=True)
class TextSpace:
    """Strings."""

    def check(self, name: str, value: object) -> str:
        """Return ``value``. Raises DataError unless it is a string."""
        if not isinstance(value, str):
            raise DataError(
                f"{name} does not fit its space",
                expected="a string",
                got=short_repr(value),
                do="pass what the environment returned",
            )
        return value


@final
@explain_arguments
@dataclass(frozen=True)
class PictureSpace:
    """Pictures of uint8, (height, width, channels), that patches of 16 x 16 pixels fill."""

    height: int
    width: int
    channels: int = 3

    def __post_init__(self) -> None:
        for name in ("height", "width", "channels"):
            check_size(name, getattr(self, name))
        if self.height % PATCH or self.width % PATCH:
            raise OptionError(
                "patches do not fill the picture",
                expected=f"a height and a width that are multiples of {PATCH}",
                got=f"{self.height} x {self.width}",
                do="resize the pictures of the environment",
            )

    @property
    def grid(self) -> tuple[int, int]:
        """The rows and columns of patches."""
        return self.height // PATCH, self.width // PATCH

    def check(self, name: str, value: object) -> NDArray[np.uint8]:
        """Return ``value``. Raises DataError unless it is a picture of this space."""
        if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.shape != self._shape:
            raise DataError(
                f"{name} does not fit its space",
                expected=f"an array of uint8 {self._shape}: (height, width, channels)",
                got=short_repr(value),
                do="pass what the environment returned",
            )
        return value

    @property
    def _shape(self) -> tuple[int, int, int]:
        return self.height, self.width, self.channels


@final
@explain_arguments
@dataclass(frozen=True)
class DiscreteSpace:
    """Integers from 0 to ``values`` - 1, of one ``shape``; () is one integer."""

    values: int
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_size("values", self.values)
        _check_shape(self.shape)

    @property
    def size(self) -> int:
        """The number of integers."""
        return math.prod(self.shape)

    def check(self, name: str, value: object) -> NDArray[np.int64]:
        """Return ``value`` as int64. Raises DataError unless it has the shape and lies in the range."""
        array = to_array(value)
        if (
            array is None
            or array.dtype.kind not in "iub"
            or array.shape != self.shape
            or (array.size and not (int(array.min()) >= 0 and int(array.max()) < self.values))
        ):
            raise DataError(
                f"{name} does not fit its space",
                expected=f"integers of shape {self.shape}, from 0 to {self.values - 1}",
                got=short_repr(value),
                do="pass what the environment returned",
            )
        return array.astype(np.int64)


@final
@explain_arguments
@dataclass(frozen=True)
class ContinuousSpace:
    """Real numbers of one ``shape``; () is one number.

    ``low`` and ``high`` bound the numbers of an action, which are scaled from there to [-1, 1]. The numbers of an
    observation need no bounds: they are companded.
    """

    shape: tuple[int, ...] = ()
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        _check_shape(self.shape)
        check_number("low", self.low)
        check_number("high", self.high, above=float(self.low))

    @property
    def size(self) -> int:
        """The number of numbers."""
        return math.prod(self.shape)

    def check(self, name: str, value: object) -> NDArray[np.float64]:
        """Return ``value`` as float64. Raises DataError unless it has the shape and no NaN."""
        array = check_values(name, value)
        if array.shape != self.shape:
            raise DataError(
                f"{name} does not fit its space",
                expected=f"numbers of shape {self.shape}",
                got=short_repr(value),
                do="pass what the environment returned",
            )
        return array


Space: TypeAlias = TextSpace | PictureSpace | DiscreteSpace | ContinuousSpace


def _check_shape(shape: object) -> None:
    if not isinstance(shape, tuple):
        raise OptionError("wrong shape", expected="a tuple of integers", got=short_repr(shape), do="shape=(3,)")
    for size in shape:
        check_count("shape", size)
