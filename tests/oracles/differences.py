"""Gradients by finite differences, for functions without a hand-written gradient.

    f'(x) = (f(x - 2h) - 8 f(x - h) + 8 f(x + h) - f(x + 2h)) / 12h + O(h^4)    (the five-point stencil)

In float64 with h = 1e-3 and values near 1, about eleven digits are correct.
"""

from collections.abc import Callable, Sequence

import numpy as np

STENCIL = ((-2, 1.0), (-1, -8.0), (1, 8.0), (2, -1.0))


def gradient(function: Callable[[np.ndarray], float], point: np.ndarray, step: float = 1e-3) -> np.ndarray:
    """The gradient of a scalar function at a point of any shape, one coordinate at a time."""
    point = np.array(point, dtype=np.float64)
    result = np.zeros_like(point)
    for index in np.ndindex(point.shape):
        here = point[index]
        for steps, weight in STENCIL:
            point[index] = here + steps * step
            result[index] += weight * function(point) / (12 * step)
        point[index] = here
    return result


def gradients(function: Callable[..., float], *points: np.ndarray, step: float = 1e-3) -> list[np.ndarray]:
    """The gradient in each argument of a scalar function of several arrays, with the others constant."""

    def alone(index: int) -> Callable[[np.ndarray], float]:
        return lambda moved: function(*points[:index], moved, *points[index + 1 :])

    return [gradient(alone(index), point, step) for index, point in enumerate(points)]


def slope(
    function: Callable[..., float], points: Sequence[np.ndarray], line: Sequence[np.ndarray], step: float = 1e-4
) -> float:
    """The directional derivative: the sum of each gradient times its part of the direction.

    All numbers move at once, so the step is smaller.
    """

    def moved(distance: float) -> list[np.ndarray]:
        return [point + distance * part for point, part in zip(points, line, strict=True)]

    return sum(weight * function(*moved(steps * step)) for steps, weight in STENCIL) / (12 * step)


def assert_gradients_elementwise(
    function: Callable[..., float], points: Sequence[np.ndarray], ours: Sequence[np.ndarray], atol: float
) -> None:
    """Assert that each number of the gradients is close to that of finite differences."""
    for one, other in zip(ours, gradients(function, *points), strict=True):
        np.testing.assert_allclose(one, other, atol=atol, strict=True)


def assert_directional_derivatives(
    function: Callable[..., float], points: Sequence[np.ndarray], ours: Sequence[np.ndarray], atol: float
) -> None:
    """Assert that the derivatives along three random directions are close to those of finite differences.

    Each number of each gradient contributes to each of them, so a wrong one is detected, though not identified, in
    a hundredth of the time.
    """
    assert [gradient.shape for gradient in ours] == [point.shape for point in points]
    random = np.random.default_rng(1736)
    for _ in range(3):
        line = [random.normal(size=point.shape) for point in points]
        actual = sum(float((gradient * part).sum()) for gradient, part in zip(ours, line, strict=True))
        np.testing.assert_allclose(actual, slope(function, points, line), rtol=0, atol=atol)
