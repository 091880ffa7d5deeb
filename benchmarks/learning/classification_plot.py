"""The plot of a benchmark of classifiers: accuracy of each mechanism beside the processor time of its training.

Drawn twice, for light and for dark pages. Published accuracies are hollow marks, so that no colour is needed to tell
them apart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import plot_style
from benchmarks.learning import results
from benchmarks.learning.classification_report import Section, rank
from benchmarks.learning.report import ASSETS
from benchmarks.plot_style import GRID_COLOURS, SCHEMES, TEXT_COLOURS

_COLOURS = {"light": "#0072b2", "dark": "#56b4e9"}
_ROW_HEIGHT, _MARGIN = 0.27, 0.9
"""Inches of a mechanism, and of titles and axes."""


def publish(section: Section, found: dict[str, Any]) -> None:
    """Add results to those in this repository, without the folders of this machine, and draw the plot of all."""
    write_plots(section, results.publish(section.path, found), ASSETS)


def write_plots(section: Section, found: dict[str, Any], folder: Path) -> list[Path]:
    """Write NAME-light.svg and NAME-dark.svg of the results of a section, and return their paths."""
    paths = [folder / f"{section.name}-{scheme}.svg" for scheme in SCHEMES]
    for scheme, path in zip(SCHEMES, paths, strict=True):
        _draw(section, found, scheme, path)
    return paths


def _draw(section: Section, found: dict[str, Any], scheme: str, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    rows = rank(found)[::-1]
    names = [name for name, _ in rows]
    colour, text, grid = _COLOURS[scheme], TEXT_COLOURS[scheme], GRID_COLOURS[scheme]
    with mpl.rc_context(plot_style.settings(scheme)):
        size = (9.0, _MARGIN + _ROW_HEIGHT * len(rows))
        figure, (left, right) = plt.subplots(1, 2, figsize=size, sharey=True, layout="constrained")
        left.plot([100 * one["accuracy"] for _, one in rows], names, "o", color=colour, markersize=7, label="here")
        published = [(100 * section.published[name], name) for name in names if name in section.published]
        if published:
            style = {"markerfacecolor": "none", "markeredgecolor": text, "markersize": 7}
            left.plot(*zip(*published, strict=True), "D", label="published", linestyle="none", **style)
        left.axvline(100 * rows[0][1]["baseline"], color=text, linestyle=":", linewidth=1, label="one answer for all")
        left.legend(frameon=False, labelcolor=text, fontsize=9)
        right.barh(names, [(one["processor seconds"] or 0.0) / 60 for _, one in rows], color=colour, height=0.6)
        for panel, title in ((left, "accuracy, %"), (right, "minutes of one core to train")):
            panel.set_title(title, loc="left", fontsize=10, fontweight="bold")
            panel.grid(axis="x", color=grid, linewidth=0.6)
            panel.set_axisbelow(True)
            panel.tick_params(length=0)
        left.grid(axis="y", color=grid, linewidth=0.6)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
