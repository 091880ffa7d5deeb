"""``regard doctor``: whether the attention of torch is right on this machine, and what to use where it is not."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.shared_options import option
from regard.cli.verb import Verb
from regard.language import translate_message

if TYPE_CHECKING:
    from regard.conformance import Report
    from regard.conformance.torch_calls import TorchCall

NOTES = """
[bold]Calls.[/bold] scaled_dot_product_attention with each of its implementations for processors, \
nn.MultiheadAttention with and without weights, its fast path in inference, and flex_attention without compilation. \
Causal masks are tried with the alignment that PyTorch documents. Some results below are choices that PyTorch made on \
purpose: the issue says why.

[bold]Exit codes.[/bold] 0: all results are right; 1: a result is wrong.

[bold]Examples[/bold]

  regard doctor

  regard doctor --json > doctor.json
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("doctor", cls=Verb, epilog=NOTES)(doctor)


def doctor(as_json: Annotated[bool, option("--json", "Print JSON, for programs.")] = False) -> None:
    """Compare the attention of PyTorch itself with exact results on this machine, and say what to use instead."""
    import torch

    from regard.cli.progress import count_progress
    from regard.conformance.torch_calls import CALLS, check_torch

    with warnings.catch_warnings(), count_progress(len(CALLS), "calls") as advance:
        warnings.simplefilter("ignore")  # torch warns about prototypes
        found = list(check_torch(lambda done, total: advance(done)))
    if as_json:
        calls = [
            {"call": call.name, "advice": _advice(call.name, report), **report.to_json()} for call, report in found
        ]
        print(json.dumps({"torch": torch.__version__, "calls": calls}, indent=1, ensure_ascii=False, allow_nan=False))
    else:
        _print_calls(torch.__version__, found)
    if not all(report.holds for _, report in found):
        raise typer.Exit(1)


def _advice(call: str, report: Report) -> list[dict[str, str]]:
    """Each fault of a call, and what to do about it."""
    from regard.conformance.torch_calls import find_advice

    rows = []
    for cause, cases in report.causes().items():
        advice = find_advice(call, cause)
        rows.append(
            {
                "fault": cause,
                "case": cases[0],
                "do": "use regard.attention" if advice is None else advice.do,
                "issue": "" if advice is None else advice.issue,
            }
        )
    return rows


def _print_calls(version: str, found: list[tuple[TorchCall, Report]]) -> None:
    from regard.cli.broken_pipe import PipedConsole

    console = PipedConsole(markup=False, highlight=False)
    heading = f"PyTorch {version} on this machine's processor, beside exact results in float64"
    console.print(translate_message(heading), style="bold")
    for call, report in found:
        counts = report.counts()
        tried = counts["right"] + counts["wrong"]
        console.print("\n" + translate_message(f"{call.name}: {counts['right']} of {tried} cases are right"))
        for row in _advice(call.name, report):
            _print_row(console, row)
        unknown = [outcome for outcome in report.wrong if not any(finding.cause for finding in outcome.findings)]
        for outcome in unknown[:4]:
            case, finding = translate_message(outcome.case), translate_message(outcome.findings[0].describe())
            console.print(f"  {case} ({outcome.dtype}): {finding}")
        refused = {outcome.reason for outcome in report.outcomes if outcome.verdict == "refused"}
        for reason in sorted(refused):
            console.print("  " + translate_message(f"refused: {reason}"), style="dim")


def _print_row(console: Any, row: dict[str, str]) -> None:
    console.print(f"  {translate_message(row['fault'])}")
    console.print("    " + translate_message(f"case: {row['case']}"), style="dim")
    console.print("    " + translate_message(f"instead: {row['do']}"))
    if row["issue"]:
        console.print("    " + translate_message(f"see: {row['issue']}"), style="dim")
