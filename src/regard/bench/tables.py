"""The tables of a report, as text: the terminal and the page show the same ones.

Numbers of a benchmark as text: seconds, bytes, shares, errors, lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from regard.bench.choose_mechanisms import EXACT
from regard.bench.report import BenchCase, BenchedMechanism, BenchReport
from regard.format_share import format_share

_OWN_EQUATION, _UNTRAINED, _LEFT_OUT, _CAUSAL = "*", "†", "‡", "§"
_UNSTEADY = 2.0
"""The ratio of the quartiles of a time from which a report warns of other load."""


@final
@dataclass(frozen=True)
class Table:
    """A table: its title, the header, rows of as many cells, and what its numbers mean."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    explanation: str


def report_tables(report: BenchReport) -> tuple[Table, ...]:
    """Make the tables of time, peak memory and error, and one of the cases that were not measured."""
    tables = [_time_table(report), _memory_table(report), _error_table(report), _missing_table(report)]
    return tuple(table for table in tables if table.rows)


def describe_settings(report: BenchReport) -> str:
    """Describe the shape, dtype and machine in a line."""
    settings, machine = report.settings, report.machine
    parts = [
        f"batch {settings.batch}, {settings.heads} {'head' if settings.heads == 1 else 'heads'} of "
        f"{settings.head_dim}, {settings.dtype}",
        "causal" if settings.causal else "without a mask",
        "forward and backward" if settings.backward else "forward",
        f"{settings.device}: {machine['processor']}, {machine['threads']} of {machine['cores']} threads",
    ]
    return " · ".join(parts)


def _time_table(report: BenchReport) -> Table:
    def cell(case: BenchCase) -> str:
        if case.time is not None:
            return format_seconds(case.time.median)
        return f"> {case.stopped:g} s" if case.stopped is not None else "refused" if case.refused is not None else "–"

    lengths = report.settings.lengths
    rows = tuple(
        (
            mechanism.label,
            *(cell(report.case(mechanism.label, length)) for length in lengths),
            "" if mechanism.label == EXACT else str(report.crossing(mechanism.label)),
        )
        for mechanism in report.mechanisms
    )
    calls = "a call with its gradients" if report.settings.backward else "a call"
    return Table(
        "Time",
        ("mechanism", *(f"{length:,}" for length in lengths), f"faster than {EXACT}"),
        rows,
        f"Median time of {calls}, by number of tokens. The last column is the length from which it is faster than "
        "exact attention, interpolated between measured lengths on logarithmic scales." + _warn_of_other_load(report),
    )


def _warn_of_other_load(report: BenchReport) -> str:
    """Write a sentence about times whose quartiles are far apart; "" if there are none."""
    times = [case.time for case in report.cases if case.time is not None]
    unsteady = sum(time.high > _UNSTEADY * time.low for time in times)
    if not unsteady:
        return ""
    return (
        f" {unsteady} of {len(times)} times are unsteady: a quarter of the turns took more than twice as long as "
        "another. Other programs use the processor; repeat it when they have ended, or for more seconds."
    )


def _memory_table(report: BenchReport) -> Table:
    lengths = report.settings.lengths
    rows = tuple(
        (
            mechanism.label,
            *_cells(report, mechanism, lambda case: None if case.peak_bytes is None else format_bytes(case.peak_bytes)),
        )
        for mechanism in report.mechanisms
    )
    where = "GPU memory" if report.settings.device.startswith("cuda") else "resident memory of a new process"
    return Table(
        "Peak memory",
        ("mechanism", *(f"{length:,}" for length in lengths)),
        rows,
        f"What one call adds to the {where} at its highest point: the output and temporary memory, but not the tokens.",
    )


def _error_table(report: BenchReport) -> Table:
    """Errors at the longest measured length of each mechanism."""
    rows, marks = [], set()
    for benched in report.mechanisms:
        measured = [case for case in report.cases if case.mechanism == benched.label and case.error is not None]
        if not measured:
            continue
        case = measured[-1]
        assert case.error is not None
        mark = (_OWN_EQUATION if benched.approximates != EXACT else "") + (_UNTRAINED if benched.untrained else "")
        mark += _LEFT_OUT if benched.left_out else ""
        mark += _CAUSAL if benched.hides_later_keys and not report.settings.causal else ""
        marks |= set(mark)
        rows.append(
            (
                benched.label + mark,
                f"{case.length:,}",
                format_error(case.error.output_error),
                format_share(case.error.mass_kept),
                format_share(case.error.top_agreement),
            )
        )
    top = report.settings.top
    explanation = [
        f"At the longest length measured, for up to {report.settings.rows} queries of a text.",
        "Output error: |o' - o| / |o|. Mass kept: the sum of min(exact weight, weight), 100 % if they are equal.",
        f"Top {top}: how many of the {top} keys with the largest exact weights are among its own.",
        report.tokens,
    ]
    if _OWN_EQUATION in marks:
        explanation.append(f"{_OWN_EQUATION} It computes an equation of its own, and does not approximate {EXACT}.")
    if _UNTRAINED in marks:
        explanation.append(f"{_UNTRAINED} It has parameters, which are random here, and would be trained.")
    if _LEFT_OUT in marks:
        left_out = "; ".join(
            f"{mechanism.label} {', '.join(mechanism.left_out)}"
            for mechanism in report.mechanisms
            if mechanism.left_out
        )
        explanation.append(f"{_LEFT_OUT} It is measured without its inputs beside query, key and value: {left_out}.")
    if _CAUSAL in marks:
        explanation.append(
            f"{_CAUSAL} It hides later keys from a query, which {EXACT} sees here: compare it with a causal mask."
        )
    return Table(
        "Error against exact attention",
        ("mechanism", "tokens", "output error", "mass kept", f"top {top}"),
        tuple(rows),
        " ".join(explanation),
    )


def _missing_table(report: BenchReport) -> Table:
    """Cases without a result, with the reason; lengths of one reason share a row."""
    lengths: dict[tuple[str, str, str], list[int]] = {}
    for case in report.cases:
        by_reason: dict[str, list[str]] = {}
        for what, reason in case.missing.items():
            by_reason.setdefault(reason, []).append(what)
        for reason, parts in by_reason.items():
            named = "refused" if case.refused is not None else ", ".join(_NAMES[part] for part in parts)
            lengths.setdefault((case.mechanism, named, reason), []).append(case.length)
    rows = tuple(
        (mechanism, ", ".join(f"{length:,}" for length in found), what, reason)
        for (mechanism, what, reason), found in lengths.items()
    )
    return Table("Not measured", ("mechanism", "tokens", "what", "reason"), rows, "")


_NAMES = {"time": "time", "peak_bytes": "memory", "error": "error"}


def _cells(
    report: BenchReport, benched: BenchedMechanism, format_case: Callable[[BenchCase], str | None]
) -> tuple[str, ...]:
    """Format the cases of a mechanism at all lengths; a dash where there is nothing."""
    return tuple(format_case(report.case(benched.label, length)) or "–" for length in report.settings.lengths)


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
