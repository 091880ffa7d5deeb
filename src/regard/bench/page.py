"""The report as one self-contained HTML file, with plots and tables: it loads nothing and has no script.

All text is escaped, and the content security policy allows only this style, by its hash. Colours follow the reader's
light or dark setting. The boxes above the plots hide lines by rules of the style alone.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import final

from regard.bench.report import BenchCase, BenchReport
from regard.bench.run_on_text import TextReport
from regard.bench.svg_plot import Series, draw_lines, line_classes
from regard.bench.tables import Table, describe_settings, format_bytes, format_error, format_seconds, report_tables
from regard.bench.text_tables import describe_text, text_report_tables
from regard.escape_text import escape_text
from regard.language import HTML_LANGUAGES, language_in_use, translate, translate_count

_MIN_DRAWN_ERROR = 1e-3
"""Errors below are rounding; at their own places they would leave no room for the others."""


@final
@dataclass(frozen=True)
class Plot:
    """A plot of lines over lengths; of one length, of bars."""

    title: str
    series: tuple[Series, ...]
    lengths: Sequence[int]
    format_value: Callable[[float], str]


def render_report(report: BenchReport) -> str:
    """Render the page of a report of shapes."""
    names = [mechanism.label for mechanism in report.mechanisms]
    return render_page(
        translate("Attention mechanisms, measured"),
        describe_settings(report),
        names,
        _plots(report),
        report_tables(report),
    )


def render_text_report(report: TextReport) -> str:
    """Render the page of a report on a text."""
    names = [mechanism.label for mechanism in report.shapes.mechanisms]
    about = f"{describe_text(report)} · {describe_settings(report.shapes)}"
    title = translate("Attention mechanisms in {model}, measured on a text", model=report.model)
    return render_page(title, about, names, _plots(report.shapes), text_report_tables(report))


def render_page(title: str, about: str, names: Sequence[str], plots: Sequence[Plot], tables: Sequence[Table]) -> str:
    """Render a page of plots and tables. ``names`` are the names of the lines, by number."""
    rules = "".join(
        f"body:has(#show{number}:not(:checked)) .s{number} {{ display: none; }}" for number in range(len(names))
    )
    style = re.sub(
        r"\s*([{};])\s*", r"\1", (resources.files("regard.bench") / "assets" / "bench.css").read_text("utf-8") + rules
    )
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    body = [
        f'<header><p class="brand">regard</p><p>{_text(about)}</p></header>',
        f"<main><h1>{_text(title)}</h1>",
        _render_boxes(names) if plots else "",
        *(f"<section><h2>{_text(plot.title)}</h2>{_draw(plot)}</section>" for plot in plots),
        *(_render_table(table) for table in tables),
        "</main>",
    ]
    return (
        f'<!doctype html>\n<html lang="{HTML_LANGUAGES[language_in_use()]}">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{_text(title)} · regard</title>\n<style>{style}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _plots(report: BenchReport) -> list[Plot]:
    """Make the plots of time, peak memory and output error, those that have points.

    Bars, of one length, begin at 0; the axes of lines are logarithmic.
    """
    has_bars = len(report.settings.lengths) == 1
    smallest = 0.0 if has_bars else _MIN_DRAWN_ERROR
    of_case: dict[str, tuple[Callable[[BenchCase], float | None], Callable[[float], str]]] = {
        translate("Time of a call"): (lambda case: None if case.time is None else case.time.median, format_seconds),
        translate("Peak memory of a call"): (lambda case: case.peak_bytes, format_bytes),
        translate("Output error against exact attention")
        if has_bars
        else translate("Output error against exact attention; smaller ones are drawn at 0.1 %"): (
            lambda case: None if case.error is None else max(case.error.output_error, smallest),
            format_error,
        ),
    }
    plots = []
    for title, (value_of, format_value) in of_case.items():
        series = []
        for number, mechanism in enumerate(report.mechanisms):
            cases = [report.case(mechanism.label, length) for length in report.settings.lengths]
            values = [(case.length, value_of(case)) for case in cases]
            points = tuple(
                (length, float(value)) for length, value in values if value is not None and (value > 0 or has_bars)
            )
            if points:
                series.append(Series(mechanism.label, number, points))
        if series:
            plots.append(Plot(title, tuple(series), report.settings.lengths, format_value))
    return plots


def _draw(plot: Plot) -> str:
    if len(plot.lengths) == 1:
        return draw_bars(plot.title, plot.series, plot.format_value)
    return draw_lines(plot.title, plot.series, plot.lengths, plot.format_value)


def _render_boxes(names: Sequence[str]) -> str:
    """Render a box for each line that shows or hides it."""
    boxes = [
        f'<label><input type="checkbox" id="show{number}" checked>'
        f'<svg class="key {line_classes(number)}" viewBox="0 0 28 8"><path d="M0 4h28"/></svg>{_text(name)}</label>'
        for number, name in enumerate(names)
    ]
    return f"<fieldset><legend>{translate('Show')}</legend>{''.join(boxes)}</fieldset>"


def _render_table(table: Table) -> str:
    is_text = [number in table.text_columns for number in range(len(table.header))]
    head = "".join(
        f'<th scope="col"{" class=text" if text else ""}>{_text(name)}</th>'
        for name, text in zip(table.header, is_text, strict=True)
    )
    rows = "".join(
        f'<tr><th scope="row">{_text(row[0])}</th>'
        + "".join(
            f"<td{' class=text' if text else ''}>{_text(cell)}</td>"
            for cell, text in zip(row[1:], is_text[1:], strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    how = f'<p class="how">{_text(table.explanation)}</p>' if table.explanation else ""
    return (
        f'<section><h2>{_text(table.title)}</h2><div class="table" tabindex="0" role="region" '
        f'aria-label="{_text(table.title)}"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        f"{how}</section>"
    )


def _text(text: str) -> str:
    """Escape text for HTML, and characters that would not be visible; a number and its "%" stay on one line."""
    return html.escape(escape_text(text).replace(" %", "\u00a0%"))


def draw_bars(name: str, series: Sequence[Series], format_value: Callable[[float], str]) -> str:
    """Draw the first value of each of the series as a bar from 0; ``name`` is read out for the list.

    Returns an HTML element. A bar is a stretched SVG, since the page allows no style attributes.
    """
    largest = max(line.points[0][1] for line in series) or 1.0
    bars = "".join(_draw_bar(line, largest, format_value) for line in series)
    return f'<ul class="bars" aria-label="{html.escape(name)}">{bars}</ul>'


def _draw_bar(bar: Series, largest: float, format_value: Callable[[float], str]) -> str:
    length, value = bar.points[0]
    return (
        f'<li class="s{bar.number} {line_classes(bar.number)}" title="{translate_count(length, "token")}">'
        f"<span>{html.escape(bar.name)}</span>"
        f'<svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{100 * value / largest:.3f}" height="1"/></svg>'
        f"<b>{html.escape(format_value(value))}</b></li>"
    )
