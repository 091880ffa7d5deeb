"""Write ``docs/speed.md`` and its plots from the results; texts are those of the suites.

python -m benchmarks.report            write them
python -m benchmarks.report --check    exit with 1 if the page is not up to date
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks import atomic_write, busy_machine, formatting, misses, plot, plot_style, results
from benchmarks.attention_baselines import LABELS
from benchmarks.case import Suite
from benchmarks.devices import run_pieces
from benchmarks.devices.render import render_devices
from benchmarks.suites import SUITES
from benchmarks.table import list_contestants, rated_contestant

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "speed.md"
ASSETS = ROOT / "docs" / "assets"

_INTRODUCTION = """\
<!-- Written by `python -m benchmarks.report` from benchmarks/results. Do not edit. -->

# Speed

All numbers on this page are measured by `benchmarks/`:

```console
pip install -e '.[bench]'
python -m benchmarks                    # some hours; writes the results as JSON
python -m benchmarks --missing          # only what this page lacks on this machine, most valuable first
python -m benchmarks forward --quick    # a quick run of one suite
python -m benchmarks.report             # writes this page
```

- All implementations of a case are timed in turns, within the same seconds and on the same tensors. Times are
  medians; ± is half the interquartile range. A ratio is one median divided by another.
- Before timing, each result is compared with a float64 computation. A wrong result gets no time, and the run fails.
- The share of peak is relative to the rate of a loop of only multiply-adds on registers, or of only reads, measured
  within the same seconds. A multiply-add counts as two operations; masked cells are not counted. A second share is
  relative to torch's product of two float32 matrices of 1,024 x 1,024: no bound, but what a tuned library reaches.
- Targets were set before the code was written: ✓ reached, ✗ missed on this machine, (✗) missed with a reason. The last
  column has the measured value, and the target in brackets. A missed ratio is followed by its bound: the other's time
  divided by the time that the operations of the case (or its bytes) take at the peak, which no code for them exceeds
  on this machine.
- A ratio that would take more than 70% of the peak is taken back there, since the page's bound is out of reach or close
  to it: it is replaced by 70% of its bound, or by 1x where that is more, and followed by the ratio that was set.
