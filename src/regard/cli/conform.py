"""``regard conform``: compare a kernel of attention with exact results, and say how it is wrong."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from regard.cli.option_group import expand_option_groups
from regard.cli.verb import Verb
from regard.errors import OptionError
from regard.fields import option_field
from regard.language import translate_label, translate_message

if TYPE_CHECKING:
    from collections.abc import Callable

    from regard.conformance import Report

SHOWN = 8
EXAMPLE = "my_kernel:attention"
NOTES = """
[bold]Functions.[/bold] A function takes query, key and value, and what it has of mask, bias, causal, window, scale, \
softcap, sinks and dropout, by their usual names. Cases that need other arguments are not tried. Functions of torch, \
JAX and NumPy are told apart by what their module imports; Triton kernels run in Triton's interpreter unless --device \
is cuda. A function that takes cu_seqlens_q is tried with packed rows. A file that ends in .onnx is a model with one \
node of the operator Attention. onnxruntime and onnx.reference are runtimes, tried with the node tests of ONNX.

[bold]Exit codes.[/bold] 0: all results are right; 1: a result is wrong; 2: the function could not be tried. 4 to 6 \
as for all commands.

[bold]Examples[/bold]

  regard conform my_kernel:attention

  regard conform my_kernel:delta --mechanism gated_delta --json > report.json

  regard conform attention.onnx

  regard conform onnxruntime

  regard conform --list --suite onnx

  regard conform --vectors cases.safetensors

  regard conform --vectors packed.safetensors --suite packed
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("conform", cls=Verb, epilog=NOTES)(conform)


@final
@dataclass(frozen=True)
class _Function:
    """The mechanism that the function computes, and how it wants its arguments."""

    mechanism: str = option_field(
        "dot_product", "The mechanism that it computes: regard list.", metavar="NAME", completes="mechanisms"
    )
    backward: str | None = option_field(
        None, "For NumPy: a function that returns the gradients.", metavar="MODULE:FUNCTION"
    )
    framework: str | None = option_field(
        None,
        "Framework of its arrays: numpy, torch, jax or a module with from_dlpack. Default: that of its module.",
        metavar="NAME",
    )
    layout: str | None = option_field(
        None, "Order of dimensions: bhld (heads before length) or blhd. Default: the one that fits.", metavar="ORDER"
    )
    mask: str | None = option_field(
        None,
        "Form of its mask: allowed (True may attend), hidden (True may not) or additive. Default: the one that fits.",
        metavar="FORM",
    )
    align: str = option_field(
        "end", "Position of the queries of causal masks and windows: end (with the last key) or start.", metavar="SIDE"
    )
    causal: bool = option_field(False, "It is causal without an argument that says so.")
    suite: str = option_field(
        "regard", "Cases: regard, packed (rows of texts) or onnx (ONNX's node tests of the mechanism).", metavar="NAME"
    )
    strict: bool = option_field(
        False, "Try inf and nan behind masks, too, which most kernels multiply with weights of 0."
    )
    device: str = option_field("cpu", "Device of torch.", metavar="DEVICE")

    def check(self, function: Callable[..., Any], **options: Any) -> Report:
        """Try the function."""
        from regard.conformance import check
        from regard.load_function import load_function

        given = {name: value for name, value in vars(self).items() if name != "causal"}
        given["backward"] = None if self.backward is None else load_function(self.backward, example=EXAMPLE)
        return check(function, **given, fixed={"causal": True} if self.causal else None, **options)


