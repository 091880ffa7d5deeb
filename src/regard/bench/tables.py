"""The tables of a report, as text: the terminal and the page show the same ones.

Numbers of a benchmark as text: seconds, bytes, shares, errors, lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import final

from regard.bench.choose_mechanisms import EXACT
from regard.bench.report import BenchCase, BenchedMechanism, BenchReport
from regard.format_share import format_share
from regard.language import join_sentences, translate, translate_count, translate_message

_OWN_EQUATION, _UNTRAINED, _LEFT_OUT, _CAUSAL = "*", "†", "‡", "§"
_UNSTEADY = 2.0
"""The ratio of the quartiles of a time from which a report warns of other load."""


@final
@dataclass(frozen=True)
class Table:
    """A table in the language in use: its title, the header, rows of as many cells, and what its numbers mean.

    The columns of the numbers ``text_columns`` hold sentences, and the first one a name.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    explanation: str
    text_columns: tuple[int, ...] = ()


def report_tables(report: BenchReport) -> tuple[Table, ...]:
    """Make the tables of time, energy, peak memory and error, and one of the cases that were not measured."""
    tables = [
        _time_table(report),
        _energy_table(report),
        _memory_table(report),
        _error_table(report),
        _missing_table(report),
    ]
    return tuple(table for table in tables if table.rows)


def describe_settings(report: BenchReport) -> str:
    """Describe the shape, dtype and machine in a line."""
    settings, machine = report.settings, report.machine
    parts = [
        translate(
            "batch {batch}, {heads} of {size}, {dtype}",
            batch=settings.batch,
            heads=translate_count(settings.heads, "head"),
            size=settings.head_dim,
            dtype=settings.dtype,
        ),
        translate("causal") if settings.causal else translate("without a mask"),
        translate("forward and backward") if settings.backward else translate("forward"),
        translate(
            "{device}: {processor}, {threads} of {cores}",
            device=settings.device,
            processor=machine["processor"],
            threads=machine["threads"],
            cores=translate_count(int(machine["cores"]), "thread"),
        ),
    ]
    return " · ".join(parts)


def _time_table(report: BenchReport) -> Table:
    def cell(case: BenchCase) -> str:
        if case.time is not None:
            return format_seconds(case.time.median)
        if case.stopped is not None:
            return f"> {case.stopped:g} s"
        return translate("refused") if case.refused is not None else "–"

    lengths = report.settings.lengths
    rows = tuple(
        (
            mechanism.label,
            *(cell(report.case(mechanism.label, length)) for length in lengths),
            "" if mechanism.label == EXACT else str(report.crossing(mechanism.label)),
        )
        for mechanism in report.mechanisms
    )
    explanation = [
        translate("Median time of a call with its gradients, by number of tokens.")
        if report.settings.backward
        else translate("Median time of a call, by number of tokens."),
        translate(
            "The last column is the length from which it is faster than exact attention, interpolated between measured "
            "lengths on logarithmic scales."
        ),
        _warn_of_other_load(report),
        translate("No energy is measured: {reason}.", reason=translate_message(report.energy_missing))
        if report.energy_missing is not None
        else "",
    ]
    header = (translate("mechanism"), *_length_columns(report), translate("faster than {name}", name=EXACT))
    return Table(translate("Time"), header, rows, join_sentences(explanation))


def _length_columns(report: BenchReport) -> tuple[str, ...]:
    return tuple(f"{length:,}" for length in report.settings.lengths)


def _warn_of_other_load(report: BenchReport) -> str:
    """Write a sentence about times whose quartiles are far apart; "" if there are none."""
    times = [case.time for case in report.cases if case.time is not None]
    unsteady = sum(time.high > _UNSTEADY * time.low for time in times)
    if not unsteady:
        return ""
    return translate(
        "{unsteady} of {times} times are unsteady: a quarter of the turns took more than twice as long as another. "
        "Other programs use the processor; repeat it when they have ended, or for more seconds.",
        unsteady=unsteady,
        times=len(times),
    )


