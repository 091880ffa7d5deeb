"""The colours of figures: those of the light page (assets/colour.js), in even steps of lightness in OKLab.

Björn Ottosson 2020, "A perceptual color space for image processing". Blue for shares; orange below 0 and blue above for
signed weights; greys for a token that is kept apart. Several heads have the colours of Okabe and Ito 2008, "Color
universal design", which remain different with colour blindness.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float64

OF_HEADS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
INK, SOFT, RULE, ACCENT = "#1f2023", "#5c5f66", "#c9c6bf", "#b3470f"


def _from_oklch(lightness: float, chroma: float, hue: float) -> tuple[float, ...]:
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    cone = np.array(
        [
            lightness + 0.3963377774 * a + 0.2158037573 * b,
            lightness - 0.1055613458 * a - 0.0638541728 * b,
            lightness - 0.0894841775 * a - 1.291485548 * b,
        ]
    )
    to_linear = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.707614701],
        ]
    )
    bounded = np.clip(to_linear @ cone**3, 0, 1)
    return tuple(np.where(bounded <= 0.0031308, 12.92 * bounded, 1.055 * bounded ** (1 / 2.4) - 0.055).tolist())


def _share(t: float) -> tuple[float, ...]:
    return _from_oklch(0.99 - 0.69 * t, 0.003 + 0.42 * t * (1 - 0.72 * t), 262)


def _below(t: float) -> tuple[float, ...]:
    return _from_oklch(0.985 - 0.47 * t, 0.002 + 0.26 * t * (1 - 0.42 * t), 50)


def _above(t: float) -> tuple[float, ...]:
    return _from_oklch(0.985 - 0.47 * t, 0.002 + 0.3 * t * (1 - 0.4 * t), 262)


def _apart(t: float) -> tuple[float, ...]:
    return _from_oklch(0.985 - 0.6 * t, 0.002, 262)


def shares() -> Any:
    """The colours of shares, from 0 to the largest, as a colour map of matplotlib."""
    return _colour_map([_share(step / 255) for step in range(256)])


def signed() -> Any:
    """The colours of signed weights, from the furthest below 0 to as far above."""
    return _colour_map(
        [_below(step / 127) for step in range(127, -1, -1)] + [_above(step / 127) for step in range(128)]
    )


def apart() -> Any:
    """The greys of a token that is kept apart, from 0 to 1."""
    return _colour_map([_apart(step / 255) for step in range(256)])


def _colour_map(colours: list[tuple[float, ...]]) -> Any:
    from matplotlib.colors import ListedColormap

    return ListedColormap(colours)


def ink_on(colour: Float64[np.ndarray, " 4"] | tuple[float, ...]) -> str:
    """Black or white: the one that contrasts more with a colour of red, green and blue from 0 to 1."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#ffffff"
