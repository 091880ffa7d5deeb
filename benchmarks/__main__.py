"""``python -m benchmarks``: run the suites, print tables, write the results after each suite.

``--missing`` runs only suites that lack rows of this machine, or whose rows are of other kernels, in the order of
``SUITES``: the most valuable first. Ctrl-C, or the end of ``--minutes``, loses the case that is running and no other:
rows of an unfinished suite are kept (``unfinished``), and the next run with ``--missing`` goes on behind them.

Exits with 1 if a result was wrong (its speed is then not reported), and with 0 otherwise, even if a target was missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import kernel_sources, missing, results, run_case, table, unfinished
from benchmarks.attention_baselines import LABELS
from benchmarks.case import Case, Suite
from benchmarks.scaling import ScalingResult, judge_time_scaling, measure_memory_scaling
from benchmarks.suites import SUITES
from regard.errors import OptionError, RefusedError, RegardError, unknown_name_error
from regard.kernels import extension

_SECONDS, _QUICK_SECONDS = 5.0, 1.0
_INTERRUPTED = 130


class _OutOfTimeError(Exception):
    """The minutes of a run are over."""


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Time regard, other implementations and the machine's peaks, after comparing results with float64.",
        epilog="Results of whole suites (without --quick, --cases and --contestants) are written to "
        "benchmarks/results/<machine>.json. Then `python -m benchmarks.report` writes docs/speed.md.",
    )
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"{', '.join(SUITES)}; default: all")
    parser.add_argument("--cases", default="", metavar="WORDS", help="only cases with all these words: fp32,2048")
    parser.add_argument("--contestants", default="", metavar="NAMES", help="only these contestants: native,sdpa")
    parser.add_argument("--quick", action="store_true", help="only the quick cases, 1 second each")
    parser.add_argument(
        "--seconds", type=float, metavar="S", help=f"seconds per case; {_SECONDS:g}, with --quick {_QUICK_SECONDS:g}"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results to FILE, also of a partial run")
    parser.add_argument(
        "--missing", action="store_true", help="only suites without all rows, or with rows of other kernels"
    )
    parser.add_argument(
        "--minutes", type=float, metavar="N", help="begin no case after N minutes; --missing goes on from there"
    )
    parser.add_argument("--list", action="store_true", help="list the cases without running them")
    return parser.parse_args()


def main() -> int:
    """Run the chosen cases and return the exit code."""
    asked, console = parse_options(), _make_console()
    names = _parse_contestants(asked)
    suites = [_find_suite(name) for name in asked.suites or SUITES]
    chosen = {suite.name: cases for suite in suites if (cases := _select_cases(suite, asked))}
    if not chosen:
        raise OptionError(
            "no case name contains all of these words",
            expected="words of a case's name",
            got=asked.cases,
            do="see them with --list",
        )
    sources = kernel_sources.hash_each(SUITES)
    if asked.missing:
        chosen = _select_missing(console, chosen, sources, asked.out or results.results_path())
    if asked.list:
        for name, cases in chosen.items():
            console.print("\n".join(f"{name}: {case.name}" for case in cases), highlight=False)
        return 0
    whole = not (asked.quick or asked.cases or asked.contestants)
    target = asked.out or (results.results_path() if whole else None)
    if target is not None:
        _check_kernels()
    seconds = asked.seconds or (_QUICK_SECONDS if asked.quick else _SECONDS)
    deadline = float("inf") if asked.minutes is None else time.monotonic() + 60 * asked.minutes
    measured = results.describe_measurement(seconds)
    _print_machine(console, measured)
    wrong, code = False, 0
    try:
        for name, cases in chosen.items():
            kept = None if target is None or not whole else unfinished.rows_path(target, name)
            of_suite = measured | {"kernel sources": sources[name]}
            rows = unfinished.read_rows(kept, of_suite) if kept is not None and asked.missing else []
            found = _run_suite(console, SUITES[name], cases, names, of_suite, deadline, kept=kept, rows=rows)
            table.show(console, SUITES[name], found)
            wrong |= any(case["wrong"] for case in found["cases"])
            if target is not None:
                results.write(target, {name: found}, sources)
            if kept is not None:
                kept.unlink(missing_ok=True)
    except _OutOfTimeError:
        console.print(f"{name}: not finished within {asked.minutes:g} minutes, {_say_kept(kept)}", highlight=False)
    except KeyboardInterrupt:
        console.print(f"{name}: interrupted, {_say_kept(kept)}", highlight=False)
        code = _INTERRUPTED
    if target is not None:
        console.print(f"results are in {target}", highlight=False)
    return code or int(wrong)


def _say_kept(kept: Path | None) -> str:
    return "and not written" if kept is None else "its rows so far are kept: --missing goes on behind them"


def _check_kernels() -> None:
    """Raise RefusedError without kernels: results without those of regard would count as results of today's."""
    if extension.missing_reason is not None:
        raise RefusedError(
            "results without regard's own kernels are not written",
            expected="kernels built from these sources",
            got=extension.missing_reason,
            do="build them: `make kernels`",
        )


