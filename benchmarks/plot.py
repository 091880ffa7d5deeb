"""Plot time against length, log-log, one line per implementation, with the time at the machine's peak rate.

One column per dtype, one row per kind of attention. Colours are those of Okabe and Ito 2008, which colour-blind people
can distinguish, and markers differ too. Each plot is drawn twice, for light and for dark pages.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from benchmarks import formatting, plot_style
from benchmarks.attention_baselines import LABELS
from benchmarks.plot_style import GRID_COLOURS, TEXT_COLOURS

PLOTS: dict[str, tuple[str, ...]] = {
    "forward": ("dense", "causal"),
    "training": ("dense", "dropout", "t5"),
    "short": ("padded",),
}
"""Suites that have a plot, and the kinds of attention in it, from top to bottom."""
DTYPES = ("fp32", "bf16")

_COLOURS = {
    "native": {"light": "#0072b2", "dark": "#56b4e9"},
    "sdpa": {"light": "#d55e00", "dark": "#e69f00"},
    "flex": {"light": "#009e73", "dark": "#2bc49a"},
}
_MARKERS = {"native": "o", "sdpa": "s", "flex": "^"}
_PEAK = "machine's peak"
_PANEL_HEIGHT = 2.7


def draw(suite: str, cases: list[dict[str, Any]], scheme: str, path: Path) -> None:
    """Write the plot of a suite as SVG."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    rows = PLOTS[suite]
    with mpl.rc_context(plot_style.settings(scheme)):
        figure, grid = plt.subplots(
            len(rows),
            len(DTYPES),
            figsize=(9.0, 0.4 + _PANEL_HEIGHT * len(rows)),
            sharey="row",
            squeeze=False,
            layout="constrained",
        )
        for axes, kind in zip(grid, rows, strict=True):
            for panel, dtype in zip(axes, DTYPES, strict=True):
                rate = _find_peak_rate([case for case in cases if case["name"].startswith(dtype)])
                line = [case for case in cases if case["line"] == f"{dtype} {kind}"]
                _draw_panel(panel, f"{dtype} {kind}", line, rate, scheme)
            axes[0].set_ylabel("time of a call")
        for panel in grid[-1]:
            panel.set_xlabel("queries and keys")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)


def _draw_panel(panel: Any, title: str, cases: list[dict[str, Any]], rate: float | None, scheme: str) -> None:
    """Draw one kind of attention in one dtype; ``rate`` is the machine's peak."""
    panel.set_title(title, loc="left", fontsize=10, fontweight="bold")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    ends = []
    for name in sorted({name for case in cases for name in case["times"]}, key=list(LABELS).index):
        points = [(case["length"], case["times"][name]["seconds"]) for case in cases if name in case["times"]]
        colour = _COLOURS[name][scheme]
        panel.plot(*zip(*points, strict=True), color=colour, marker=_MARKERS[name], linewidth=2, markersize=5)
        ends.append((points[-1], LABELS[name], colour))
    if rate is not None and cases:
        bound = [(case["length"], case["work"] / 1e9 / rate) for case in cases]
        panel.plot(*zip(*bound, strict=True), color=TEXT_COLOURS[scheme], linewidth=1, linestyle=(0, (4, 3)))
        ends.append((bound[-1], _PEAK, TEXT_COLOURS[scheme]))
    _format_axes(panel, [case["length"] for case in cases], scheme)
    _draw_labels(panel, ends)


def _format_axes(panel: Any, lengths: list[int], scheme: str) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    panel.grid(visible=True, axis="y", color=GRID_COLOURS[scheme], linewidth=0.6)
    panel.set_axisbelow(True)
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xticks(lengths, [f"{length:,}" for length in lengths])
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, position: _format_tick(value)))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_minor_formatter(NullFormatter())
    if lengths:
        panel.set_xlim(lengths[0] / 1.15, lengths[-1] * (lengths[-1] / lengths[0]) ** 0.42)


def _draw_labels(panel: Any, ends: list[tuple[tuple[float, float], str, str]]) -> None:
    """Draw names at the ends of the lines, from the top down, each at least a text line below the previous one."""
    lowest = math.inf
    low, high = panel.get_ylim()
    points_a_decade = _PANEL_HEIGHT * 72 * 0.8 / math.log10(high / low)
    for (length, seconds), text, colour in sorted(ends, key=lambda end: -end[0][1]):
        wanted = math.log10(seconds) * points_a_decade
        place = min(wanted, lowest - 12)
        lowest = place
        panel.annotate(
            text,
            (length, seconds),
            xytext=(7, place - wanted),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=9,
        )


def _find_peak_rate(cases: list[dict[str, Any]]) -> float | None:
    """Return the largest of the first peaks of these cases."""
    return max((next(iter(case["peaks"].values()))["rate"] for case in cases if case["peaks"]), default=None)


def _format_tick(value: float) -> str:
    """Format a power of ten of seconds."""
    return formatting.seconds(value).replace(".00", "").replace(".0", "")