def _energy_table(report: BenchReport) -> Table:
    def cell(case: BenchCase) -> str | None:
        return None if case.joules is None else format_joules(case.joules / (report.settings.batch * case.length))

    rows = tuple((mechanism.label, *_cells(report, mechanism, cell)) for mechanism in report.mechanisms)
    explanation = translate(
        "Energy of a call divided by its tokens, by number of tokens: that of the whole processor or GPU, other "
        "programs included."
    )
    is_measured = any(case.joules is not None for case in report.cases)
    header = (translate("mechanism"), *_length_columns(report))
    return Table(translate("Energy of a token"), header, rows if is_measured else (), explanation)


def _memory_table(report: BenchReport) -> Table:
    rows = tuple(
        (
            mechanism.label,
            *_cells(report, mechanism, lambda case: None if case.peak_bytes is None else format_bytes(case.peak_bytes)),
        )
        for mechanism in report.mechanisms
    )
    explanation = (
        translate(
            "What one call adds to the GPU memory at its highest point: the output and temporary memory, but not the "
            "tokens."
        )
        if report.settings.device != "cpu"
        else translate(
            "What one call adds to the resident memory of a new process at its highest point: the output and temporary "
            "memory, but not the tokens."
        )
    )
    return Table(translate("Peak memory"), (translate("mechanism"), *_length_columns(report)), rows, explanation)


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
        translate(
            "At the longest length measured, for up to {queries} of a text.",
            queries=translate_count(report.settings.rows, "query"),
        ),
        translate(
            "Output error: |o' - o| / |o|. Mass kept: the sum of min(exact weight, weight), 100 % if they are equal."
        ),
        translate(
            "Top {top}: the share of the {top} keys with the largest exact weights that are among its own.", top=top
        ),
        translate_message(report.tokens),
        *_explain_marks(report, marks),
    ]
    header = (
        translate("mechanism"),
        translate("tokens"),
        translate("output error"),
        translate("mass kept"),
        translate("top {count}", count=top),
    )
    return Table(translate("Error against exact attention"), header, tuple(rows), join_sentences(explanation))


def _explain_marks(report: BenchReport, marks: Collection[str]) -> Iterator[str]:
    """A sentence for each mark behind the name of a mechanism."""
    if _OWN_EQUATION in marks:
        text = translate("It computes an equation of its own, and does not approximate {name}.", name=EXACT)
        yield f"{_OWN_EQUATION} {text}"
    if _UNTRAINED in marks:
        yield f"{_UNTRAINED} {translate('It has parameters, which are random here, and would be trained.')}"
    if _LEFT_OUT in marks:
        left_out = "; ".join(
            f"{mechanism.label} {', '.join(mechanism.left_out)}"
            for mechanism in report.mechanisms
            if mechanism.left_out
        )
        text = translate("It is measured without its inputs beside query, key and value: {inputs}.", inputs=left_out)
        yield f"{_LEFT_OUT} {text}"
    if _CAUSAL in marks:
        text = translate(
            "It hides later keys from a query, which {name} sees here: compare it with a causal mask.", name=EXACT
        )
        yield f"{_CAUSAL} {text}"


def _missing_table(report: BenchReport) -> Table:
    """Cases without a result, with the reason; lengths of one reason share a row."""
    lengths: dict[tuple[str, str, str], list[int]] = {}
    for case in report.cases:
        by_reason: dict[str, list[str]] = {}
        for what, reason in case.missing.items():
            by_reason.setdefault(reason, []).append(what)
        for reason, parts in by_reason.items():
            named = translate("refused") if case.refused is not None else _name_parts(parts)
            lengths.setdefault((case.mechanism, named, reason), []).append(case.length)
    rows = tuple(
        (mechanism, ", ".join(f"{length:,}" for length in found), what, translate_message(reason))
        for (mechanism, what, reason), found in lengths.items()
    )
    header = (translate("mechanism"), translate("tokens"), translate("what"), translate("reason"))
    return Table(translate("Not measured"), header, rows, "", text_columns=(2, 3))


def _name_parts(parts: Iterable[str]) -> str:
    names = {"time": translate("time"), "peak_bytes": translate("memory"), "error": translate("error")}
    return translate(", ").join(names[part] for part in parts)


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


def format_joules(joules: float) -> str:
    """Format an energy with three digits and a unit."""
    for factor, unit in ((1.0, "J"), (1e3, "mJ"), (1e6, "µJ")):
        if joules * factor >= 1:
            return f"{_three_digits(joules * factor)} {unit}"
    return f"{joules * 1e9:.0f} nJ"


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
