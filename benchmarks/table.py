"""Print the results of a suite as a table in the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import formatting
from benchmarks.attention_baselines import LABELS
from benchmarks.case import Suite


def show(console: Console, suite: Suite, found: dict[str, Any]) -> None:
    """Print a suite's results, as ``results.suite_to_json`` returns them: a row per case, a column per contestant."""
    names = list(dict.fromkeys(name for case in found["cases"] for name in list_contestants(case)))
    table = Table(title=f"{suite.title}. {suite.description}", title_justify="left", caption_justify="left")
    table.add_column("case")
    for name in names:
        table.add_column(LABELS.get(name, name), justify="right")
    for heading in ("rate", "share of peak", "target"):
        table.add_column(heading, justify="left" if heading == "target" else "right")
    for case in found["cases"]:
        table.add_row(
            case["name"],
            *(_format_cell(case, name) for name in names),
            *formatting.rate_and_shares(case, rated_contestant(case)),
            _format_verdicts(case, suite, found["measured"]),
        )
    table.caption = " ".join(suite.notes)
    console.print(table)
    for grown in found["growth"]:
        for line in formatting.scaling_lines(grown):
            console.print(line, highlight=False)
    for line in formatting.load_warnings(found):
        console.print(f"[yellow]{line}[/yellow]", highlight=False)
    for case in found["cases"]:
        for name, reason in case["refused"].items():
            console.print(f"{case['name']}: {LABELS.get(name, name)} refused: {reason}", highlight=False, markup=False)
        for name, reason in case["wrong"].items():
            console.print(f"[red]{case['name']}: {LABELS.get(name, name)} is wrong: {reason}[/red]", highlight=False)


def list_contestants(case: dict[str, Any]) -> list[str]:
    """Return all contestants of a case, regard first."""
    return sorted({*case["times"], *case["refused"], *case["wrong"]}, key=list(LABELS).index)


def rated_contestant(case: dict[str, Any]) -> str | None:
    """Return the contestant whose rate is shown: regard, or the first one."""
    return next((name for name in list_contestants(case) if name in case["times"]), None)


def _format_cell(case: dict[str, Any], name: str) -> str:
    if name in case["times"]:
        time = case["times"][name]
        return f"{formatting.seconds(time['seconds'])} [dim]{formatting.spread(time)}[/dim]"
    return "refused" if name in case["refused"] else "[red]wrong[/red]" if name in case["wrong"] else ""


def _format_verdicts(case: dict[str, Any], suite: Suite, measured: dict[str, Any]) -> str:
    texts = [formatting.verdict(verdict, case, suite.name, measured) for verdict in case["verdicts"]]
    return "\n".join(f"[{'green' if text.startswith('✓') else 'red'}]{text}[/]" for text in texts)
