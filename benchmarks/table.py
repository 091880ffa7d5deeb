"""The results of a family as a table in the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import words
from benchmarks.contestants import LABELS


def show(console: Console, family: dict[str, Any]) -> None:
    """Print a family as ``results.of_family`` gives it: a row a case, a column a contestant."""
    names = list(dict.fromkeys(name for case in family["cases"] for name in contestants_of(case)))
    table = Table(title=f"{family['title']}: {family['question']}", title_justify="left", caption_justify="left")
    table.add_column("case")
    for name in names:
        table.add_column(LABELS.get(name, name), justify="right")
    for heading in ("rate", "of peak", "promised"):
        table.add_column(heading, justify="left" if heading == "promised" else "right")
    for case in family["cases"]:
        table.add_row(case["name"], *(_cell(case, name) for name in names), *_rate(case), _promised(case))
    table.caption = " ".join(family["notes"])
    console.print(table)
    for grown in family["growth"]:
        for line in words.growth(grown):
            console.print(line, highlight=False)
    for line in words.busy(family):
        console.print(f"[yellow]{line}[/yellow]", highlight=False)
    for case in family["cases"]:
        for name, reason in case["refused"].items():
            console.print(f"{case['name']}: {LABELS.get(name, name)} refused: {reason}", highlight=False, markup=False)
        for name, reason in case["wrong"].items():
            console.print(f"[red]{case['name']}: {LABELS.get(name, name)} is wrong: {reason}[/red]", highlight=False)


def contestants_of(case: dict[str, Any]) -> list[str]:
    """Everybody who was asked to solve a case, ours first."""
    return sorted({*case["times"], *case["refused"], *case["wrong"]}, key=list(LABELS).index)


def leading(case: dict[str, Any]) -> str | None:
    """Whose rate is shown: ours, or whoever took part first."""
    return next((name for name in contestants_of(case) if name in case["times"]), None)


def _cell(case: dict[str, Any], name: str) -> str:
    if name in case["times"]:
        time = case["times"][name]
        return f"{words.seconds(time['seconds'])} [dim]{words.spread(time)}[/dim]"
    return "refused" if name in case["refused"] else "[red]wrong[/red]" if name in case["wrong"] else ""


def _rate(case: dict[str, Any]) -> tuple[str, str]:
    name = leading(case)
    if name is None:
        return "", ""
    shares = [words.share(peak["shares"][name]) for peak in case["peaks"].values()]
    return words.rate(case["times"][name]["rate"], case["unit"]), ", ".join(shares)


def _promised(case: dict[str, Any]) -> str:
    return "\n".join(
        f"[{'green' if verdict['reached'] else 'red'}]{words.verdict(verdict)}[/]" for verdict in case["verdicts"]
    )