- Other libraries are called as their users call them, with torch's default number of threads.
"""

_NO_RESULTS = "There are no results yet.\n"


def render_page(reports: list[dict[str, Any]]) -> str:
    """Render the whole page in Markdown."""
    parts = [_INTRODUCTION, *_render_misses(reports)] if reports else [_INTRODUCTION, _NO_RESULTS]
    newest: dict[str, Any] = max(reports, key=_last_time, default={})
    for report in reports:
        parts += list(_render_machine(report))
        for name in SUITES:
            if name in report["families"]:
                parts += list(_render_suite(report, name, newest))
        if "busy" in report:
            parts += list(busy_machine.render(report["busy"]))
    parts += list(render_devices(run_pieces.read_results()))
    return "\n".join(parts)


@dataclass(frozen=True)
class _Judged:
    """A verdict with its case, suite and outcome."""

    found: dict[str, Any]
    case: dict[str, Any]
    suite: str
    measured: dict[str, Any]
    outcome: misses.Outcome


def _judge_all(report: dict[str, Any]) -> list[_Judged]:
    """Judge all verdicts of a machine."""
    return [
        _Judged(found, case, name, suite["measured"], misses.judge(found, case, name, suite["measured"]))
        for name, suite in ((name, report["families"][name]) for name in SUITES if name in report["families"])
        for case in suite["cases"]
        for found in case["verdicts"]
    ]


def _render_misses(reports: list[dict[str, Any]]) -> Iterator[str]:
    """Count targets by outcome, and list misses without a reason."""
    judged = [one for report in reports for one in _judge_all(report)]
    kinds = Counter(one.outcome.kind for one in judged)
    restated = sum(one.outcome.is_restated for one in judged)
    yield "## Missed targets\n"
    yield (
        f"{kinds['reached']} of {len(judged)} targets on {len(reports)} machines are reached. {kinds['in rounds']} "
        "others were reached in at least a quarter of the rounds, in which contestants take turns. "
        f"{restated} ratios are replaced by {formatting.share(misses.REACHABLE_SHARE)} of their bound, or 1x. "
        f"{kinds['explained'] + kinds['outdated']} misses have a reason:\n"
    )
    reasons = Counter(one.outcome.reason for one in judged if one.outcome.reason)
    yield from (f"- {count}: {reason}" for reason, count in reasons.most_common())
    yield f"\n{kinds['unexplained']} misses have none:\n"
    yield "| machine | suite | case | target | measured |"
    yield "|---|---|---|---|---|"
    for one in judged:
        if one.outcome.kind == "unexplained":
            verdict = formatting.verdict(one.found, one.case, one.suite, one.measured)
            cells = (SUITES[one.suite].title, one.case["name"], verdict, one.measured["date"])
            yield f"| {one.measured['machine']['processor']} | {' | '.join(cells)} |"
    yield ""


def _render_machine(report: dict[str, Any]) -> Iterator[str]:
    measured = [suite["measured"] for suite in report["families"].values()]
    described = measured[-1]["machine"]
    peaks: dict[str, float] = {}
    for one in measured:  # other load makes some lower
        peaks |= {name: max(value, peaks.get(name, 0.0)) for name, value in one["peaks"].items()}
    judged = _judge_all(report)
    reached = sum(one.outcome.kind == "reached" for one in judged)
    yield f"## {described['processor']}, {formatting.threads(described)}\n"
    yield (
        f"{described['cores']} cores, {described['instructions']}, last-level cache {described['last cache']}, "
        f"{described['memory GB']:g} GB of memory, {described['system']}. "
        f"{reached} of {len(judged)} targets reached.\n"
    )
    yield "| peak rate, the highest of all runs | |"
    yield "|---|---|"
    for name, value in peaks.items():
        yield f"| {name} | {formatting.rate(value, 'GB/s' if name.startswith('read') else 'GFLOP/s')} |"
    yield ""


def _last_time(report: dict[str, Any]) -> tuple[str, str]:
    """Return the date and time of the last measurement of a machine."""
    measured = [suite["measured"] for suite in report["families"].values()]
    return max(((one["date"], one.get("time", "")) for one in measured), default=("", ""))


def _render_suite(report: dict[str, Any], name: str, newest: dict[str, Any]) -> Iterator[str]:
    suite, found = SUITES[name], report["families"][name]
    yield f"### {suite.title}\n"
    yield f"{suite.description}\n"
    if name in plot.PLOTS:
        for scheme in plot_style.SCHEMES:
            file = _plot_file_name(report, name, scheme)
            yield f"![{_alt_text(suite)}](assets/{file}#only-{scheme})"
        yield ""
    yield from _render_table(found, name)
    yield from (f"{note}\n" for note in suite.notes)
    for grown in found["growth"]:
        yield from (f"- {line}" for line in formatting.scaling_lines(grown))
    yield from _render_refusals(found)
    yield from (f"- {line}" for line in formatting.load_warnings(found))
    yield f"\n{_format_versions(found['measured'], _format_age(name, found['measured'], newest))}\n"


def _render_table(found: dict[str, Any], suite: str) -> Iterator[str]:
    names = [name for name in LABELS if any(name in list_contestants(case) for case in found["cases"])]
    headings = ["case", *(LABELS[name] for name in names), "rate", "share of peak", "target"]
    yield f"| {' | '.join(headings)} |"
    yield f"|{'|'.join(['---', *['--:'] * (len(names) + 2), '---'])}|"
    for case in found["cases"]:
        cells = [
            case["name"],
            *(_format_time(case, name) for name in names),
            *formatting.rate_and_shares(case, rated_contestant(case)),
        ]
        verdicts = [formatting.verdict(one, case, suite, found["measured"]) for one in case["verdicts"]]
        yield f"| {' | '.join([*cells, '<br>'.join(verdicts)])} |"
    yield ""


def _format_time(case: dict[str, Any], name: str) -> str:
    if name in case["times"]:
        return f"{formatting.seconds(case['times'][name]['seconds'])} {formatting.spread(case['times'][name])}"
    return "refused" if name in case["refused"] else "wrong" if name in case["wrong"] else ""


def _render_refusals(found: dict[str, Any]) -> Iterator[str]:
    """Group cases by reason: yield each reason once, with its cases."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for case in found["cases"]:
        for name, reason in case["refused"].items():
            reasons.setdefault((LABELS[name], reason), []).append(case["name"])
    for (label, reason), cases in reasons.items():
        yield f"- {label} refused {', '.join(cases)}: {reason}"


def _alt_text(suite: Suite) -> str:
    return f"{suite.title}: time of a call by length, one line per implementation; the table has the numbers"


def _plot_file_name(report: dict[str, Any], name: str, scheme: str) -> str:
    return f"speed-{report['slug']}-{name}-{scheme}.svg"


def _format_versions(measured: dict[str, Any], age: str) -> str:
    versions = {name: value for name, value in measured["versions"].items() if value}
    commit = f" ({versions.pop('commit')})" if "commit" in versions else ""
    listed = ", ".join(f"{name} {value}{commit if name == 'regard' else ''}" for name, value in versions.items())
    return f"<small>Measured {measured['date']}{age} with {listed}.</small>"


def _format_age(suite: str, measured: dict[str, Any], newest: dict[str, Any]) -> str:
    """Say how much older than the newest results of the page those of a suite are, and whether its kernels have changed
    since; ``newest`` is the report of the machine that was measured last.

    Results without a hash of the kernels were measured before there was one, by kernels that have changed since.
    """
    days = (date.fromisoformat(_last_time(newest)[0]) - date.fromisoformat(measured["date"])).days
    kernels = measured.get("kernel sources")
    is_old = kernels is None or kernels != newest.get("kernel sources", {}).get(suite)
    age = f"{days} day{'' if days == 1 else 's'} before the newest results of this page" if days else ""
    facts = [fact for fact in (age, "before its kernels changed" if is_old else "") if fact]
    return f", {' and '.join(facts)}," if facts else ""


def main() -> int:
    """Write or check the page, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report", description="Write docs/speed.md from the results."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is not up to date")
    asked = parser.parse_args()
    reports = results.read_all()
    text = render_page(reports)
    if asked.check:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    for report in reports:
        for name in plot.PLOTS:
            if name in report["families"]:
                for scheme in plot_style.SCHEMES:
                    cases = report["families"][name]["cases"]
                    plot.draw(name, cases, scheme, ASSETS / _plot_file_name(report, name, scheme))
    atomic_write.write(PAGE, text)
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
