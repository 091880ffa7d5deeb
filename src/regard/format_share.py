"""A share as text in percent."""

from __future__ import annotations

import math


def format_share(share: float, digits: int = 1) -> str:
    """Format a share from 0 to 1 in percent, for example "12.5 %"; a dash for NaN."""
    return "–" if math.isnan(share) else f"{100 * share:.{digits}f} %"
