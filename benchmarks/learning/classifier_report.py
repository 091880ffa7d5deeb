"""Sections of docs/results.md on classifiers: accuracy of each mechanism or model beside the time of its training.

In the plot published accuracies are hollow marks, so that no colour is needed to tell them apart.
"""

from __future__ import annotations

from typing import Any

from benchmarks.learning.report import Report, markdown_table, percent
from benchmarks.plot_style import GRID_COLOURS, TEXT_COLOURS

_COLOURS = {"light": "#0072b2", "dark": "#56b4e9"}
_ROW_HEIGHT, _MARGIN = 0.27, 0.9
"""Inches of a mechanism, and of titles and axes."""


def classifier_report(
    name: str,
    text: str,
    *,
    published: dict[str, float] | None = None,
    source: str = "",
    rows: str = "mechanism",
    examples: str = "texts",
) -> Report:
    """Make the report of a benchmark of classifiers.

    Args:
        name: of the file of results.
        text: the heading, what is measured and how.
        published: published accuracies by name.
        source: where they are published, or another last sentence.
        rows: what the results differ by.
        examples: what is classified.
    """
    known = published or {}
    return Report(
        name,
        text,
        table=lambda found: _table(found, rows, known),
        note=lambda found: _note(found, examples, source),
        plot=f"Accuracy of each {rows}, and the processor time of its training",
        draw=lambda found, scheme: _draw(found, scheme, known),
    )


def _table(found: dict[str, Any], rows: str, published: dict[str, float]) -> str:
    """A table in Markdown, the best accuracy first."""
    lines = []
    for name, one in _rank(found):
        cells = [name, percent(one["accuracy"])]
        if published:
            cells.append(percent(published[name]) if name in published else "")
        seconds = one["processor seconds"]
        minutes = "" if seconds is None else f"{seconds / 60:.0f}"
        cells += [f"{one['macro_f1']:.3f}", f"{one['calibration_error']:.3f}", f"{one['steps']:,}", minutes]
        lines.append(f"{' | '.join(cells)} | {one['memory GB']:.2f}")
    columns = f"{'published | ' if published else ''}macro F1 | calibration error | steps | minutes | memory GB"
    return markdown_table(f"{rows} | accuracy | {columns}", lines)


def _note(found: dict[str, Any], examples: str, source: str) -> str:
    first = next(iter(found.values()))
    interrupted = any(one["processor seconds"] is None for one in found.values())
    unknown = "They are unknown for trainings that were interrupted. " if interrupted else ""
    return (
        f"*Minutes* are those of one core, for the whole training, on {_describe_processors(found)}. {unknown}"
        f"[Classifying](classifying.md#evaluate) defines the calibration error. Always answering with the most "
        f"frequent label is right for {percent(first['baseline'])} of the {first[examples]:,} test "
        f"{examples}. {source}\n"
    )


def _rank(found: dict[str, Any]) -> list[tuple[str, Any]]:
    """Results by name, the best accuracy first."""
    return sorted(found.items(), key=lambda item: -item[1]["accuracy"])


def _describe_processors(found: dict[str, Any]) -> str:
    """The processor of all results, or each one with the names of its results."""
    names: dict[str, list[str]] = {}
    for name, one in found.items():
        names.setdefault(one["machine"]["processor"], []).append(name)
    if len(names) == 1:
        return next(iter(names))
    return " and ".join(f"{processor} ({', '.join(some)})" for processor, some in names.items())


def _draw(found: dict[str, Any], scheme: str, published: dict[str, float]) -> Any:
    import matplotlib.pyplot as plt

    rows = _rank(found)[::-1]
    names = [name for name, _ in rows]
    colour, text, grid = _COLOURS[scheme], TEXT_COLOURS[scheme], GRID_COLOURS[scheme]
    size = (9.0, _MARGIN + _ROW_HEIGHT * len(rows))
    figure, (left, right) = plt.subplots(1, 2, figsize=size, sharey=True, layout="constrained")
    left.plot([100 * one["accuracy"] for _, one in rows], names, "o", color=colour, markersize=7, label="here")
    known = [(100 * published[name], name) for name in names if name in published]
    if known:
        style = {"markerfacecolor": "none", "markeredgecolor": text, "markersize": 7}
        left.plot(*zip(*known, strict=True), "D", label="published", linestyle="none", **style)
    left.axvline(100 * rows[0][1]["baseline"], color=text, linestyle=":", linewidth=1, label="one answer for all")
    left.legend(frameon=False, labelcolor=text, fontsize=9)
    right.barh(names, [(one["processor seconds"] or 0.0) / 60 for _, one in rows], color=colour, height=0.6)
    for panel, title in ((left, "accuracy, %"), (right, "minutes of one core to train")):
        panel.set_title(title, loc="left", fontsize=10, fontweight="bold")
        panel.grid(axis="x", color=grid, linewidth=0.6)
        panel.set_axisbelow(True)
        panel.tick_params(length=0)
    left.grid(axis="y", color=grid, linewidth=0.6)
    return figure
