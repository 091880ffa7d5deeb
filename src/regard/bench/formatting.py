"""Numbers of a benchmark as text: seconds, bytes, shares, errors, lengths."""

from __future__ import annotations

import math


def format_seconds(seconds: float) -> str:
    """Format a time with three digits and a unit."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1:
            return f"{_three_digits(seconds * factor)} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def format_bytes(count: float) -> str:
    """Format a number of bytes with three digits and a unit; units are powers of 1,000."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{_three_digits(count / factor)} {unit}"
    return f"{count:.0f} B"


def format_error(error: float) -> str:
    """Format a relative error in percent; a factor if it is above 10, and a power of ten if it is tiny."""
    if math.isnan(error):
        return "–"
    if error >= 10:
        return f"{error:,.0f}x"
    if error >= 5e-4:
        return f"{100 * error:.1f} %"
    return f"{100 * error:.1g} %" if error >= 1e-6 else f"{error:.0e}"  # Python writes 0.0001 so, and less with an e


def _three_digits(number: float) -> str:
    digits = 0 if number >= 100 else 1 if number >= 10 else 2
    return f"{number:,.{digits}f}"
