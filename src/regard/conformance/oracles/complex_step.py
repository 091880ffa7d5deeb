"""Derivatives of any oracle, computed from its forward equation only.

    d/dt f(x + t u) at 0  =  Im f(x + i h u) / h + O(h^2)        (Squire and Trapp 1998)

No difference of close numbers is taken, so with h = 1e-100 the only error is rounding. The function must be analytic at
the point, and must accept complex numbers: it may take no absolute value of them and may not compare them.
"""

from collections.abc import Callable, Mapping

import numpy as np

STEP = 1e-100

Arrays = Mapping[str, np.ndarray]


def slope(
    function: Callable[[dict[str, np.ndarray]], np.ndarray], point: Arrays, name: str, along: np.ndarray
) -> float:
    """Directional derivative of the sum of a function of named arrays, when one of them moves along a direction."""
    moved = {**point, name: point[name] + 1j * STEP * along}
    return float(np.imag(function(moved)).sum() / STEP)


def check_gradients(
    function: Callable[[dict[str, np.ndarray]], np.ndarray], point: Arrays, gradients: Arrays, *, atol: float
) -> None:
    """Compare gradients of the sum of a function with slopes along a direction of 1 and -1, one array at a time."""
    for name, gradient in gradients.items():
        along = np.random.default_rng(5).choice([-1.0, 1.0], gradient.shape)
        assert abs(float((gradient * along).sum()) - slope(function, point, name, along)) < atol, name
