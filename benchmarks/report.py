"""Write ``docs/speed.md`` and its plots from the results; texts are those of the suites.

python -m benchmarks.report            write them
python -m benchmarks.report --check    exit with 1 if the page is not up to date
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import atomic_write, busy_machine, formatting, plot, plot_style, results
from benchmarks.attention_baselines import LABELS
from benchmarks.case import Suite
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
python -m benchmarks                    # about half an hour; writes the results as JSON
python -m benchmarks forward --quick    # a quick run of one suite
python -m benchmarks.report             # writes this page
```

- All implementations of a case are timed in turns, within the same seconds and on the same tensors. Times are
  medians; ± is half the interquartile range. A ratio is one median divided by another.
- Before timing, each result is compared with a float64 computation. A wrong result gets no time, and the run fails.
- The share of peak is relative to the rate of a loop of only multiply-adds on registers, or of only reads, measured
  within the same seconds. A multiply-add counts as two operations; masked cells are not counted.
- Targets were set before the code was written: ✓ reached, ✗ missed on this machine. The last column has the measured
  value, and the target in brackets. A missed ratio is followed by its bound: the other's time divided by the time
  that the operations of the case (or its bytes) take at the peak, which no code for them exceeds on this machine. A
  target above the bound is out of reach there.
- Other libraries are called as their users call them, with torch's default number of threads.
"""

_NO_RESULTS = "There are no results yet.\n"


def render_page(reports: list[dict[str, Any]]) -> str:
    """Render the whole page in Markdown."""
    parts = [_INTRODUCTION] if reports else [_INTRODUCTION, _NO_RESULTS]
    for report in reports:
        parts += list(_render_machine(report))
        for name in SUITES:
            if name in report["families"]:
                parts += list(_render_suite(report, name))
        if "busy" in report:
            parts += list(busy_machine.render(report["busy"]))
    return "\n".join(parts)


def read_all() -> list[dict[str, Any]]:
    """Read the results of every machine, with the name of their file."""
    return [results.read(file) | {"slug": file.stem} for file in sorted(results.FOLDER.glob("*.json"))]


def _render_machine(report: dict[str, Any]) -> Iterator[str]:
    measured = [suite["measured"] for suite in report["families"].values()]
    described = measured[-1]["machine"]
    peaks: dict[str, float] = {}
    for one in measured:  # other load makes some lower
        peaks |= {name: max(value, peaks.get(name, 0.0)) for name, value in one["peaks"].items()}
    verdicts = [
        verdict for suite in report["families"].values() for case in suite["cases"] for verdict in case["verdicts"]
    ]
    reached = sum(verdict["reached"] for verdict in verdicts)
    yield f"## {described['processor']}, {described['threads']} threads\n"
    yield (
        f"{described['cores']} cores, {described['instructions']}, last-level cache {described['last cache']}, "
        f"{described['memory GB']:g} GB of memory, {described['system']}. "
        f"{reached} of {len(verdicts)} targets reached.\n"
    )
    yield "| peak rate, the highest of all runs | |"
    yield "|---|---|"
    for name, value in peaks.items():
        yield f"| {name} | {formatting.rate(value, 'GB/s' if name.startswith('read') else 'GFLOP/s')} |"
    yield ""


def _render_suite(report: dict[str, Any], name: str) -> Iterator[str]:
    suite, found = SUITES[name], report["families"][name]
    yield f"### {suite.title}\n"
    yield f"{suite.description}\n"
    if name in plot.PLOTS:
        for scheme in plot_style.SCHEMES:
            file = _plot_file_name(report, name, scheme)
            yield f"![{_alt_text(suite)}](assets/{file}#only-{scheme})"
        yield ""
    yield from _render_table(found)
    yield from (f"{note}\n" for note in suite.notes)
    for grown in found["growth"]:
        yield from (f"- {line}" for line in formatting.scaling_lines(grown))
    yield from _render_refusals(found)
    yield from (f"- {line}" for line in formatting.load_warnings(found))
    yield f"\n{_format_versions(found['measured'])}\n"


def _render_table(found: dict[str, Any]) -> Iterator[str]:
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
        yield f"| {' | '.join([*cells, '<br>'.join(formatting.verdict(one, case) for one in case['verdicts'])])} |"
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


def _format_versions(measured: dict[str, Any]) -> str:
    versions = {name: value for name, value in measured["versions"].items() if value}
    commit = f" ({versions.pop('commit')})" if "commit" in versions else ""
    listed = ", ".join(f"{name} {value}{commit if name == 'regard' else ''}" for name, value in versions.items())
    return f"<small>Measured {measured['date']} with {listed}.</small>"


def main() -> int:
    """Write or check the page, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report", description="Write docs/speed.md from the results."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is not up to date")
    asked = parser.parse_args()
    reports = read_all()
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
