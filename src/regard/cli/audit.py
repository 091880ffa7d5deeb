"""``regard audit``: which tokens leak into which outputs of a model, since which layer, and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.auditing.open_model import LIBRARIES
from regard.cli.completion import choice_completer, model_completer
from regard.cli.output_file import check_output_file, open_output_file
from regard.cli.progress import count_progress, indeterminate_progress
from regard.cli.shared_options import Device, option
from regard.cli.stderr import say
from regard.cli.verb import Verb
from regard.device_names import AUTO

if TYPE_CHECKING:
    from regard.auditing import AuditReport

NOTES = """
[bold]Models.[/bold] A folder of transformers or regard; code in a folder is never run. Or a function of yours, \
package.module:build, from the current folder too: it returns a torch module and the inputs of one call, ids or \
tensors, and may add arguments of the audit: return module, inputs, {"causal": True}.

[bold]Exit codes.[/bold] 0: all properties that could be asked hold. 1: one leaks. 2: none could be asked, or a wrong \
option. 3 to 6 as for all commands.

[bold]Examples[/bold]

  regard audit minilm --quick

  regard audit my_models:build -o audit.html

  regard audit model/ --skip packed --certificate model/audit.json
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("audit", cls=Verb, epilog=NOTES)(audit)


def audit(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Model folder, its name, or package.module:build.",
            autocompletion=model_completer(["minilm"]),
        ),
    ],
    quick: Annotated[bool, option("--quick", "Leave out properties that take long.")] = False,
    strict: Annotated[
        bool, option("--strict", "Try properties, too, that hardly any model has, such as NaN in padding.")
    ] = False,
    only: Annotated[
        list[str] | None,
        option("--only", "Try this property, or those that begin so. May be repeated.", metavar="NAME"),
    ] = None,
    skip: Annotated[
        list[str] | None, option("--skip", "Leave out this property, or those that begin so.", metavar="NAME")
    ] = None,
    causal: Annotated[
        bool | None,
        option("--causal/--not-causal", "Whether no output may depend on a later token. Default: the model says it."),
    ] = None,
    prefix: Annotated[
        int | None, option("--prefix", "Number of first tokens that see one another, in a causal model.")
    ] = None,
    length: Annotated[int | None, option("--length", "Tokens of a text. Default: 13, or those of the inputs.")] = None,
    seed: Annotated[int | None, option("--seed", "Seed of the random texts. Default: 0.")] = None,
    library: Annotated[
        str,
        option(
            "--library",
            "Which library computes a folder: transformers, regard, or auto, which prefers transformers.",
            metavar="NAME",
            autocompletion=choice_completer(LIBRARIES),
            show_default=True,
        ),
    ] = "auto",
    device: Device = AUTO,
    as_json: Annotated[bool, option("--json", "Print JSON, for programs.")] = False,
    out: Annotated[
        Path | None,
        option("--out -o", "Write the report to a file: a page, audit.html, or JSON, audit.json.", metavar="FILE"),
    ] = None,
    certificate: Annotated[
        Path | None,
        option("--certificate", "Write a certificate to commit beside the model: verdicts, versions, hashes, seed."),
    ] = None,
    overwrite: Annotated[bool, option("--overwrite", "Replace files that exist.")] = False,
) -> None:
    """Say which tokens leak into which outputs of a model: later tokens, padding, other texts of a batch or a row."""
    check_output_file(certificate, overwrite=overwrite)
    if out is not None:
        from regard.view.output_path import REPORT, check_output_path

        check_output_path(out, REPORT, overwrite=overwrite)
    report = _run(
        model,
        library,
        {"causal": causal, "prefix": prefix, "only": only, "skip": skip, "length": length, "seed": seed},
        quick=quick,
        strict=strict,
        device=device,
    )
    _write_files(report, out, certificate, overwrite=overwrite)  # first: a reader such as `head` may close the pipe
    if as_json:
        print(report.to_json())
    else:
        from regard.cli.audit_tables import print_report

        print_report(report)
    for file in (out, certificate):
        if file is not None:
            say(f"{file}: written")
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _run(name: str, library: str, options: Mapping[str, Any], *, quick: bool, strict: bool, device: str) -> AuditReport:
    """Open the model and audit it. ``options`` of the shell precede the arguments that the user's function returns."""
    from regard.auditing.open_model import open_model
    from regard.auditing.run_audit import choose_properties, run_audit

    choose_properties(options["only"] or (), options["skip"] or ())  # refuses wrong names before the model is loaded
    with indeterminate_progress("opening the model"):
        opened = open_model(name, library, device)
    arguments = dict(opened.arguments) | {key: value for key, value in options.items() if value not in (None, [])}
    chosen = choose_properties(arguments.pop("only", ()), arguments.pop("skip", ()), quick=quick, strict=strict)
    with count_progress(len(chosen), "properties") as advance:
        return run_audit(opened.model, opened.inputs, chosen=chosen, progress=advance, is_copied=False, **arguments)


def _write_files(report: AuditReport, out: Path | None, certificate: Path | None, *, overwrite: bool) -> None:
    if out is not None:
        report.save(out, overwrite=overwrite)
    if certificate is not None:
        from regard.auditing.certificate import make_certificate

        with open_output_file(certificate) as output:
            output.write(make_certificate(report))
