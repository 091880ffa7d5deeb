"""Mu-law companding of real numbers, and bins of equal width on [-1, 1].

    compand(x) = sign(x) log(mu |x| + 1) / log(mu M + 1)         mu = 100, M = 256; |x| <= M is mapped to [-1, 1]
    expand(y)  = sign(y) ((mu M + 1)^|y| - 1) / mu
    bin(y)     = floor((y + 1) / 2 * bins), with y cut to [-1, 1]; y = 1 belongs to the last bin
    centre(b)  = 2 (b + 1/2) / bins - 1

So a number in [-1, 1] differs from the centre of its bin by at most 1 / bins. All in float64, any shape.
Reed et al. 2022, "A generalist agent", appendix B, equation 3.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.arguments import explain_arguments
from regard.errors import DataError, check_size, short_repr

MU = 100.0
LIMIT = 256.0
"""M: the magnitude that is mapped to 1."""
BINS = 1024
_SCALE = math.log(MU * LIMIT + 1.0)


@explain_arguments
def compand(values: object) -> NDArray[np.float64]:
    """Map real numbers to [-1, 1] by the mu-law; those beyond 256 to values beyond 1. Raises DataError for NaN."""
    real = check_values("values", values)
    return np.sign(real) * np.log1p(MU * np.abs(real)) / _SCALE


@explain_arguments
def expand(values: object) -> NDArray[np.float64]:
    """The inverse of ``compand``. Raises DataError for NaN."""
    real = check_values("values", values)
    return np.sign(real) * np.expm1(np.abs(real) * _SCALE) / MU


def to_bins(values: object, bins: int = BINS) -> NDArray[np.int64]:
    """The bins, 0 to ``bins`` - 1, of numbers cut to [-1, 1]. Raises DataError for NaN."""
    check_size("bins", bins)
    cut = np.clip(check_values("values", values), -1.0, 1.0)
    numbers = np.floor((cut + 1.0) / 2.0 * bins).astype(np.int64)
    return np.minimum(numbers, bins - 1)


def bin_centres(numbers: NDArray[np.int64], bins: int = BINS) -> NDArray[np.float64]:
    """The centres of bins, in [-1, 1]."""
    check_size("bins", bins)
    centres: NDArray[np.float64] = (2.0 * numbers + 1.0) / bins - 1.0
    return centres


def to_array(values: object) -> NDArray[Any] | None:
    """Return ``values`` as an array; None for lists of different lengths, and tensors that NumPy cannot read."""
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        return None


def check_values(name: str, values: object) -> NDArray[np.float64]:
    """Return ``values`` as an array of float64. Raises DataError unless they are real numbers without NaN."""
    array = to_array(values)
    if array is not None and array.dtype.kind not in "iufb":
        array = None
    if array is None or np.isnan(array).any():
        raise DataError(
            f"{name} cannot be tokenized",
            expected="real numbers without NaN",
            got=short_repr(values) if array is None else f"{int(np.isnan(array).sum())} NaN of {array.size} numbers",
            do="look for the step that produced them, such as a division by 0",
        )
    return array.astype(np.float64)
