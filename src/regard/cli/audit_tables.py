"""The report of an audit on the terminal: a table of what was tried, the leaks, and what cannot be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.language import translate_message

if TYPE_CHECKING:
    from regard.auditing import AuditReport


def print_report(report: AuditReport) -> None:
    """Print a report: verdicts with their differences, then each leak in words, then what could not be asked."""
    from rich import box
    from rich.table import Table

    from regard.auditing.describe_report import (
        describe_head,
        describe_leak,
        describe_reasons,
        label_property,
    )
    from regard.cli.broken_pipe import PipedConsole
    from regard.escape_text import escape_text

    console = PipedConsole(markup=False, highlight=False)
    console.print(escape_text(describe_head(report)))
    for note in report.notes:
        console.print(escape_text(translate_message(f"note: {note}")))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("property", "verdict", "largest difference", "rounding up to"):
        table.add_column(translate_message(column), no_wrap=column != "property", overflow="fold")
    for result in report.results:
        if result.difference is not None and result.threshold is not None:
            style = "bold red" if result.leak else None
            row = (
                label_property(result.name),
                translate_message(result.verdict),
                f"{result.difference:.1e}",
                f"{result.threshold:.1e}",
            )
            table.add_row(*row, style=style)
    if table.row_count:
        console.print(table)
    for result in report.leaks:
        if result.leak is not None:
            console.print(escape_text(translate_message(f"LEAK  {result.promise}: not so")), style="bold")
            for line in describe_leak(result.leak):
                console.print(escape_text(f"      {translate_message(line)}"))
    for line in describe_reasons(report):
        console.print(escape_text(line))
    tried = sum(result.verdict != "cannot be asked" for result in report.results)
    verdict = f"{len(report.leaks)} of {tried} properties leak" if tried else "no property could be asked"
    console.print(translate_message(verdict))