def _select_missing(
    console: Console, chosen: dict[str, list[Case]], sources: dict[str, str], file: Path
) -> dict[str, list[Case]]:
    """Select suites that lack rows in a file of results, and say why each of them is missing."""
    families, lacking = results.read(file)["families"], {}
    for name, cases in chosen.items():
        reason = missing.why_missing(families.get(name), cases, sources[name])
        if reason is not None:
            lacking[name] = cases
            console.print(f"{name}: {reason}", highlight=False)
    if not lacking:
        console.print(f"nothing is missing in {file}", highlight=False)
    return lacking


def _run_suite(
    console: Console,
    suite: Suite,
    cases: list[Case],
    names: list[str],
    measured: dict[str, Any],
    deadline: float,
    *,
    kept: Path | None,
    rows: list[dict[str, Any]],
) -> dict[str, Any]:
    """Run the cases of a suite that have no row, and keep each row in a file; for a partial run (None) in none.

    Raises _OutOfTimeError at the first case that would begin after the deadline.
    """
    found = {row["name"]: row for row in rows}
    for case in cases:
        if case.name in found:
            continue
        if time.monotonic() > deadline:
            raise _OutOfTimeError
        with console.status(f"{suite.name}: {case.name}"):
            result = run_case.run(case, contestants=names, seconds=measured["seconds a case"])
        found[case.name] = asdict(result)
        if kept is not None:
            unfinished.write_rows(kept, measured, list(found.values()))
    ordered = [found[case.name] for case in cases]
    grown = list(_measure_scaling(console, suite, ordered)) if kept is not None else []
    return results.suite_to_json(ordered, grown, measured)


def _measure_scaling(console: Console, suite: Suite, rows: list[dict[str, Any]]) -> Iterator[ScalingResult]:
    medians = {row["name"]: {name: one["seconds"] for name, one in row["times"].items()} for row in rows}
    for growth in suite.scaling:
        with console.status(f"{suite.name}: {growth.what} of {', '.join(growth.cases)}"):
            grown = (
                judge_time_scaling(growth, suite, medians)
                if growth.what == "time"
                else measure_memory_scaling(growth, suite)
            )
        if grown is not None:
            yield grown


def _find_suite(name: str) -> Suite:
    if name not in SUITES:
        raise unknown_name_error("suite", name, SUITES)
    return SUITES[name]


def _parse_contestants(asked: argparse.Namespace) -> list[str]:
    names = [name for name in asked.contestants.split(",") if name]
    for name in names:
        if name not in LABELS:
            raise unknown_name_error("contestant", name, LABELS)
    return names


def _select_cases(suite: Suite, asked: argparse.Namespace) -> list[Case]:
    wanted = [word for word in asked.cases.split(",") if word]
    return [case for case in suite.cases if case.has_words(wanted) and (case.quick or not asked.quick)]


def _make_console() -> Console:
    """Make a console as wide as the terminal, or 180 columns wide for a file or a pipe."""
    return Console() if sys.stdout.isatty() else Console(width=180)


def _print_machine(console: Console, measured: dict[str, Any]) -> None:
    described = measured["machine"]
    console.print(
        f"{described['processor']}, {described['threads']} threads of {described['cores']} cores, "
        f"{described['instructions']}, last cache {described['last cache']}",
        highlight=False,
    )
    console.print(
        ", ".join(f"{name} {value}" for name, value in measured["versions"].items() if value), highlight=False
    )
    units = {name: "GB/s" if name.startswith("read") else "GFLOP/s" for name in measured["peaks"]}
    found = [f"{name} {value:,.0f} {units[name]}" for name, value in measured["peaks"].items()]
    console.print(f"peaks: {', '.join(found) or 'not measured, since there is no C++ compiler'}", highlight=False)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RegardError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
