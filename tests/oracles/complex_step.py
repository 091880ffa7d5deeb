"""Derivatives of any oracle, from its forward equation alone.

    d/dt f(x + t u) at 0  =  Im f(x + i h u) / h + O(h^2)        (Squire and Trapp 1998)

There is no difference of nearby numbers, so h = 1e-100 leaves no error but rounding. The function has to be analytic
where it is taken, and written so that complex numbers pass through it: no absolute value, no comparison of them.
"""

from collections.abc import Callable, Mapping

import numpy as np

STEP = 1e-100

Arrays = Mapping[str, np.ndarray]


def slope(
    function: Callable[[dict[str, np.ndarray]], np.ndarray], point: Arrays, name: str, along: np.ndarray
) -> float:
    """How fast the sum of a function of named arrays grows when one of them moves along a direction."""
    moved = {**point, name: point[name] + 1j * STEP * along}
    return float(np.imag(function(moved)).sum() / STEP)
