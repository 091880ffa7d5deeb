"""The style of all plots, for light and for dark pages: SVG with transparent background, and text as text."""

from __future__ import annotations

from typing import Any

SCHEMES = ("light", "dark")
TEXT_COLOURS = {"light": "#333333", "dark": "#dddddd"}
GRID_COLOURS = {"light": "#d5d5d5", "dark": "#4a4d57"}


def settings(scheme: str) -> Any:
    """Settings of matplotlib for a scheme. The same plot gives the same bytes."""
    return {
        "font.family": "sans-serif",
        "font.size": 10,
        "svg.fonttype": "none",
        "svg.hashsalt": "regard",
        "text.color": TEXT_COLOURS[scheme],
        "axes.labelcolor": TEXT_COLOURS[scheme],
        "axes.edgecolor": GRID_COLOURS[scheme],
        "xtick.color": TEXT_COLOURS[scheme],
        "ytick.color": TEXT_COLOURS[scheme],
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
