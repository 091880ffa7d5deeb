"""The plot of the recall benchmark: accuracy by distance, and accuracy against the processor time of training.

Colours are those of Okabe and Ito 2008, which colour-blind people can distinguish, and markers differ too.
"""

from __future__ import annotations

from typing import Any

from benchmarks.learning.recall_task import CHANCE
from benchmarks.plot_style import GRID_COLOURS, TEXT_COLOURS

_COLOURS = {
    "light": ("#0072b2", "#d55e00", "#009e73", "#a8518a", "#b87f00", "#4a4a4a"),
    "dark": ("#56b4e9", "#ff8a4c", "#2bc49a", "#e09cc4", "#e6b94d", "#d0d0d0"),
}
_MARKERS, _LINES = "os^Dvp", ("-", (0, (4, 2)))
"""Markers go with colours; further models have the same ones on dashed lines."""
_MINUTE = 60


def draw(results: dict[str, Any], scheme: str) -> Any:
    """Draw the results of models in a scheme, and return the figure."""
    import matplotlib.pyplot as plt

    figure, (by_distance, by_time) = plt.subplots(
        1, 2, figsize=(11.0, 4.0), sharey=True, layout="constrained", width_ratios=(1.1, 1.0)
    )
    for number, (name, result) in enumerate(results.items()):
        style = _style(number, scheme)
        accuracies = list(result["octaves"].values())
        by_distance.plot(range(len(accuracies)), accuracies, label=describe(name, result), **style)
        seconds = result["processor seconds"]
        if seconds is not None:
            steps, curve = zip(*result["curve"], strict=True)
            minutes_per_step = seconds / _MINUTE / result["steps"]
            by_time.plot([step * minutes_per_step for step in steps], curve, markevery=[-1], **style)
    octaves = list(next(iter(results.values()))["octaves"])
    by_distance.set_xticks(range(len(octaves)), [name.replace("-", "–") for name in octaves])
    by_distance.set_xlabel("distance in tokens")
    by_distance.set_ylabel("accuracy")
    by_time.set_xlabel("minutes of one core to train")
    by_time.set_xlim(left=0)
    for panel, title in ((by_distance, "recall by distance"), (by_time, "all distances, while training")):
        _format_panel(panel, title, scheme)
    figure.legend(loc="outside right center", frameon=False, labelcolor=TEXT_COLOURS[scheme])
    return figure


def describe(name: str, result: dict[str, Any]) -> str:
    """A line of the legend: the model, the processor time of its training and its size."""
    return f"{name}\n{_format_time(result['processor seconds'])}{result['weights']:,} weights"


def _format_time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.0f} s, " if seconds < 2 * _MINUTE else f"{seconds / _MINUTE:.1f} min, "


def _style(number: int, scheme: str) -> dict[str, Any]:
    """The look of the line of the model with this number."""
    dashed, place = divmod(number, len(_MARKERS))
    line = _LINES[dashed % len(_LINES)]
    style = {"color": _COLOURS[scheme][place], "marker": _MARKERS[place], "linestyle": line}
    return {**style, "linewidth": 2, "markersize": 5}


def _format_panel(panel: Any, title: str, scheme: str) -> None:
    panel.set_title(title, loc="left", fontsize=10, fontweight="bold")
    panel.set_ylim(0, 1.03)
    panel.yaxis.set_major_formatter("{x:.0%}")
    panel.grid(visible=True, axis="y", color=GRID_COLOURS[scheme], linewidth=0.6)
    panel.set_axisbelow(True)
    panel.axhline(CHANCE, color=TEXT_COLOURS[scheme], linewidth=1, linestyle=(0, (4, 3)))
    place = {"xycoords": ("axes fraction", "data"), "xytext": (-2, -3), "textcoords": "offset points"}
    panel.annotate("chance", (1, CHANCE), **place, ha="right", va="top", fontsize=9)