@expand_option_groups()
def conform(
    function: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:FUNCTION", help="The function, a model of ONNX, or a runtime of it.", show_default=False
        ),
    ] = None,
    *,
    how: _Function,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first wrong result.", show_default=False)
    ] = False,
    vectors: Annotated[
        Path | None,
        typer.Option(
            "--vectors",
            help="Write the cases to this file instead, .safetensors or .npz.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    list_only: Annotated[
        bool, typer.Option("--list", help="List the cases, and try nothing.", show_default=False)
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.", show_default=False)] = False,
) -> None:
    """Compare a kernel of attention with exact results in float64, and say what is wrong and how.

    Forward, gradients, masks, canaries behind masks, determinism and dropout are tried.
    """
    if vectors is not None:
        _write_vectors(vectors, how.mechanism, how.suite)
        return
    if list_only:
        _list_cases(how.mechanism, how.suite, as_json=as_json)
        return
    if function is None:
        raise OptionError("nothing to try", expected="MODULE:FUNCTION", got="no function", do=f"for example {EXAMPLE}")
    report = _check(function, how, fail_fast=fail_fast)
    if as_json:
        print(json.dumps(report.to_json(), indent=1, ensure_ascii=False, allow_nan=False))
    else:
        _print_report(report)
    if not report.holds:
        raise typer.Exit(1)


def _write_vectors(path: Path, mechanism: str, suite: str) -> None:
    from regard.conformance import cases_of
    from regard.conformance.vectors import write_vectors

    cases = cases_of(mechanism, suite=suite)
    write_vectors(cases, path)
    print(translate_message(f"Written: {path} ({len(cases)} cases, {path.stat().st_size / 1000:,.0f} kB)"))


def _list_cases(mechanism: str, suite: str, *, as_json: bool) -> None:
    """Print the cases, and of ONNX's node tests also those that are none, with the reason."""
    from regard.conformance import cases_of

    cases = {case.name: "" for case in cases_of(mechanism, suite=suite)}
    if suite == "onnx":
        from regard.conformance.onnx_cases import describe_tests

        cases = dict(describe_tests())
    if as_json:
        print(json.dumps([{"case": name, "note": note} for name, note in cases.items()], indent=1, ensure_ascii=False))
        return
    for name, note in cases.items():
        print(translate_message(f"{name}: {note}" if note else name))


def _check(name: str, how: _Function, *, fail_fast: bool) -> Report:
    """Load the function and try it, with a progress bar."""
    from regard.cli.progress import count_progress
    from regard.load_function import load_function

    if how.device == "cpu":  # read by Triton when it is imported
        os.environ.setdefault("TRITON_INTERPRET", "1")
    with count_progress(100, "% of the cases") as advance:

        def show(done: int, total: int) -> None:
            advance(100 * done // total)

        from regard.conformance.onnx_runtimes import RUNTIMES

        if name.endswith(".onnx") or name in RUNTIMES:
            if how not in (_Function(), _Function(suite="onnx" if name in RUNTIMES else "regard")):
                raise OptionError(
                    "options of functions have no effect on ONNX",
                    expected=f"{name} alone, or with --fail-fast and --json",
                    got="other options",
                    do="leave them out: the attributes of a node say them",
                )
            from regard.conformance.onnx_model import check_onnx_model
            from regard.conformance.onnx_runtimes import check_onnx_runtime

            if name in RUNTIMES:
                return check_onnx_runtime(name, fail_fast=fail_fast, progress=show)
            return check_onnx_model(Path(name), fail_fast=fail_fast, progress=show)
        return how.check(load_function(name, example=EXAMPLE), fail_fast=fail_fast, progress=show)


def _print_report(report: Report) -> None:
    """Print the counts, the conventions, the faults and the wrong cases."""
    from rich import box
    from rich.table import Table

    from regard.cli.broken_pipe import PipedConsole

    console = PipedConsole(markup=False, highlight=False)
    counted = translate_message(", ".join(f"{count} {verdict}" for verdict, count in report.counts().items() if count))
    console.print(f"{report.function} ({report.mechanism}, {report.framework}): {counted}", style="bold")
    for line in report.conventions:
        label, _, names = line.partition(": ")
        shown = translate_label(label, names) if label == "arguments" else translate_message(line)
        console.print(f"  {shown}", style="dim")
    causes = report.causes()
    if causes:
        title = translate_message("Faults that explain wrong results")
        table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
        table.add_column(translate_message("fault"), overflow="fold")
        table.add_column(translate_message("for example in"), overflow="fold")
        for cause, cases in sorted(causes.items(), key=lambda item: -len(item[1])):
            table.add_row(translate_message(cause), translate_message(cases[0]))
        console.print(table)
    wrong = [outcome for outcome in report.wrong if not outcome.reason]
    unexplained = [outcome for outcome in wrong if not any(finding.cause for finding in outcome.findings)]
    if unexplained and causes:
        console.print(translate_message("Other wrong results"))
    for outcome in unexplained[:SHOWN]:
        case, finding = translate_message(outcome.case), translate_message(outcome.findings[0].describe())
        console.print(f"  {case} ({outcome.dtype}): {finding}")
    if len(unexplained) > SHOWN:
        console.print("  " + translate_message(f"and {len(unexplained) - SHOWN} more: --json lists all"))
    _print_reasons(report, console)


def _print_reasons(report: Report, console: Any) -> None:
    """Print the cases that were refused or not tried, by their reason."""
    labels = {
        "wrong": "wrong",
        "right": "gradients not compared",
        "refused": "refused",
        "not tried": "not tried",
    }
    for verdict, label in labels.items():
        reasons: dict[str, int] = {}
        for outcome in report.outcomes:
            if outcome.verdict == verdict and outcome.reason:
                reasons[outcome.reason] = reasons.get(outcome.reason, 0) + 1
        for reason, count in reasons.items():
            console.print(f"{translate_message(label)} ({count}): {translate_message(reason)}", style="dim")
