"""Bars of one length as HTML: a name, a bar and a value for each mechanism, in text of the page's size at any width.

Bars are proportional to values, from 0. Each is a stretched SVG, since the page allows no style attributes.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

from regard.bench.series import Series, line_classes


def draw_bars(name: str, series: Sequence[Series], format_value: Callable[[float], str]) -> str:
    """Draw the first value of each of the series; ``name`` is read out for the list. Returns an HTML element."""
    most = max(one.points[0][1] for one in series) or 1.0
    bars = "".join(_draw_bar(one, most, format_value) for one in series)
    return f'<ul class="bars" aria-label="{html.escape(name)}">{bars}</ul>'


def _draw_bar(one: Series, most: float, format_value: Callable[[float], str]) -> str:
    length, value = one.points[0]
    return (
        f'<li class="s{one.number} {line_classes(one.number)}" title="{length:,} tokens">'
        f"<span>{html.escape(one.name)}</span>"
        f'<svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{100 * value / most:.3f}" height="1"/></svg>'
        f"<b>{html.escape(format_value(value))}</b></li>"
    )
